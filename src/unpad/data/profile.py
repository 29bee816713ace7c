"""What the lengths of a data set are, and what padding them would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unpad.data.sampler import TokenBudgetBatchSampler
from unpad.errors import ArgumentError

BATCH_SIZES = (16, 32, 64, 128)
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_ORDERS = 5  # random orders that the shuffled figure is the mean of
_BINS = 20


@dataclass(frozen=True)
class PaddingShare:
    """Share of a padded run's steps that is padding, at one batch size, for three ways to batch.

    ``shuffled``: fixed batch size, random order. ``sorted``: fixed batch size, sorted by length.
    ``token_budget``: `TokenBudgetBatchSampler` in buckets, with as many tokens a batch as the
    shuffled batches have on average.
    """

    batch_size: int
    shuffled: float
    sorted: float
    token_budget: float


@dataclass(frozen=True)
class LengthProfile:
    """Lengths of N sequences: count, tokens, quantiles, histogram and padding shares.

    ``quantiles`` maps the share to the length; ``histogram`` holds (from, to, sequences), both ends
    included; ``waste`` is how many times as many steps a padded, shuffled run at batch 32 computes.
    """

    sequences: int
    empty: int
    tokens: int
    mean: float
    quantiles: dict[float, int]
    histogram: list[tuple[int, int, int]]
    padding: list[PaddingShare]
    waste: float

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain JSON data; quantiles are keyed "p0" to "p100"."""
        plain = asdict(self)
        plain["histogram"] = [list(bin_) for bin_ in self.histogram]
        plain["quantiles"] = {f"p{100 * q:g}": n for q, n in self.quantiles.items()}
        return plain


def profile_lengths(
    lengths: Sequence[int] | npt.NDArray[np.integer[Any]] | Any,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
) -> LengthProfile:
    """Profile lengths [N] (at least one sequence; a length of 0 is ordinary).

    >>> profile = profile_lengths([1, 3], batch_sizes=[2])
    >>> profile.padding[0].shuffled  # two rows of 3 steps hold 4 tokens
    0.333...
    """
    array = np.asarray(lengths)
    if array.ndim != 1 or len(array) == 0:
        raise ArgumentError(
            "lengths", array, "at least one length, [N]", "give a data set with rows"
        )
    array = array.astype(np.int64)
    shares = [_shares(array, size, seed) for size in batch_sizes]
    reference = _padding(_shuffled(array, 32, seed))
    return LengthProfile(
        sequences=len(array),
        empty=int((array == 0).sum()),
        tokens=int(array.sum()),
        mean=float(array.mean()),
        quantiles={q: int(np.quantile(array, q, method="nearest")) for q in QUANTILES},
        histogram=_histogram(array),
        padding=shares,
        waste=1 / (1 - reference) if reference < 1 else float("inf"),
    )


def padding_share(batches: Sequence[npt.NDArray[np.int64]]) -> float:
    """1 - sum of lengths / sum over batches of (rows * longest row); 0 where nothing is padded."""
    return _padding(list(batches))


def _padding(batches: list[npt.NDArray[np.int64]]) -> float:
    padded = sum(len(b) * int(b.max()) for b in batches if len(b))
    return 1 - sum(int(b.sum()) for b in batches) / padded if padded else 0.0


def _chunks(lengths: npt.NDArray[np.int64], size: int) -> list[npt.NDArray[np.int64]]:
    return [lengths[i : i + size] for i in range(0, len(lengths), size)]


def _shuffled(lengths: npt.NDArray[np.int64], size: int, seed: int) -> list[npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    orders = [random.permutation(lengths) for _ in range(_ORDERS)]
    return [batch for order in orders for batch in _chunks(order, size)]


def _shares(lengths: npt.NDArray[np.int64], size: int, seed: int) -> PaddingShare:
    budget = max(1, round(size * float(lengths.mean())))
    sampler = TokenBudgetBatchSampler(lengths, budget, bucketed=True, seed=seed)
    return PaddingShare(
        batch_size=size,
        shuffled=_padding(_shuffled(lengths, size, seed)),
        sorted=_padding(_chunks(np.sort(lengths), size)),
        token_budget=_padding([lengths[batch] for batch in sampler]),
    )


def _histogram(lengths: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    low, high = int(lengths.min()), int(lengths.max())
    width = max(1, -(-(high - low + 1) // _BINS))
    counts = np.bincount((lengths - low) // width)
    starts = low + width * np.arange(len(counts))
    return [
        (int(s), int(min(s + width - 1, high)), int(n)) for s, n in zip(starts, counts, strict=True)
    ]
