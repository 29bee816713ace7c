"""One step of a cell, called by hand: what it cannot take is refused, and never broadcast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unpad.cells.arguments import check_like
from unpad.cells.cell import (
    Cell,
    Size,
    feature_shape,
    first_floating,
    is_nested,
    size_of,
    start_like,
)
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.jit import is_traced
from unpad.nest import Nest, describe, leaves
from unpad.states import check_state


class CheckedCell(Cell):
    """A cell of this package: its x and state are looked at before every step.

    A subclass whose forward is its user's own is left alone.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take one step."""
        given = {**dict(zip(("x", "state"), args, strict=False)), **kwargs}
        if len(given) == 2 and type(self).forward.__module__.startswith("unpad."):
            check_shapes(self, given.get("x"), given.get("state"))
            self.check_kinds(given["x"], given["state"])
        return super().__call__(*args, **kwargs)

    def check_kinds(self, x: Tensor, state: Nest) -> None:
        """Refuse dtypes, devices and layouts that are not the parameters'."""
        check_alike(self, x, state)


def check_shapes(cell: Cell, x: Any, state: Nest) -> None:
    """Refuse an x that is not [rows, features] and a state that has not the same rows.

    Raises:
        ArgumentError, ArgumentTypeError: wrong shapes or forms.
    """
    if is_traced():  # which would warn of shapes that are looked at
        return
    if not isinstance(x, Tensor):
        raise ArgumentTypeError("x", describe(x), "a tensor [rows, features]", "give a step's rows")
    size = size_of(cell, "input_size")
    if x.dim() == 0 or x.shape[1:] != ((size,) if isinstance(size, int) else feature_shape(size)):
        wanted = ", ".join(map(str, ("rows", *feature_shape(size))))
        remedy = "a cell takes one step; a layer, Recurrent or dynamic_rnn takes sequences"
        raise ArgumentError("x", f"a tensor of shape {list(x.shape)}", f"[{wanted}]", remedy)
    if not _fits(state, cell.state_size, len(x)):
        check_state(state, start_like(cell, len(x), dtype=x.dtype, device=x.device), "state")


def check_alike(cell: Cell, x: Tensor, state: Nest) -> None:
    """Refuse dtypes, devices and layouts that are not those of a cell's parameters."""
    if (own := first_floating(cell)) is None:
        return
    kind = own.dtype, own.device, torch.strided
    for name, leaf in (("x", x), *(("state", leaf) for leaf in leaves(state))):
        if (leaf.dtype, leaf.device, leaf.layout) != kind:
            check_like(name, leaf, own)


def _fits(state: Nest, size: Size, rows: int) -> bool:
    if is_nested(size):
        same = isinstance(state, (tuple, list)) and len(state) == len(size)  # pyright: ignore[reportUnknownArgumentType]
        return same and all(_fits(part, each, rows) for part, each in zip(state, size, strict=True))
    features = (size,) if isinstance(size, int) else feature_shape(size)
    return isinstance(state, Tensor) and state.shape == (rows, *features)
