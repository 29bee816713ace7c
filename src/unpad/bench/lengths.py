"""Batches of sequences whose lengths are spread like those that people have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Random = np.random.Generator
Lengths = npt.NDArray[np.int64]


def _log_normal(random: _Random, batch: int) -> Any:
    # As the paragraphs of War and Peace: median 27 words, mean 46.5, 95 % up to 156, at most 769.
    return np.clip(np.rint(random.lognormal(np.log(27), 1.04, batch)), 1, 769)


def _one_long(random: _Random, batch: int) -> Any:
    return np.append(random.integers(5, 16, batch - 1), 1000)


DISTRIBUTIONS: dict[str, Callable[[_Random, int], Any]] = {
    "equal 100": lambda random, batch: np.full(batch, 100),
    "uniform 10-100": lambda random, batch: random.integers(10, 101, batch),
    "log-normal, median 27": _log_normal,
    "one of 1,000, others 5-15": _one_long,
}


def draw(distribution: str, batch: int, seed: int = 0) -> list[int]:
    """Lengths of a batch, the same ones for a seed.

    >>> draw("equal 100", 2)
    [100, 100]
    >>> max(draw("one of 1,000, others 5-15", 32)), len(draw("uniform 10-100", 32))
    (1000, 32)
    """
    lengths = DISTRIBUTIONS[distribution](np.random.default_rng(seed), batch)
    return [int(length) for length in lengths]


def padding_gain(lengths: Sequence[int]) -> float:
    """Padded steps over tokens: the gain of leaving pads out where one costs what a token does.

    >>> padding_gain([1, 3])
    1.5
    """
    return max(lengths) * len(lengths) / max(1, sum(lengths))


def typical_batch(
    lengths: Sequence[int] | Lengths, batch: int, *, most: int | None = None, seed: int = 0
) -> list[int]:
    """The lengths of the batch of median padding gain, of a data set in shuffled batches.

    Args:
        lengths: of all sequences; empty ones are left out, since no peer takes them.
        batch: sequences in a batch; all where there are fewer.
        most: the most steps that the padded batch may have: it is halved until it does, down to one
            sequence. None sets no limit.
        seed: of the order.

    Returns:
        The lengths; none where no sequence has a token.

    >>> sorted(typical_batch([4, 0, 2], batch=8))
    [2, 4]
    """
    array = np.asarray(lengths, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(array[array > 0])
    size = min(batch, len(order))
    if size == 0:
        return []
    starts = range(0, len(order) - size + 1, size)
    batches = sorted((order[s : s + size].tolist() for s in starts), key=padding_gain)
    chosen = batches[len(batches) // 2]
    while most is not None and len(chosen) > 1 and len(chosen) * max(chosen) > most:
        chosen = chosen[: len(chosen) // 2]
    return chosen
