"""The loss over tokens: what is ignored, what is reduced, and which engine takes it."""

from __future__ import annotations

import torch
from torch import Tensor

from unpad.engine.choose import chooses_native
from unpad.softmax import native, reference
from unpad.softmax.reference import Head


def reduced(
    hidden: Tensor,
    target: Tensor,
    head: Head,
    *,
    ignore_index: int,
    reduction: str,
    importance: Tensor | None,
) -> Tensor:
    """Return the loss of rows [T, H] and targets [T]: a scalar, or [T] for "none".

    An ignored token's row is never read; its loss and its gradient are 0. The mean of no token is
    0.
    """
    kept = (target != ignore_index).nonzero().flatten()
    everything = len(kept) == len(target)
    rows = hidden if everything else hidden.index_select(0, kept)
    words = target if everything else target[kept]
    factors = None if importance is None else importance[words]
    if reduction != "none":
        return total(rows, words, head, _scales(rows, factors, reduction))
    found = (native if chooses_native(rows) else reference).losses(rows, words, head)
    found = found if factors is None else found * factors
    return found if everything else found.new_zeros(len(target)).index_copy(0, kept, found)


def _scales(rows: Tensor, factors: Tensor | None, reduction: str) -> Tensor | float:
    """Return what each token's loss is multiplied by before the sum."""
    if factors is None:
        return 1.0 if reduction == "sum" else 1.0 / max(len(rows), 1)
    if reduction == "sum":
        return factors
    whole = factors.sum()
    return torch.where(whole == 0, 0.0, factors / whole)


def total(hidden: Tensor, target: Tensor, head: Head, scales: Tensor | float) -> Tensor:
    """Return the sum of the losses, each times its scale."""
    if chooses_native(hidden):
        return native.total(hidden, target, head, scales)
    return (reference.losses(hidden, target, head) * scales).sum()
