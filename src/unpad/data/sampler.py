"""Batches by a budget of tokens, for a plain `torch.utils.data.DataLoader`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from unpad.errors import ArgumentError, ArgumentTypeError


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of indices whose lengths sum to at most ``max_tokens``.

    ``lengths`` is [N], or [N, S] for S sides (source and target): a row then counts the sum of its
    sides. Rows are shuffled by ``seed`` and epoch and dealt out greedily, so a batch is about as
    full as the budget allows; only the cut loses a little (about half a mean length a batch), so
    twice the budget gives about half the batches. Nothing is ever truncated or dropped: a row
    longer than the budget makes a batch of its own, and a row of length 0 costs nothing
    (``max_sequences`` bounds those).

    ``bucketed`` puts rows of like length together (ties and cuts at random), then shuffles the
    batches: ragged batches need no buckets, padded ones and balanced ranks do.

    Call ``set_epoch`` before each epoch to mix anew. With ``world_size`` ranks every rank gets the
    same number of batches: the largest batches are halved until the count divides evenly; where
    there are too few rows for that, batches repeat.

    ``len`` is the number of batches of the current epoch, exactly; it can differ between epochs.

    >>> sampler = TokenBudgetBatchSampler([3, 1, 2, 2], max_tokens=4, shuffle=False)
    >>> list(sampler)
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[Any] | Any,
        max_tokens: int,
        max_sequences: int | None = None,
        *,
        shuffle: bool = True,
        bucketed: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.lengths = _checked_lengths(lengths)
        self.tokens = self.lengths.sum(axis=1)
        self.max_tokens = _at_least_one("max_tokens", max_tokens)
        self.max_sequences = (
            None if max_sequences is None else _at_least_one("max_sequences", max_sequences)
        )
        self.world_size = _at_least_one("world_size", world_size)
        if not 0 <= rank < world_size:
            allowed = f"0 to {world_size - 1} (world_size - 1)"
            raise ArgumentError("rank", rank, allowed, "pass this process's rank")
        self.shuffle, self.bucketed, self.seed, self.rank = shuffle, bucketed, seed, rank
        self.epoch = 0
        self._dealt: tuple[int, list[list[int]]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of epoch ``epoch``; the same seed and epoch give the same batches."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches()[self.rank :: self.world_size])

    def __len__(self) -> int:
        return len(self.batches()) // self.world_size

    def batches(self) -> list[list[int]]:
        """The batches of all ranks in this epoch: rank r takes number r, r + world_size, ..."""
        if self._dealt is None or self._dealt[0] != self.epoch:
            self._dealt = (self.epoch, self._deal())
        return self._dealt[1]

    def _deal(self) -> list[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        batches = self._cut(self._order(random), random)
        if self.shuffle and self.bucketed:
            batches = [batches[i] for i in random.permutation(len(batches))]
        return self._even(batches)

    def _order(self, random: np.random.Generator) -> npt.NDArray[np.int64]:
        count = len(self.tokens)
        order = random.permutation(count) if self.shuffle else np.arange(count)
        if self.bucketed:  # stable sorts: ties stay in random order
            for side in reversed(range(self.lengths.shape[1])):
                order = order[np.argsort(self.lengths[order, side], kind="stable")]
        return order

    def _cut(self, order: npt.NDArray[np.int64], random: np.random.Generator) -> list[list[int]]:
        batches: list[list[int]] = []
        batch: list[int] = []
        total, budget = 0, self.max_tokens
        if self.shuffle and self.bucketed:  # a first cut at random moves all cuts after it
            budget = int(random.integers(1, self.max_tokens + 1))
        for row, tokens in zip(order.tolist(), self.tokens[order].tolist(), strict=True):
            full = len(batch) == self.max_sequences
            if batch and (total + tokens > budget or full):
                batches.append(batch)
                batch, total, budget = [], 0, self.max_tokens
            batch.append(row)
            total += tokens
        return [*batches, batch] if batch else batches

    def _even(self, batches: list[list[int]]) -> list[list[int]]:
        missing = -len(batches) % self.world_size
        if not batches or not missing:
            return batches
        while missing and (largest := max(batches, key=len)) and len(largest) > 1:
            at, half = batches.index(largest), len(largest) // 2
            batches[at : at + 1] = [largest[:half], largest[half:]]
            missing -= 1
        return [*batches, *itertools.islice(itertools.cycle(list(batches)), missing)]


def _at_least_one(argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError(argument, value, "an integer >= 1", "pass an int")
    if value < 1:
        raise ArgumentError(argument, value, "an integer >= 1", "raise it")
    return value


def _checked_lengths(lengths: Any) -> npt.NDArray[np.int64]:
    array = np.asarray(lengths)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
        allowed = "integers, [N] or [N, sides]"
        raise ArgumentTypeError("lengths", array, allowed, "pass the number of tokens of each row")
    if array.size and array.min() < 0:
        raise ArgumentError("lengths", array, "integers >= 0", "use 0 for an empty sequence")
    sides = 1 if array.ndim == 1 else array.shape[1]
    return array.reshape(len(array), sides).astype(np.int64)
