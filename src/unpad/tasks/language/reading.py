"""Reading texts with a trained network: the log probability of every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unpad.data.text_vocabulary import TextVocabulary
from unpad.ragged import Ragged
from unpad.tasks.language.batches import shifted
from unpad.tasks.language.network import LanguageNetwork, State
from unpad.tasks.language.perplexity import perplexity

WINDOW = 2048
"""Tokens read at once: a text of any length takes the same memory."""


class Reader:
    """Reads texts in order and gives, for each, its ids and their log probabilities [T_i] each.

    A "stream" has one state, which goes on from text to text and from call to call: reading in
    pieces gives the numbers of reading at once. "lines" begin from zeros, each by itself.
    """

    def __init__(
        self, network: LanguageNetwork, vocabulary: TextVocabulary, sequences: str
    ) -> None:
        self.network, self.vocabulary, self.sequences = network.eval(), vocabulary, sequences
        self.state: State | None = None

    def read(self, texts: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids and log probabilities of each text, its ``<eos>`` last."""
        found, offsets = self.vocabulary.encode(texts) if texts else ([], [0])
        ids, bounds = torch.as_tensor(found, dtype=torch.int64), torch.as_tensor(offsets)
        read = self._stream if self.sequences == "stream" else self._lines
        for place, losses in read(ids, bounds):
            yield ids[place], -losses

    def _stream(self, ids: Tensor, bounds: Tensor) -> Iterator[tuple[slice, Tensor]]:
        inputs = shifted(ids, self.vocabulary.end)
        losses = ids.new_empty(0, dtype=torch.float32)
        read = 0  # tokens
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            parts = [losses]
            while read < end:
                window = slice(read, min(read + WINDOW, len(ids)))
                rows = Ragged.from_lengths(inputs[window], [window.stop - window.start])
                found, self.state = self._losses(rows, ids[window], self.state)
                parts.append(found)
                read = window.stop
            losses = torch.cat(parts)
            yield slice(begin, end), losses[: end - begin]
            losses = losses[end - begin :]

    def _lines(self, ids: Tensor, bounds: Tensor) -> Iterator[tuple[slice, Tensor]]:
        inputs, first = Ragged(shifted(ids, self.vocabulary.end), bounds), 0
        ends = bounds.tolist()
        while first < len(ends) - 1:
            last = first + 1
            while last < len(ends) - 1 and ends[last + 1] - ends[first] <= WINDOW:
                last += 1
            losses, _ = self._losses(inputs[first:last], ids[ends[first] : ends[last]], None)
            for line in range(first, last):
                place = slice(ends[line], ends[line + 1])
                yield place, losses[place.start - ends[first] : place.stop - ends[first]]
            first = last

    @torch.no_grad()
    def _losses(self, ids: Ragged, targets: Tensor, state: State | None) -> tuple[Tensor, State]:
        device = self.network.embedding.weight.device
        found, after = self.network(ids.to(device), targets.to(device), state, reduction="none")
        return found.cpu(), after


@dataclass(frozen=True)
class TextScores:
    """How a language model does on a text: sums in nats over all tokens, ``<eos>`` included."""

    texts: int
    tokens: int
    unknown: int
    characters: int
    log_probability: float

    @property
    def loss(self) -> float:
        """Nats per token."""
        return -self.log_probability / self.tokens if self.tokens else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        each = -self.log_probability / self.characters if self.characters else float("nan")
        return {
            "perplexity": perplexity(self.loss),
            "loss": self.loss,
            "nats_per_character": each,
            "log_probability": self.log_probability,
            "tokens": self.tokens,
            "unknown": self.unknown,
            "characters": self.characters,
            "texts": self.texts,
        }


def evaluate_texts(
    network: LanguageNetwork, vocabulary: TextVocabulary, sequences: str, texts: Sequence[Any]
) -> TextScores:
    """Read texts as `Reader` does and sum up. A character count has a line end for each text."""
    reader = Reader(network, vocabulary, sequences)
    tokens = unknown = 0
    total = 0.0
    for ids, found in reader.read(texts):
        tokens += len(ids)
        unknown += int((ids == 0).sum())
        total += float(found.double().sum())
    characters = sum(_characters(text) + 1 for text in texts)
    return TextScores(len(texts), tokens, unknown, characters, total)


def _characters(text: Any) -> int:
    return len(text) if isinstance(text, str) else len(" ".join(text))
