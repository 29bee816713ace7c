"""The order in which a loop over time reads a ragged batch: step by step, longest sequence first.

As in torch's PackedSequence, the sequences are sorted by length, so that the live ones are always
the first rows of a step and a step's rows lie side by side: one gather before the loop and one
after it, none inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepOrder:
    """Where every token stands in the loop.

    Attributes:
        sequences: int64 [B]; the sequence of each row of the loop, longest first.
        rows: int64 [B]; the row of each sequence; undoes ``sequences``.
        live: number of live rows at each step.
        tokens: int64 [T]; the token at each place of the loop.
        places: int64 [T]; the place of each token; undoes ``tokens``.
        sorted: whether ``sequences`` is the batch's own order.
        straight: whether ``tokens`` is the tokens' own order.
    """

    sequences: Tensor
    rows: Tensor
    live: list[int]
    tokens: Tensor
    places: Tensor
    sorted: bool
    straight: bool


def step_order(offsets: Tensor, *, reverse: bool = False) -> StepOrder:
    """The order of a batch with these offsets (int64 [B + 1], CPU).

    With ``reverse`` a sequence's last token is its first step.

    >>> order = step_order(torch.tensor([0, 1, 3, 3]))  # lengths 1, 2, 0
    >>> order.sequences.tolist(), order.live, order.tokens.tolist()
    ([1, 0, 2], [2, 1], [1, 0, 2])
    """
    lengths = offsets.diff()
    sequences = torch.argsort(lengths, descending=True, stable=True)
    rows = _inverse(sequences)
    live = _live_rows(lengths)
    step_starts = live.cumsum(0) - live
    owner = torch.repeat_interleave(_count(len(lengths)), lengths)
    step = _count(len(owner)) - offsets[owner]
    if reverse:
        step = lengths[owner] - 1 - step
    places = step_starts[step] + rows[owner]
    tokens = _inverse(places)
    return StepOrder(
        sequences, rows, live.tolist(), tokens, places, _is_identity(rows), _is_identity(places)
    )


def _live_rows(lengths: Tensor) -> Tensor:
    """int64 [steps]: how many sequences are longer than each step's number."""
    if lengths.numel() == 0:
        return lengths
    ends = torch.bincount(lengths, minlength=1)
    return len(lengths) - ends.cumsum(0)[:-1]


def _inverse(permutation: Tensor) -> Tensor:
    inverse = torch.empty_like(permutation)
    inverse[permutation] = _count(len(permutation))
    return inverse


def _is_identity(permutation: Tensor) -> bool:
    return bool(torch.equal(permutation, _count(len(permutation))))


def _count(number: int) -> Tensor:
    # On the CPU by name: the default device may be another.
    return torch.arange(number, device="cpu")
