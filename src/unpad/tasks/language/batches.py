"""Batches of a text: windows of a stream with its rows side by side, or lines by token budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from unpad.data import TokenBudgetBatchSampler
from unpad.ragged import Ragged
from unpad.ragged.lengths import offsets_of, ranges

Batch = tuple[Ragged, Tensor]
"""The ids read, ragged [T], and the ids that follow [T]."""


class StreamBatches:
    """Windows of a stream: each batch goes on where the one before it ended, row by row.

    The stream is cut into ``rows`` pieces whose lengths differ by one at most, and all are read at
    once, ``steps`` tokens at a time: no token is left out, none is read twice, nothing is padded.
    ``start`` is the token before the first, ``most`` the tokens that a batch has at most.

    >>> windows = StreamBatches(torch.tensor([5, 6, 7, 8, 9]), start=1, rows=2, steps=2)
    >>> [(ids.lengths.tolist(), ids.values.tolist(), targets.tolist()) for ids, targets in windows]
    [([2, 2], [1, 5, 7, 8], [5, 6, 8, 9]), ([1, 0], [6], [7])]
    """

    carried = True

    def __init__(self, ids: Tensor, start: int, rows: int, steps: int) -> None:
        rows = max(1, min(rows, len(ids)))
        self.inputs, self.targets, self.steps = shifted(ids, start), ids, steps
        self.most = rows * steps
        short, longer = divmod(len(ids), rows)
        self.lengths = torch.full((rows,), short)
        self.lengths[:longer] += 1
        self.starts = self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return (int(self.lengths.max()) + self.steps - 1) // self.steps

    def __iter__(self) -> Iterator[Batch]:
        whole = int(self.lengths.min()) // self.steps  # windows that no row ends in
        places = self._places(0)
        for window in range(len(self)):
            if window >= whole:
                places = self._places(window)
            at = places.values + window * self.steps
            yield places.with_values(self.inputs[at]), self.targets[at]

    def _places(self, window: int) -> Ragged:
        """Where a window's tokens stand in the stream, less the steps before it."""
        offsets = offsets_of((self.lengths - window * self.steps).clamp(0, self.steps))
        return Ragged(ranges(self.starts, offsets), offsets)


class LineBatches:
    """Whole lines, mixed anew in every epoch, at most ``tokens`` tokens and ``lines`` lines each.

    ``start`` is the token before each line: a line ends with it too. Without a ``seed`` the lines
    keep their order.
    """

    carried = False

    def __init__(
        self,
        ids: Tensor,
        offsets: Tensor,
        start: int,
        *,
        tokens: int,
        lines: int,
        seed: int | None,
    ) -> None:
        self.inputs, self.targets = Ragged(shifted(ids, start), offsets), Ragged(ids, offsets)
        self.most = tokens
        self.budget = TokenBudgetBatchSampler(
            offsets.diff().numpy(), tokens, lines, shuffle=seed is not None, seed=seed or 0
        )

    def __len__(self) -> int:
        return len(self.budget)

    def __iter__(self) -> Iterator[Batch]:
        for rows in self.budget:
            yield self.inputs[rows], self.targets[rows].values


class Several:
    """Batches as lists of ``count``; the last one has what is left.

    >>> windows = StreamBatches(torch.tensor([5, 6, 7, 8, 9]), start=1, rows=1, steps=2)
    >>> [[targets.tolist() for _, targets in some] for some in Several(windows, 2)]
    [[[5, 6], [7, 8]], [[9]]]
    """

    def __init__(self, batches: StreamBatches | LineBatches, count: int) -> None:
        self.batches, self.count = batches, count

    def __len__(self) -> int:
        return (len(self.batches) + self.count - 1) // self.count

    def __iter__(self) -> Iterator[list[Batch]]:
        rest = iter(self.batches)
        while some := list(itertools.islice(rest, self.count)):
            yield some


def shifted(ids: Tensor, start: int) -> Tensor:
    """The token before each: of a line's first one the end of the line before, which is ``start``.

    >>> shifted(torch.tensor([5, 1, 6, 1]), 1).tolist()
    [1, 5, 1, 6]
    """
    return torch.cat([ids.new_full((min(1, len(ids)),), start), ids[:-1]])
