"""The best class of every step, repeats merged and blanks left out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from unpad.cells.arguments import check_flag
from unpad.ctc.arguments import check_blank, check_logits, refuse_nan
from unpad.jit import opaque
from unpad.ragged import Ragged
from unpad.ragged.lengths import offsets_of, rows_of


@opaque
@torch.no_grad()
def ctc_greedy_decode(
    logits: Any, *, blank: int = 0, merge_repeated: bool = True
) -> tuple[Ragged, Tensor]:
    """Decode by the best path: the most probable class of every step.

    That path is the likeliest one; the labels that it spells need not be (`ctc_beam_decode`).

    Args:
        logits: Ragged [T, C], or a list of tensors [length, C].
        blank: the class that stands for no label.
        merge_repeated: whether neighbouring steps of one class are one label.

    Returns:
        The labels of each row, a Ragged of int64 on the logits' device; and the log probability of
        the best path, [B]. A row of length 0 has no labels and log probability 0.

    Raises:
        ArgumentError, ArgumentTypeError: as for `ctc_loss`.

    Of equal classes the first one wins. There is no gradient.

    >>> logits = Ragged.from_list([torch.tensor([[0., 9, 0], [0, 9, 0], [9, 0, 0], [0, 0, 9]])])
    >>> labels, log_probability = ctc_greedy_decode(logits)
    >>> labels.to_list()
    [tensor([1, 2])]
    """
    ragged = check_logits(logits)
    blank = check_blank(blank, ragged.feature_shape[0])
    check_flag("merge_repeated", merge_repeated)
    log_probabilities = F.log_softmax(ragged.values, -1)
    refuse_nan(log_probabilities, ragged)
    best = ragged.with_values(log_probabilities.amax(-1)).sum()
    return best_path(ragged, blank, merge_repeated), best


def best_path(logits: Ragged, blank: int, merge_repeated: bool) -> Ragged:
    """Return the labels that each row's best class a step spells."""
    best = logits.values.argmax(-1)
    kept = best != blank
    if merge_repeated:
        kept &= ~repeats(logits.with_values(best))
    return keep(logits.with_values(best), kept)


def repeats(labels: Ragged) -> Tensor:
    """Say of each label [T] whether it equals the one before it in its row."""
    found = torch.zeros_like(labels.values, dtype=torch.bool)
    rows = rows_of(labels.offsets).to(labels.device)
    found[1:] = (labels.values[1:] == labels.values[:-1]) & (rows[1:] == rows[:-1])
    return found


def keep(labels: Ragged, kept: Tensor) -> Ragged:
    """Return the labels that are kept [T], each in its row."""
    before = torch.zeros(len(kept) + 1, dtype=torch.int64, device="cpu")
    before[1:] = kept.cpu().cumsum(0)
    return Ragged(labels.values[kept], offsets_of(before[labels.offsets].diff()))
