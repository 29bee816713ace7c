"""Sequences of words: the ids of the known ones and the n-grams of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unpad.data import RaggedDataset, Vocabulary, collate_ragged
from unpad.data.ngrams import ngrams
from unpad.ragged import Ragged


class WordDataset(RaggedDataset):
    """A `RaggedDataset` of words; a batch is ``(ids, n-grams, labels)``.

    A word is stored once: ``values`` [T] count the distinct words, whose ``ids`` [W] are those of
    the vocabulary (0 where it lacks them) and whose ``ngrams`` are a `Ragged` of W rows. In a batch
    the ids are a `Ragged` of [T] and the n-grams one of T rows, a row for each token.
    """

    def __init__(
        self, values: Tensor, offsets: Tensor, labels: Tensor, ids: Tensor, grams: Ragged
    ) -> None:
        super().__init__(values, offsets, labels)
        self.ids, self.ngrams = ids, grams

    @classmethod
    def of(
        cls,
        rows: Sequence[str] | Sequence[Sequence[str]],
        vocabulary: Vocabulary,
        buckets: int,
        labels: Tensor,
    ) -> WordDataset:
        """The words of texts, or of rows of tokens, as ``vocabulary`` cuts them."""
        found: dict[str, int] = {}
        cut = vocabulary.split(rows)
        values = [found.setdefault(word, len(found)) for row in cut for word in row]
        offsets = np.cumsum([0, *map(len, cut)], dtype=np.int64)
        bags = [ngrams(word, buckets) for word in found]
        return cls(
            torch.tensor(values, dtype=torch.int64),
            torch.from_numpy(offsets),
            labels,
            torch.tensor([vocabulary.id_of(word) for word in found], dtype=torch.int64),
            Ragged.from_lengths(
                torch.tensor([gram for bag in bags for gram in bag], dtype=torch.int64),
                [len(bag) for bag in bags],
            ),
        )

    def collate(self, items: Sequence[Any]) -> tuple[Ragged, Ragged, Tensor]:
        """Ids, n-grams and labels of the items of a batch."""
        words, labels = collate_ragged(items)
        return words.with_values(self.ids[words.values]), self.ngrams[words.values], labels
