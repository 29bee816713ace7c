"""Keras's cells on each other in one step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from unpad.cells.cell import feature_shape, start_like
from unpad.cells.compose import check_cells, numbered, output_size_of, size_of, warn_if_shared
from unpad.cells.step import CheckedCell
from unpad.errors import ArgumentError
from unpad.nest import Nest
from unpad.tf1.keras.cell import KerasCell
from unpad.tf1.keras.weights import KerasWeights, width_in


class StackedRNNCells(KerasWeights, CheckedCell):
    """Cells on each other in one step, as one cell: `unpad.nn.Stack` that can wait for its width.

    Args:
        cells: cells of any kinds; each takes what the one before it gives out.

    The state is a tuple of the cells' states. Weights stand cell by cell.

    Raises:
        ArgumentError: a cell does not take the width that the one before it gives.

    Warns:
        UserWarning: one cell object stands there twice and shares its weights.

    Source: Keras 2, ``keras.layers.StackedRNNCells``.

    >>> from unpad.tf1.keras import GRUCell, LSTMCell
    >>> cell = StackedRNNCells([LSTMCell(4), GRUCell(2)])
    >>> cell.state_size, cell.output_size
    (((4, 4), 2), 2)
    """

    def __init__(self, cells: Iterable[nn.Module]) -> None:
        super().__init__()
        found = check_cells(cells, "cells")
        warn_if_shared(numbered("cells", found), "StackedRNNCells")
        self.cells = nn.ModuleList(found)
        self.state_size = tuple(size_of(cell, "state_size") for cell in found)
        self.output_size = output_size_of(found[-1])
        for number in range(1, len(found)):
            (width,) = feature_shape(output_size_of(found[number - 1]), "output_size")
            _fit(found[number], f"cells[{number}]", width)

    @property
    def input_size(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Features of a token, which are the first cell's; None until its kernel is made."""
        return getattr(self.cells[0], "input_size", None)

    def build(self, input_size: Any) -> None:
        """Make the first cell's kernel for inputs of this width, or shape."""
        _fit(self.cells[0], "inputs", width_in(input_size))

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


def _fit(cell: nn.Module, argument: str, width: int) -> None:
    """Make a waiting kernel for a width, or refuse a cell that takes another one."""
    if isinstance(cell, (KerasCell, StackedRNNCells)) and cell.input_size is None:
        cell.build(width)
    elif feature_shape(size_of(cell, "input_size")) != (width,):
        raise ArgumentError(
            argument,
            f"{type(cell).__name__} with input_size {size_of(cell, 'input_size')}",
            f"{width}, what it is given",
            "leave input_size out, or make both widths equal",
        )
