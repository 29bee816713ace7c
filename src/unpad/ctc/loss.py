"""The loss: minus the log probability of the labels, summed over all alignments."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from unpad.cells.arguments import check_choice, check_flag
from unpad.ctc import lattice
from unpad.ctc.alignment import CHOICES, report, required_steps, too_few_steps
from unpad.ctc.arguments import check_blank, check_labels, check_logits, refuse_nan
from unpad.ctc.lattice import MARGIN, Lattice
from unpad.errors import UnpadError
from unpad.jit import opaque
from unpad.ragged import Ragged
from unpad.ragged.lengths import spread

REDUCTIONS = ("none", "sum", "mean")


@opaque
def ctc_loss(
    logits: Any,
    labels: Any,
    *,
    blank: int = 0,
    reduction: str = "mean",
    unalignable: str = "error",
    merge_repeated: bool = True,
) -> Tensor:
    """Connectionist temporal classification: labels for sequences without saying when.

    ``loss = -log Σ_paths Π_t softmax(logits_t)[path_t]`` over all paths, one class a step, that
    spell the row's labels once repeats are merged and then blanks left out.

    Args:
        logits: Ragged [T, C], or a list of tensors [length, C]: raw, since the softmax is taken
            here. float32 or float64; half precision is widened to float32.
        labels: a Ragged of integers, or a list with a row of integers for each sequence; 0 to
            C - 1, without the blank.
        blank: the class that stands for no label.
        reduction: "none" gives [B]; "sum"; "mean" over the rows that are not skipped (not divided
            by the number of labels, as torch does).
        unalignable: what becomes of a row whose labels no path spells, because it has too few
            steps (`ctc_unalignable`) or -inf in its logits: "error" names the row; "skip" gives it
            loss 0 and gradient 0, without reading it where it is too short; "warn" skips it with a
            RuntimeWarning that names the row.
        merge_repeated: False: every step that is no blank is a label of its own, so that equal
            neighbours need no blank between them.

    Returns:
        [B], or a scalar; of the logits' dtype. The recursion itself runs in float64.

    Raises:
        ArgumentError: a row that cannot be aligned, a label out of range, NaN in a row's logits:
            each with the row's number.
        ArgumentTypeError: logits or labels that are none.

    An empty row of labels costs minus the sum of the blank's log probabilities; with length 0 too,
    0. An empty batch has a sum and a mean of 0. The gradient is exact, that of the logits as given;
    a second derivative is refused.

    Source: Graves et al., "Connectionist temporal classification" (ICML 2006), equations 6 to 15.

    >>> logits = Ragged.from_list([torch.zeros(3, 4), torch.zeros(2, 4)])
    >>> ctc_loss(logits, [[1, 1], []], reduction="none")  # one path of 4 ** 3, one of 4 ** 2
    tensor([4.1589, 2.7726])
    """
    ragged = check_logits(logits)
    blank = check_blank(blank, ragged.feature_shape[0])
    check_choice("reduction", reduction, REDUCTIONS)
    check_choice("unalignable", unalignable, CHOICES)
    check_flag("merge_repeated", merge_repeated)
    targets = check_labels(labels, ragged, blank)
    losses, counted = row_losses(ragged, targets, blank, unalignable, merge_repeated)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(counted, 1)


def row_losses(
    logits: Ragged, labels: Ragged, blank: int, unalignable: str, merge_repeated: bool = True
) -> tuple[Tensor, int]:
    """Return the loss of each row [B], and how many rows could be aligned; all is checked."""
    required = required_steps(labels, merge_repeated=merge_repeated)
    fits = required <= logits.lengths
    short = (~fits).nonzero().flatten()
    if len(short):
        report(short, too_few_steps(int(short[0]), required, logits.lengths), unalignable)
        rows = fits.nonzero().flatten()
        some, counted = row_losses(logits[rows], labels[rows], blank, unalignable, merge_repeated)
        losses = logits.values.new_zeros(len(logits)).index_copy(0, rows.to(some.device), some)
        return losses, counted
    wanted = torch.is_grad_enabled() and logits.values.requires_grad
    losses = _RowLosses.apply(logits.values, logits, labels, blank, merge_repeated, wanted)
    impossible = losses.isinf()
    rows = impossible.nonzero().flatten().cpu()
    if len(rows):
        report(rows, "-inf in their logits leaves no path", unalignable)
        losses = torch.where(impossible, 0.0, losses)
    return losses, len(logits) - len(rows)


class _RowLosses(torch.autograd.Function):
    """The loss of each row; its gradient is worked out along with it, where one is wanted."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        logits: Ragged,
        labels: Ragged,
        blank: int,
        merge_repeated: bool,
        wanted: bool,
    ) -> Tensor:
        log_probabilities = F.log_softmax(values, -1)
        refuse_nan(log_probabilities, logits)
        chains = lattice.build(
            logits, labels, blank, reversed_too=wanted, merge_repeated=merge_repeated
        )
        # One more entry, -inf, for the start states, which emit nothing.
        flat = F.pad(log_probabilities.reshape(-1), (0, 1), value=-torch.inf)
        del log_probabilities
        reached = _recursion(chains, flat)
        total = torch.logaddexp(reached[chains.ends], reached[chains.ends - 1])
        if wanted:
            ctx.offsets = logits.offsets
            ctx.save_for_backward(values, _gradient(chains, reached, total, flat, values))
        return (0.0 - total).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        values, gradient = ctx.saved_tensors
        offsets = ctx.offsets.to(values.device)
        scaled = _Scaled.apply(spread(upstream[0], offsets), values, gradient)
        return (scaled, *[None] * 5)


class _Scaled(torch.autograd.Function):
    """The gradient times what comes from above; a second derivative is refused in words."""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, values: Tensor, gradient: Tensor) -> Tensor:
        del ctx, values
        return gradient * scale.unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        raise UnpadError(
            "ctc_loss has a first derivative alone: leave create_graph=True out, or keep the CTC "
            "loss out of what is differentiated twice"
        )


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _recursion(chains: Lattice, flat: Tensor) -> Tensor:
    """Return the log probability of reaching each cell, what the cell emits included: [N].

    A state is reached from itself, from the one before it, and, a label that differs from the label
    before it, from that label (Graves et al., equations 6 and 7).
    """
    wide = _wide(flat.device)
    reached = torch.full((sum(chains.sizes),), -torch.inf, dtype=wide, device=flat.device)
    reached[chains.starts] = 0.0
    steps = reached.split(chains.sizes)
    address, stride, skip = chains.address.clone(), chains.stride, chains.skip.to(wide)
    stay = None if chains.stay is None else chains.stay.to(wide)
    skipped, emitted = torch.empty_like(skip), flat.new_empty(skip.shape)
    for before, after in itertools.pairwise(steps):
        live = after.shape[0] - MARGIN
        into, own = after.narrow(0, MARGIN, live), before.narrow(0, MARGIN, live)
        if live != skip.shape[0]:
            address, stride, skip, skipped, emitted = (
                table.narrow(0, 0, live) for table in (address, stride, skip, skipped, emitted)
            )
        if stay is not None:
            own = own + stay.narrow(0, 0, live)
        torch.logaddexp(own, before.narrow(0, 1, live), out=into)
        torch.add(before.narrow(0, 0, live), skip, out=skipped)
        torch.index_select(flat, 0, address, out=emitted)
        torch.logaddexp(into, skipped, out=into).add_(emitted)
        address.add_(stride)
    return reached


def _gradient(
    chains: Lattice, reached: Tensor, total: Tensor, flat: Tensor, values: Tensor
) -> Tensor:
    """Return d loss / d logits [T, C]: softmax minus the probability of being in a class's states.

    Both directions count what a cell emits, so it is taken out once (equations 14 and 15).
    """
    softmax = flat.exp()
    for cells, mirrored, classes, rows in chains.windows():
        through = reached.index_select(0, cells).add_(reached.index_select(0, mirrored))
        never = through == -torch.inf
        through.sub_(flat.index_select(0, classes)).sub_(total.index_select(0, rows))
        posterior = through.exp_().masked_fill_(never, 0.0).to(flat.dtype)
        softmax.scatter_add_(0, classes, posterior.neg_())
    return softmax[:-1].view_as(values)
