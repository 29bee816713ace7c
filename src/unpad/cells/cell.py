"""The cell: what a recurrent network does with one token."""

from __future__ import annotations

import inspect
import numbers
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from unpad.cells.arguments import is_number
from unpad.errors import ArgumentError, ArgumentTypeError, quoted
from unpad.jit import refuse_scripting
from unpad.nest import Nest, Zeros, describe, leaves, made

Size: TypeAlias = Any  # int | torch.Size | list[int] | tuple of sizes; recursive
"""Features of one row: an int (n features), a ``torch.Size`` or a list (a shape; ``torch.Size([])``
for one number a row), or a tuple of sizes, one for each state."""


class Cell(nn.Module):
    """One step of a recurrent network, on rows: ``(x, state) -> (output, new_state)``.

    Subclass it, set the sizes, write ``forward``. Every row stands for one live sequence, so a
    row's result must not depend on the other rows; values must not steer Python's ``if``.

    Attributes:
        input_size: features of ``x``; an int, or a ``torch.Size`` for rows of higher rank.
        state_size: an int, a shape (``torch.Size`` or list) or a tuple of these, one a state.
        output_size: features of the output; the first state's unless it is set.

    >>> class Sum(Cell):
    ...     input_size = state_size = 3
    ...     def forward(self, x, state):
    ...         new = state + x
    ...         return new, new
    >>> cell = Sum()
    >>> output, state = cell(torch.ones(2, 3), cell.initial_state(2))
    >>> output.tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    input_size: Size
    state_size: Size
    _output_size: Size = None

    @property
    def output_size(self) -> Size:
        """Features of the output; the first state's unless it was set."""
        size = self._output_size
        return first_size(self.state_size) if size is None else size

    @output_size.setter
    def output_size(self, size: Size) -> None:
        self._output_size = size

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """One step.

        Args:
            x: [rows, input features].
            state: nest of [rows, state features].

        Returns:
            The output [rows, output features] and the new state, formed like ``state``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward(x, state)")

    __prepare_scriptable__ = refuse_scripting

    def initial_state(
        self,
        batch_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Nest:
        """The state before a sequence: zeros, [batch_size, features] for each state.

        Args:
            batch_size: number of rows.
            dtype: default: the cell's first floating parameter's, or torch's default.
            device: default: likewise.
        """
        own = first_floating(self)
        dtype = dtype or (torch.get_default_dtype() if own is None else own.dtype)
        device = device or (None if own is None else own.device)
        return zeros(self.state_size, batch_size, dtype=dtype, device=device)


def feature_shape(size: Size, name: str = "size") -> torch.Size:
    """The shape of one row of one size; ``name`` is what an error calls it.

    >>> feature_shape(3), feature_shape([2, 3])
    (torch.Size([3]), torch.Size([2, 3]))
    """
    if type(size) is int and size >= 0:
        return torch.Size((size,))
    parts: list[Any] = list(size) if isinstance(size, (list, tuple)) else [size]  # pyright: ignore[reportUnknownArgumentType]
    whole = all(is_number(part, numbers.Integral) for part in parts)
    if not whole or min(parts, default=0) < 0:
        several = "; a tuple of these for several states" if name == "state_size" else ""
        raise (ArgumentError if whole else ArgumentTypeError)(
            name,
            quoted(size),
            f"an int of 0 or more, or a list or torch.Size of such{several}",
            f"set {name} in the cell's __init__ or class",
        )
    return torch.Size([int(part) for part in parts])


def is_nested(size: Size) -> bool:
    """Whether a size is a tuple of sizes and not one shape."""
    return isinstance(size, tuple) and not isinstance(size, torch.Size)


def first_size(size: Size) -> Size:
    """The first leaf of a nest of sizes."""
    while is_nested(size) and size:
        size = size[0]
    return size


def zeros(
    size: Size,
    batch_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Nest:
    """Zeros of [batch_size, ...] for each leaf of a nest of sizes."""
    return made(unmade(size, batch_size, dtype=dtype, device=device))


def unmade(
    size: Size, batch_size: int, *, dtype: torch.dtype, device: torch.device | str | None
) -> Nest:
    """The same as `Zeros`, for an engine."""
    if is_nested(size):
        return tuple([unmade(part, batch_size, dtype=dtype, device=device) for part in size])
    shape = torch.Size((batch_size, *feature_shape(size, "state_size")))
    return Zeros(shape, dtype, device)


def first_floating(module: nn.Module) -> Tensor | None:
    """The first floating parameter or buffer of a module."""
    for tensor in vars(module)["_parameters"].values():  # which `parameters` gives first, in time
        if tensor is not None and tensor.is_floating_point():
            return tensor
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            if tensor.is_floating_point():
                return tensor
    return None


def start(cell: nn.Module, batch_size: int, x: Tensor) -> Nest:
    """Give a cell's own initial state, for tokens like ``x``."""
    return start_like(cell, batch_size, dtype=_dtype_for(x), device=x.device)


def start_unmade(cell: nn.Module, batch_size: int, x: Tensor) -> Nest:
    """`start` for an engine: `Zeros` where the cell has no ``initial_state`` of its own."""
    make = getattr(cell, "initial_state", None)
    if make is not None and getattr(make, "__func__", None) is not Cell.initial_state:
        return start(cell, batch_size, x)
    size = cast("Any", cell).state_size
    return unmade(size, batch_size, dtype=_dtype_for(x), device=x.device)


def _dtype_for(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def start_like(cell: nn.Module, batch_size: int, *, dtype: Any, device: Any) -> Nest:
    """Give a cell's own initial state.

    An ``initial_state`` that takes nothing but the batch size is accepted, and so is a module
    with a ``state_size`` that is no `Cell`.
    """
    make = getattr(cell, "initial_state", None)
    if make is None:
        size = cast("Any", cell).state_size
        dtype = torch.get_default_dtype() if dtype is None else dtype
        return zeros(size, batch_size, dtype=dtype, device=device)
    ours = getattr(make, "__func__", None) is Cell.initial_state  # a signature takes long to read
    takes_dtype = ours or "dtype" in inspect.signature(make).parameters
    state = make(batch_size, **({"dtype": dtype, "device": device} if takes_dtype else {}))
    rows = [leaf.shape[:1] if isinstance(leaf, Tensor) else None for leaf in leaves(state)]
    if any(shape != (batch_size,) for shape in rows):
        raise ArgumentError(
            "cell",
            f"{type(cell).__name__}, whose initial_state({batch_size}) gave {describe(state)}",
            f"a tensor [{batch_size}, ...], or a tuple, list or dict of these",
            "return one row for each sequence, such as torch.zeros(batch_size, n)",
        )
    return state


def size_of(cell: nn.Module, name: str) -> Size:
    """Return ``input_size`` or ``state_size``; a cell must say both."""
    size = getattr(cell, name, None)
    if size is None:
        raise ArgumentError(
            "cell",
            f"{type(cell).__name__} without {name}",
            "a cell with input_size and state_size",
            "call its build(input_size) first"
            if callable(getattr(cell, "build", None))
            else f"set self.{name} in its __init__",
        )
    if name == "input_size":
        feature_shape(size, name)
    return size


def output_size_of(cell: nn.Module) -> Size:
    """Return a cell's ``output_size``; the first state's for a module that does not say it."""
    size = getattr(cell, "output_size", None)
    return first_size(size_of(cell, "state_size")) if size is None else size
