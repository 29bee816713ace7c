"""Where every state of every row lies: the index arithmetic of the forward-backward recursion.

A row of n labels is a chain of 2n + 2 states: a start, then a blank before, between and after the
labels. Chains stand end to end, the row with the most steps first, so that the states of the rows
that are still live at a step are a prefix: work follows the sum over rows of length times labels.

The backward recursion is the forward one on the reversed row. A row's reversed chain stands beside
its chain, and one loop over the steps does both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unpad.ragged import Ragged
from unpad.ragged.lengths import offsets_of, rows_of

MARGIN = 2
"""Cells before the states of a step: the first states' neighbours, which are never reached."""


_WINDOW = 1 << 15
"""Cells that the gradient takes at a time: their indices stay in the second-level cache."""


@dataclass(frozen=True)
class Lattice:
    """The chains of a batch, N cells for all steps; K states in the chains, reversed ones apart.

    Attributes:
        sizes: cells of each step, margin included; entry 0 is the start, before the first step.
        starts: cells of the start states, at entry 0.
        ends: cells [B] where each row ends: its last blank, which follows its last label.
        skip: [states of entry 0]; 0 where a state may be entered from the one before the last,
            else -inf.
        stay: the same for staying in a state; None: everywhere.
        address: [states of entry 0], where each state's class stands in the log probabilities
            [T, C], flattened, at the first step; T * C for start states.
        stride: [states of entry 0], how far it is to the next step.
        begins: the first cell of each entry.
        live: how many of the K states are live at each step.
        own: [K], a state's place in an entry.
        mirror: [K], its reversed twin's.
        lengths: [K], its row's number of steps.
        rows: [K], its row.
    """

    sizes: list[int]
    starts: Tensor
    ends: Tensor
    skip: Tensor
    stay: Tensor | None
    address: Tensor
    stride: Tensor
    begins: Tensor
    live: Tensor
    own: Tensor
    mirror: Tensor
    lengths: Tensor
    rows: Tensor

    def windows(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Give for each state of some steps: its cell, its twin's, its class's place, its row."""
        device = self.begins.device
        offsets = offsets_of(self.live)
        marks = torch.arange(0, int(offsets[-1]), _WINDOW, device="cpu")
        found = torch.searchsorted(offsets, marks).tolist()
        for begin, end in itertools.pairwise(sorted({*found, len(self.live)})):
            live = self.live[begin:end]
            total = int(offsets[end] - offsets[begin])
            numbers = torch.arange(begin, end, device=device)
            step = torch.repeat_interleave(numbers, live.to(device), output_size=total)
            before = offsets[begin:end].to(device) - offsets[begin]
            state = torch.arange(total, device=device)
            state.sub_(before.index_select(0, step - begin))
            own, mirror, length, row = (
                table.index_select(0, state)
                for table in (self.own, self.mirror, self.lengths, self.rows)
            )
            classes = self.stride.index_select(0, own).mul_(step)
            classes.add_(self.address.index_select(0, own))
            mirror.add_(self.begins.index_select(0, length.sub_(step)))
            own.add_(self.begins[1:].index_select(0, step))
            yield own.add_(MARGIN), mirror.add_(MARGIN), classes, row


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
    own = copies * chains.offsets[chains.row] + chains.place
    widths = chains.offsets.diff()[chains.row]
    turned = torch.where(chains.place > 0, widths - chains.place, 0)
    mirror = own - chains.place + widths + turned
    live = _live_states(lengths, chains.offsets)
    sizes = MARGIN + copies * torch.cat([chains.offsets[-1:], live])
    begins = offsets_of(sizes)
    columns = torch.stack([own, mirror][:copies])
    entered = torch.stack([chains.enters, chains.leaves])
    stays = (~chains.is_label).expand_as(columns)
    address, stride = _addresses(logits, chains, columns)
    ends = _ends(begins[lengths] + MARGIN - 1 + copies * chains.offsets[:-1], chains)
    return Lattice(
        sizes=sizes.tolist(),
        starts=(MARGIN + columns[:, chains.place == 0].flatten()).to(device),
        ends=ends.to(device),
        skip=_costs(columns, entered[:copies]).to(device),
        stay=None if merge_repeated else _costs(columns, stays).to(device),
        address=address.to(device),
        stride=stride.to(device),
        begins=begins.to(device),
        live=live,
        own=own.to(device),
        mirror=mirror.to(device),
        lengths=lengths[chains.row].to(device),
        rows=chains.order[chains.row].to(device),
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


def _addresses(logits: Ragged, chains: _Chains, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return each state's class at its row's first step, the last one if reversed; and strides."""
    classes = logits.feature_shape[0]
    tokens = torch.stack([logits.offsets[:-1], logits.offsets[1:] - 1])[: len(columns)]
    first = tokens[:, chains.order][:, chains.row] * classes + chains.label
    is_start = chains.place == 0
    address = torch.empty(columns.numel(), dtype=torch.int64, device="cpu")
    stride = torch.empty_like(address)
    address[columns] = torch.where(is_start, logits.num_tokens * classes, first)
    ways = torch.tensor([[classes], [-classes]], device="cpu")[: len(columns)]
    stride[columns] = torch.where(is_start, 0, ways)
    return address, stride


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
