"""Stretches of steps: a ragged batch cut across time, each part a ragged batch of its own.

Stretch k has the steps [k * steps, (k + 1) * steps) of every sequence that reaches so far, counted
from the end where sequences are read from it. Run one after the other with the states carried on,
the stretches give what the whole batch gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unpad.ragged.lengths import offsets_of, ranges, spread

Alloc = Callable[[int, int, Tensor], Tensor]


@dataclass(frozen=True)
class Stretch:
    """Parts of some sequences.

    Attributes:
        sequences: int64 [b], those that have a token in it.
        offsets: int64 [b + 1] on the CPU, of the stretch itself.
        begins: int64 [b] on the CPU, where the parts stand in the batch.
    """

    sequences: Tensor
    offsets: Tensor
    begins: Tensor

    def __len__(self) -> int:
        """How many tokens it has."""
        return int(self.offsets[-1])

    def tokens(self) -> Tensor:
        """Return where its tokens stand in the batch, int64 [t] on the CPU."""
        return ranges(self.begins, self.offsets)

    def tokens_of(self, values: Tensor) -> Tensor:
        """Return the rows of its tokens in values [T, width]."""
        return values.index_select(0, self.tokens().to(values.device))

    def sequences_of(self, values: Tensor) -> Tensor:
        """Return the rows of its sequences in values [B, width]: the values, where it has all."""
        return values if len(self.sequences) == len(values) else values[self.sequences]

    def with_sequences(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return values [B, width] with these rows: the rows, or the values, written in place."""
        if len(rows) == len(values):
            return rows
        return values.index_copy_(0, self.sequences, rows)


class Workspace:
    """Memory for the largest stretch, which all of them use in turn: an allocator for engines.

    Of its own, since a pool keeps a block for every size that a stretch ever had.

    >>> work = Workspace(lambda rows, width, like: like.new_empty(rows, width), 10)
    >>> first = work(7, 3, torch.empty(0))
    >>> work.give_back(first)
    >>> work(10, 3, first).data_ptr() == first.data_ptr()
    True
    """

    def __init__(self, allocate: Alloc, rows: int) -> None:
        self._allocate, self._rows = allocate, rows
        self._free: dict[int, list[Tensor]] = {}
        self._taken: dict[int, Tensor] = {}

    def __call__(self, rows: int, width: int, like: Tensor) -> Tensor:
        """Return uncleared memory [rows, width] that is not in use."""
        free = self._free.setdefault(width, [])
        block = free.pop() if free else self._allocate(self._rows, width, like)
        if width:
            self._taken[block.data_ptr()] = block
        return block[:rows]

    def give_back(self, *tensors: Tensor) -> None:
        """Nobody reads these any more; without any, nothing at all."""
        places = [t.data_ptr() for t in tensors] if tensors else list(self._taken)
        for block in [self._taken.pop(place) for place in places if place in self._taken]:
            self._free[block.shape[1]].append(block)


def cut(
    offsets: Tensor, steps: int, *, reverse: bool = False, device: torch.device | None = None
) -> list[Stretch]:
    """Return all stretches of a batch that has a token, in the order of reading.

    All at once, before the first is run: what Python does between two calls of an engine it does
    with cold caches, and the slices alone took 2 % of the time of a training step.

    Args:
        offsets: int64 [B + 1] on the CPU.
        steps: how many steps of a sequence a stretch has.
        reverse: sequences are read from their ends.
        device: of the values, and so of the indices of sequences.

    >>> [part.tokens().tolist() for part in cut(torch.tensor([0, 1, 4, 4]), 2)]  # lengths 1, 3, 0
    [[0, 1, 2], [3]]
    >>> cut(torch.tensor([0, 1, 4, 4]), 2, reverse=True)[0].tokens()
    tensor([0, 2, 3])
    """
    lengths = offsets.diff()
    # A piece is the part of one sequence in one stretch.
    first_piece = offsets_of((lengths + (steps - 1)).div(steps, rounding_mode="floor"))
    sequence = spread(torch.arange(len(lengths), device="cpu"), first_piece)
    number = torch.arange(len(sequence), device="cpu") - first_piece[sequence]
    number, order = number.sort(stable=True)
    sequence = sequence[order]
    done = number * steps
    counts = (lengths[sequence] - done).clamp_(max=steps)
    ends = offsets[sequence + 1] - done
    begins = ends - counts if reverse else offsets[sequence] + done
    pieces = number.bincount().tolist()
    parts = zip(
        sequence.to(device).split(pieces), counts.split(pieces), begins.split(pieces), strict=True
    )
    return [Stretch(own, offsets_of(count), begin) for own, count, begin in parts]
