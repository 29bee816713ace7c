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
    """The tokens of some sequences, end to end.

    Attributes:
        sequences: int64 [b], those that have a token in it.
        offsets: int64 [b + 1] on the CPU, of the stretch itself.
        tokens: int64 [t], where its tokens stand in the batch; a slice where they stand side by
            side.
    """

    sequences: Tensor
    offsets: Tensor
    tokens: Tensor | slice

    def tokens_of(self, values: Tensor, allocate: Alloc | None = None) -> Tensor:
        """Return the stretch's rows of values [T, width]; a view where they stand side by side.

        ``allocate(rows, width, like)`` gives the memory where there is need of it.
        """
        if isinstance(self.tokens, slice):
            return values[self.tokens]
        if allocate is None:
            return values.index_select(0, self.tokens)
        rows = allocate(len(self.tokens), values.shape[1], values)
        return torch.index_select(values, 0, self.tokens, out=rows)

    def token_numbers(self) -> Tensor:
        """Return where its tokens stand in the batch, int64 [t]."""
        if isinstance(self.tokens, slice):
            return torch.arange(self.tokens.start, self.tokens.stop, device=self.sequences.device)
        return self.tokens

    def set_tokens(self, values: Tensor, rows: Tensor) -> None:
        """Write the stretch's rows of values [T, width]."""
        if isinstance(self.tokens, slice):
            values[self.tokens] = rows
        else:
            values.index_copy_(0, self.tokens, rows)

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


class Stretches:
    """All stretches of a batch that has a token, in the order of reading.

    Where everything stands is found at once, by a few operations on all tokens: between two calls
    of an engine, with cold caches, a dozen small ones took 4 % of the time of a training step.

    Args:
        offsets: int64 [B + 1] on the CPU.
        steps: how many steps of a sequence a stretch has.
        reverse: sequences are read from their ends.
        device: of the values, and so of the indices into them.

    >>> cut = Stretches(torch.tensor([0, 1, 4, 4]), 2)  # lengths 1, 3, 0
    >>> [cut.at(number).tokens.tolist() for number in range(len(cut) - 1)], cut.at(1).tokens
    ([[0, 1, 2]], slice(3, 4, None))
    >>> Stretches(torch.tensor([0, 1, 4, 4]), 2, reverse=True).at(0).tokens
    tensor([0, 2, 3])
    """

    def __init__(
        self,
        offsets: Tensor,
        steps: int,
        *,
        reverse: bool = False,
        device: torch.device | None = None,
    ) -> None:
        lengths = offsets.diff()
        # A piece is the part of one sequence in one stretch.
        first_piece = offsets_of((lengths + (steps - 1)).div(steps, rounding_mode="floor"))
        sequence = spread(torch.arange(len(lengths), device="cpu"), first_piece)
        number = torch.arange(len(sequence), device="cpu") - first_piece[sequence]
        number, order = number.sort(stable=True)
        sequence = sequence[order]
        done = number * steps
        counts = (lengths[sequence] - done).clamp_(max=steps)
        begins = offsets[sequence + 1] - done - counts if reverse else offsets[sequence] + done
        self._places = offsets_of(counts)
        self._pieces = [0, *number.bincount().cumsum(0).tolist()]
        self._ends = self._places[self._pieces].tolist()
        self._firsts = begins[self._pieces[:-1]].tolist()
        self._sequences = sequence.to(device)
        self._tokens = ranges(begins, self._places).to(device)

    def __len__(self) -> int:
        return len(self._pieces) - 1

    @property
    def most_tokens(self) -> int:
        """How many tokens the longest stretch has: the first, where all sequences are."""
        return self._ends[1]

    def at(self, number: int) -> Stretch:
        """Return a stretch by its number."""
        first, last = self._pieces[number : number + 2]
        begin, end = self._ends[number : number + 2]
        tokens: Tensor | slice = self._tokens[begin:end]
        if last == first + 1:
            tokens = slice(self._firsts[number], self._firsts[number] + end - begin)
        offsets = self._places[first : last + 1] - begin
        return Stretch(self._sequences[first:last], offsets, tokens)
