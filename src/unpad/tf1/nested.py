"""Cells whose input or output is a nest of tensors, as cells of one tensor: leaves side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.cell import Cell, feature_shape, start_like
from unpad.cells.compose import size_of
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import Nest, leaves, rebuild


class Joined(Cell):
    """A cell of nests as a cell of one tensor; it belongs to the cell and shares its weights.

    Args:
        cell: takes and gives nests of tensors [rows, features].
        form: the input's form, its leaves numbers of features; None: one tensor, as it is.
    """

    def __init__(self, cell: nn.Module, form: Nest) -> None:
        super().__init__()
        self.cell = cell
        self.form = form
        sizes = leaves(form)
        self.input_size = size_of(cell, "input_size") if form is None else sum(sizes)
        self.state_size = size_of(cell, "state_size")
        self.output_form = getattr(cell, "output_size", None)
        self.output_size = sum(feature_shape(size)[0] for size in leaves(self.output_form))

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x [rows, all features] and the cell's state; give its outputs side by side."""
        given = x if self.form is None else rebuild(self.form, list(x.split(leaves(self.form), 1)))
        output, new = self.cell(given, state)
        return torch.cat(leaves(output), 1), new

    def initial_state(self, batch_size: int, *, dtype: Any = None, device: Any = None) -> Nest:
        """Give the cell's own initial state."""
        return start_like(self.cell, batch_size, dtype=dtype, device=device)


def joined(cell: nn.Module, inputs: Nest) -> Joined:
    """Return the one `Joined` of a cell for inputs of this form; None: one tensor."""
    form = None if inputs is None else rebuild(inputs, [leaf.shape[-1] for leaf in leaves(inputs)])
    # Kept with the cell: a trace belongs to the module that it was made of.
    known: dict[str, Joined] = vars(cell).setdefault("_joined", {})
    return known.setdefault(repr(form), Joined(cell, form))


def join(inputs: Nest) -> Tensor:
    """Return a nest of [B, S, features] as one tensor, leaves side by side."""
    tensors = leaves(inputs)
    for number, leaf in enumerate(tensors):
        if not isinstance(leaf, Tensor) or leaf.dim() != 3:
            raise ArgumentTypeError(
                "inputs", leaf, "a nest of tensors of rank 3", f"see leaf {number}"
            )
        if leaf.shape[:2] != tensors[0].shape[:2]:
            raise ArgumentError(
                "inputs",
                f"leaf {number} of shape {list(leaf.shape)}",
                f"{list(tensors[0].shape[:2])} in the first two axes, as in the first leaf",
                "give all inputs the same sequences and steps",
            )
    return torch.cat(tensors, 2)


def part(cell: nn.Module, output: Any) -> Any:
    """Return an output in the form that the cell gives; columns of a `Joined` go back apart."""
    if not isinstance(cell, Joined) or not isinstance(cell.output_form, tuple):
        return output
    sizes = [feature_shape(size)[0] for size in leaves(cell.output_form)]
    return rebuild(cell.output_form, list(output.split(sizes, -1)))
