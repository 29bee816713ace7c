"""Cells made of cells: layers on each other, and around each other."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from unpad.cells.arguments import check_like
from unpad.cells.cell import feature_shape, first_floating, output_size_of, size_of, start_like
from unpad.cells.step import CheckedCell
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import Nest, leaves


class _Around(CheckedCell):
    """A cell made of cells."""

    def check_kinds(self, x: Tensor, state: Nest) -> None:
        """Refuse what the cells of ours inside cannot take; a user's own may take any."""
        check_tokens(self, "x", x)
        check_states(self, "state", state)


class Stack(_Around):
    """Cells on each other in one step: the output of one is the input of the next.

    Args:
        cells: cells of any kinds and widths; each takes what the one before it gives out.

    The state is a tuple of the cells' states; the output is the last cell's.

    Raises:
        ArgumentError: a cell does not take the width that the one before it gives.

    Warns:
        UserWarning: the same cell object stands there twice, so that it shares its weights.

    >>> from unpad.cells import GRUCell, LSTMCell
    >>> stack = Stack([LSTMCell(3, 5), GRUCell(5, 2)])
    >>> stack.state_size, stack.output_size
    (((5, 5), 2), 2)
    """

    def __init__(self, cells: Iterable[nn.Module]) -> None:
        super().__init__()
        layers = check_cells(cells, "cells")
        warn_if_shared(numbered("cells", layers), "Stack")
        check_widths(layers, 1)
        self.cells = nn.ModuleList(layers)
        self.input_size = size_of(layers[0], "input_size")
        self.state_size = tuple(size_of(layer, "state_size") for layer in layers)
        self.output_size = output_size_of(layers[-1])

    def forward(self, x: Tensor, state: tuple[Nest, ...]) -> tuple[Tensor, tuple[Nest, ...]]:
        """Take x [rows, features] and a state for each cell; give the last output, all states."""
        states: list[Nest] = []
        for cell, before in zip(self.cells, state, strict=True):
            x, after = cell(x, before)
            states.append(after)
        return x, tuple(states)

    def initial_state(self, batch_size: int, *, dtype: Any = None, device: Any = None) -> Nest:
        """Give each cell's own initial state."""
        return tuple(
            start_like(cell, batch_size, dtype=dtype, device=device) for cell in self.cells
        )


class Wrapper(_Around):
    """A cell around a cell, with its sizes and its initial state.

    Args:
        cell: the cell inside.
    """

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = check_cell(cell, "cell")
        self.input_size = size_of(cell, "input_size")
        self.state_size = size_of(cell, "state_size")
        self.output_size = output_size_of(cell)

    def initial_state(self, batch_size: int, *, dtype: Any = None, device: Any = None) -> Nest:
        """Give the wrapped cell's initial state."""
        return start_like(self.cell, batch_size, dtype=dtype, device=device)


class Residual(Wrapper):
    """Adds the input to a cell's output: ``output = x + cell(x)``. The state is the cell's own.

    Args:
        cell: any cell whose output has the width of its input.

    Raises:
        ArgumentError: the widths differ.

    Source: He et al., arXiv:1512.03385; between recurrent layers: Wu et al., arXiv:1609.08144.

    >>> from unpad.cells import RNNCell
    >>> cell = Residual(RNNCell(3, 3))
    >>> cell.output_size
    3
    """

    def __init__(self, cell: nn.Module) -> None:
        super().__init__(cell)
        if feature_shape(self.input_size) != feature_shape(self.output_size):
            raise ArgumentError(
                "cell",
                f"{type(cell).__name__} from {self.input_size} to {self.output_size} features",
                "a cell whose output is as wide as its input",
                "give both one width, or leave Residual out of this layer",
            )

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x [rows, features] and the cell's state; give x + output and the new state."""
        output, new_state = self.cell(x, state)
        return x + output, new_state


def check_cell(cell: Any, argument: str) -> nn.Module:
    """Refuse what cannot be run as a cell, naming what to write instead."""
    if not isinstance(cell, nn.Module) or "_modules" not in vars(cell):
        found, remedy = _name(cell), "subclass unpad.Cell, or take a cell of unpad.nn"
        if isinstance(cell, type):
            remedy = f"build one: {cell.__name__}(...)"
        elif isinstance(cell, nn.Module):
            found, remedy = f"{found} before its __init__ was done", "call super().__init__() first"
    elif isinstance(cell, nn.RNNCellBase):
        found = f"torch.nn.{_name(cell)}, whose forward returns the state alone"
        remedy = f"use unpad.nn.{_name(cell)}, which loads the other's state_dict"
    elif not hasattr(cell, "state_size"):
        found = f"{_name(cell)}, which has no state_size"
        layer = _name(cell) in ("RNN", "GRU", "LSTM")
        remedy = f"use unpad.nn.{_name(cell)}Cell" if layer else "set it in the module's __init__"
    else:
        return cell
    allowed = "a cell: a module with state_size whose forward(x, state) returns (output, new_state)"
    raise ArgumentTypeError(argument, found, allowed, remedy)


def _name(value: Any) -> str:
    """What an error calls a value that is no cell."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return repr(value) if isinstance(value, (str, int, float)) else type(value).__name__


def are_cells(cells: Any) -> bool:
    """Whether this is a list of cells, or else one cell or a mistake for it."""
    single = isinstance(cells, (nn.Module, str, bytes, dict))
    return isinstance(cells, nn.ModuleList) or (isinstance(cells, Iterable) and not single)


def check_cells(cells: Any, argument: str) -> list[nn.Module]:
    """Return one or more cells as a list."""
    if not are_cells(cells):
        kind = cells if isinstance(cells, type) else type(cells)
        remedy = "give at least one cell"
        if hasattr(kind, "initial_state"):
            remedy = f"write [{kind.__name__}(...)]"
        raise ArgumentTypeError(argument, _name(cells), "a list of cells", remedy)
    found = [check_cell(cell, f"{argument}[{i}]") for i, cell in enumerate(cells)]
    if not found:
        raise ArgumentError(argument, [], "at least one cell", "give one cell for each layer")
    return found


def check_widths(cells: Sequence[nn.Module], directions: int) -> None:
    """Refuse layers that do not fit on each other; both directions' outputs lie side by side."""
    for layer in range(1, len(cells)):
        below = feature_shape(output_size_of(cells[layer - 1]), "output_size")
        given = (*below[:-1], below[-1] * directions) if below else below
        taken = feature_shape(size_of(cells[layer], "input_size"), "input_size")
        if tuple(given) != tuple(taken):
            both = " (both directions)" if directions == 2 else ""
            raise ArgumentError(
                f"cells[{layer}]",
                f"input_size {size_of(cells[layer], 'input_size')}",
                f"{_plain(given)}, what cells[{layer - 1}] gives out{both}",
                f"build it with input_size={_plain(given)}",
            )


def check_tokens(cell: nn.Module, argument: str, given: Any) -> None:
    """Refuse a dtype or a device that the first product of a cell of ours cannot take.

    What a user's cell can take only its forward knows: it may embed integers, or convert.
    """
    if not _is_ours(cell):
        return
    if isinstance(cell, (Stack, Wrapper)):
        inner = cell.cells[0] if isinstance(cell, Stack) else cell.cell
        check_tokens(inner, argument, given)
    elif (like := first_floating(cell)) is not None:
        check_like(argument, given, like)


def check_states(cell: nn.Module, argument: str, given: Nest) -> None:
    """Likewise for the initial states of every cell of ours, formed like the cell's state."""
    if not _is_ours(cell):
        return
    if isinstance(cell, Stack):
        for inner, state in zip(cell.cells, given, strict=True):
            check_states(inner, argument, state)
    elif isinstance(cell, Wrapper):
        check_states(cell.cell, argument, given)
    elif (like := first_floating(cell)) is not None:
        for leaf in leaves(given):
            check_like(argument, leaf, like)


def _is_ours(cell: nn.Module) -> bool:
    """Whether a cell runs a forward of this package, whose products have parameters in them."""
    return type(cell).forward.__module__.startswith("unpad.cells.")


def _plain(shape: Sequence[int]) -> Any:
    return shape[0] if len(shape) == 1 else list(shape)


def warn_if_shared(places: Iterable[tuple[str, nn.Module]], owner: str) -> None:
    """Warn where one cell object stands in several places, each given by its name."""
    first: dict[int, str] = {}
    for place, cell in places:
        earlier = first.setdefault(id(cell), place)
        if earlier != place:
            kind = type(cell).__name__
            warnings.warn(
                f"{owner}: {earlier} and {place} are the same {kind} object, so these layers share "
                "one set of weights. For weights of their own build a cell for each layer: "
                f"[{kind}(...) for _ in range(n)] in place of [cell] * n",
                UserWarning,
                stacklevel=3,
            )
            return


def numbered(argument: str, cells: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Name cells by their place in an argument."""
    return [(f"{argument}[{place}]", cell) for place, cell in enumerate(cells)]
