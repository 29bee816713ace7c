"""Random masks: the only randomness a cell may use.

Dropout and Zoneout draw every mask through `keep_mask`, one opaque operation, so that the compiler
finds it in a trace and moves it out of the loop: a window of steps can then be run again with the
same masks.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor


class SequenceMasks:
    """The masks of one run over a batch: the k-th of each step is one tensor [batch, features].

    Args:
        batch: number of sequences.
        order: int64 [batch]: the sequence that each row of the loop stands for, or None where the
            rows are in the batch's own order. Masks are drawn in the batch's order, so the order of
            the loop changes none of them.
    """

    def __init__(self, batch: int, order: Tensor | None = None) -> None:
        self._batch = batch
        self._order = order
        self._drawn: dict[Any, Tensor] = {}
        self._calls = 0

    def begin_step(self) -> None:
        """Count the calls of the next step from 0 again."""
        self._calls = 0

    def rows(self, x: Tensor, drop: float) -> Tensor:
        """The mask of this call, for the first ``len(x)`` rows of the loop."""
        key = (self._calls, x.shape[1:], x.dtype, x.device, drop)
        self._calls += 1
        if key not in self._drawn:
            mask = _draw(x.new_empty((self._batch, *x.shape[1:])), drop)
            order = self._order
            self._drawn[key] = mask if order is None else mask[order.to(x.device)]
        # A custom operation must not hand out the same memory twice.
        return self._drawn[key][: len(x)].clone()


_masks: ContextVar[SequenceMasks | None] = ContextVar("unpad_sequence_masks", default=None)


@contextmanager
def sequence_masks(batch: int, order: Tensor | None = None) -> Generator[SequenceMasks]:
    """Within it, per-sequence masks hold for all steps; call ``begin_step()`` before each step."""
    masks = SequenceMasks(batch, order)
    token = _masks.set(masks)
    try:
        yield masks
    finally:
        _masks.reset(token)


def keep_mask(x: Tensor, drop: float, *, per_sequence: bool) -> Tensor:
    """A mask like ``x``: 1 with probability ``1 - drop``, else 0; no gradient flows through it.

    Args:
        x: [rows, ...]; gives the shape, dtype and device.
        drop: probability of a 0, within [0, 1].
        per_sequence: the same mask for all steps of a sequence, where an engine runs the loop;
            outside of one every call draws afresh.

    Returns:
        A tensor like ``x``, drawn from torch's generator.

    >>> keep_mask(torch.ones(2, 3), 1.0, per_sequence=False)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    mask: Tensor = torch.ops.unpad.keep_mask(x.detach(), drop, per_sequence)
    return mask


def _draw(like: Tensor, drop: float) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format).bernoulli_(1.0 - drop)


@torch.library.custom_op(
    "unpad::keep_mask", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _keep_mask(x: Tensor, drop: float, per_sequence: bool) -> Tensor:
    masks = _masks.get() if per_sequence else None
    return _draw(x, drop) if masks is None else masks.rows(x, drop)


@_keep_mask.register_fake
def _(x: Tensor, drop: float, per_sequence: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_keep_mask.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, drop: float, per_sequence: bool
) -> tuple[Tensor, int | None]:
    """Masks of a vmapped call: drawn for every sample, or one for all, as ``randomness`` says."""
    if info.randomness == "error":
        raise RuntimeError(
            "vmap over a cell that draws masks: say randomness='different' or randomness='same'"
        )
    place = in_dims[0]
    if place is None:
        return keep_mask(x, drop, per_sequence=per_sequence), None
    # Rows stay the first axis, as masks of sequences need it.
    x = x.movedim(place, 1)
    if info.randomness == "same":
        return keep_mask(x[:, 0], drop, per_sequence=per_sequence), None
    return keep_mask(x, drop, per_sequence=per_sequence), 1
