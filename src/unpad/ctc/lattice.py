"""Where every state of every row lies: the index arithmetic of the forward-backward recursion.

A row of n labels is a chain of 2n + 2 states: a start, then a blank before, between and after the
labels. Chains stand end to end, the row with the most steps first, so that the states of the rows
that are still live at a step are a prefix: work follows the sum over rows of length times labels.

The backward recursion is the forward one on the reversed row. A row's reversed chain stands beside
its chain, and one loop over the steps does both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unpad.ragged import Ragged
from unpad.ragged.lengths import offsets_of, rows_of

MARGIN = 2
"""Cells before the states of a step: the first states' neighbours, which are never reached."""


@dataclass(frozen=True)
class Lattice:
    """The chains of a batch, N cells for all steps.

    Attributes:
        sizes: cells of each step, margin included; entry 0 is the start, before the first step.
        starts: cells [K] of the start states, at entry 0.
        ends: cells [B] where each row ends: its last blank, which follows its last label.
        skip: [states of entry 0]; 0 where a state may be entered from the one before the last,
            else -inf.
        stay: the same for staying in a state; None: everywhere.
        cells: [M], each state of each step.
        mirrored: [M], the cell that the reversed chain has for it; None without reversed chains.
        classes: [M], its place in the log probabilities [T, C] flattened; T * C for start states.
        rows: [M], its row.
    """

    sizes: list[int]
    starts: Tensor
    ends: Tensor
    skip: Tensor
    stay: Tensor | None
    cells: Tensor
    mirrored: Tensor | None
    classes: Tensor
    rows: Tensor


@dataclass(frozen=True)
class _Chains:
    """What each state of the (unreversed) chains is; K states, in the order of `order`."""

    order: Tensor
    offsets: Tensor
    row: Tensor
    place: Tensor
    label: Tensor
    is_label: Tensor
    enters: Tensor
    leaves: Tensor


def build(
    logits: Ragged, labels: Ragged, blank: int, *, reversed_too: bool, merge_repeated: bool
) -> Lattice:
    """Lay out the chains of a batch.

    Args:
        logits: [T, C].
        labels: int64 on the CPU, without blanks.
        blank: the class of the blank.
        reversed_too: whether the gradient is wanted.
        merge_repeated: False: a label lasts one step, and equal labels need no blank between.
    """
    device = logits.device
    chains = _chains(logits, labels, blank, merge_repeated)
    lengths = logits.lengths[chains.order]
    copies = 2 if reversed_too else 1
    column = copies * chains.offsets[chains.row] + chains.place
    widths = chains.offsets.diff()[chains.row]
    turned = torch.where(chains.place > 0, widths - chains.place, 0)
    mirror = column - chains.place + widths + turned
    live = _live_states(lengths, chains.offsets)
    sizes = MARGIN + copies * torch.cat([chains.offsets[-1:], live])
    begins = offsets_of(sizes)
    step, state = _elements(live, device)
    begins_there = begins.to(device)
    per_state = torch.stack([column + MARGIN, mirror + MARGIN, *_addresses(logits, chains)])
    lengths_here, rows = lengths[chains.row], chains.order[chains.row]
    own, back, first, stride, length, row = (
        table.to(device).index_select(0, state) for table in (*per_state, lengths_here, rows)
    )
    back += begins_there.index_select(0, length.sub_(step))
    columns = torch.stack([column, mirror][:copies])
    entered = torch.stack([chains.enters, chains.leaves])
    stays = (~chains.is_label).expand_as(columns)
    return Lattice(
        sizes=sizes.tolist(),
        starts=(MARGIN + columns[:, chains.place == 0].flatten()).to(device),
        ends=_ends(begins[lengths] + MARGIN - 1 + copies * chains.offsets[:-1], chains).to(device),
        skip=_costs(columns, entered[:copies]).to(device),
        stay=None if merge_repeated else _costs(columns, stays).to(device),
        cells=own.add_(begins_there[1:].index_select(0, step)),
        mirrored=back if reversed_too else None,
        classes=first.add_(stride.mul_(step)),
        rows=row,
    )


def _chains(logits: Ragged, labels: Ragged, blank: int, merge_repeated: bool) -> _Chains:
    order = logits.lengths.argsort(descending=True, stable=True)
    offsets = offsets_of(2 * labels.lengths[order] + 2)
    row = rows_of(offsets)
    place = torch.arange(int(offsets[-1]), device="cpu") - offsets[row]
    is_label = (place > 0) & (place % 2 == 0)
    label = torch.full_like(place, blank)
    number = labels.offsets[:-1][order][row] + place // 2 - 1
    label[is_label] = labels.values[number[is_label]]
    # From label to label, past the blank between; the first one is entered from the start.
    differs = (label != label.roll(2)) | (place == 2) | (not merge_repeated)
    last = place == offsets.diff()[row] - 2
    return _Chains(
        order=order,
        offsets=offsets,
        row=row,
        place=place,
        label=label,
        is_label=is_label,
        enters=is_label & differs,
        leaves=is_label & (last | differs.roll(-2)),
    )


def _live_states(lengths: Tensor, offsets: Tensor) -> Tensor:
    """Return how many states are live at each step; lengths [B] descend."""
    steps = torch.arange(int(lengths[0]) if len(lengths) else 0, device="cpu")
    rows = len(lengths) - torch.searchsorted(lengths.flip(0), steps, right=True)
    return offsets[rows]


def _elements(live: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the step and the state of each of the M states of all steps."""
    offsets = offsets_of(live)
    total = int(offsets[-1])
    steps = torch.arange(len(live), device=device)
    step = torch.repeat_interleave(steps, live.to(device), output_size=total)
    state = torch.arange(total, device=device).sub_(offsets.to(device).index_select(0, step))
    return step, state


def _addresses(logits: Ragged, chains: _Chains) -> tuple[Tensor, Tensor]:
    """Return each state's class at its row's first step, and how far apart steps are."""
    classes = logits.feature_shape[0]
    starts = logits.offsets[:-1][chains.order][chains.row]
    is_start = chains.place == 0
    first = torch.where(is_start, logits.num_tokens * classes, starts * classes + chains.label)
    return first, torch.where(is_start, 0, classes)


def _ends(begins: Tensor, chains: _Chains) -> Tensor:
    """Return the last cell of each chain, in the order of the batch."""
    ends = torch.empty_like(begins)
    ends[chains.order] = begins + chains.offsets.diff()
    return ends


def _costs(columns: Tensor, allowed: Tensor) -> Tensor:
    """Return 0 for the states that are allowed, -inf for the others: [states of entry 0]."""
    costs = torch.full((columns.numel(),), -torch.inf, device="cpu")
    costs[columns[allowed]] = 0
    return costs
