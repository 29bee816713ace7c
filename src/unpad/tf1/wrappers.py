"""TensorFlow 1's cells around cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_flag
from unpad.cells.cell import feature_shape, is_nested, start_like
from unpad.cells.compose import check_cell, check_cells, output_size_of, size_of
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import Nest, describe, leaves, map_leaves, same_form
from unpad.tf1.cell import RNNCell
from unpad.tf1.layer_norm import check_keep, drop
from unpad.tf1.state import LSTMStateTuple


class MultiRNNCell(RNNCell):
    """Cells on each other in one step: the output of one is the input of the next.

    Args:
        cells: cells of any kinds. The same object twice shares its weights, as in TensorFlow.
        state_is_tuple: False: one state, the cells' states side by side; each must be one tensor.

    The state is a tuple of the cells' states; the output is the last cell's.

    Source: TensorFlow 1, ``tf.nn.rnn_cell.MultiRNNCell``.

    >>> from unpad.tf1.cells import BasicRNNCell, GRUCell
    >>> cell = MultiRNNCell([GRUCell(5), BasicRNNCell(2)])
    >>> cell.build(3)
    >>> cell.state_size, list(cell.variables())[-1]
    ((5, 2), 'multi_rnn_cell/cell_1/basic_rnn_cell/bias')
    """

    scope = "multi_rnn_cell"
    around = True

    def __init__(self, cells: Sequence[nn.Module], state_is_tuple: bool = True) -> None:
        super().__init__()
        self.cells = nn.ModuleList(check_cells(cells, "cells"))
        self.state_is_tuple = check_flag("state_is_tuple", state_is_tuple)
        sizes = tuple(size_of(cell, "state_size") for cell in self.cells)
        for number, size in enumerate(sizes):
            if not state_is_tuple and not isinstance(size, int):
                raise ArgumentError(
                    "state_is_tuple",
                    False,
                    f"True, as cells[{number}] has several states",
                    "leave it out",
                )
        self.state_size = sizes if state_is_tuple else sum(sizes)
        self.output_size = output_size_of(self.cells[-1])

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        first: dict[int, tuple[int, int]] = {}
        for number, cell in enumerate(self.cells):
            earlier, width = first.setdefault(id(cell), (number, input_size))
            if width != input_size:
                kind = type(cell).__name__
                raise ArgumentError(
                    "cells",
                    f"cells[{earlier}] and cells[{number}], one {kind} object, for inputs of "
                    f"{width} and {input_size} features",
                    "one width for an object that stands there twice, as it shares its weights",
                    f"build one for each layer: [{kind}(...) for _ in range(n)], not [cell] * n",
                )
            build(cell, input_size, **where)
            (input_size,) = feature_shape(output_size_of(cell))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Take x [rows, features] and every cell's state; give the last output, all states."""
        self._open(x, state)
        if not self.state_is_tuple:
            state = state.split([size_of(cell, "state_size") for cell in self.cells], 1)
        states: list[Nest] = []
        for cell, before in zip(self.cells, state, strict=True):
            x, after = cell(x, before)
            states.append(after)
        return x, tuple(states) if self.state_is_tuple else torch.cat(states, 1)

    def initial_state(self, batch_size: int, *, dtype: Any = None, device: Any = None) -> Nest:
        """Give every cell's own initial state."""
        where = {"dtype": dtype, "device": device}
        states = [start_like(cell, batch_size, **where) for cell in self.cells]
        return tuple(states) if self.state_is_tuple else torch.cat(states, 1)

    def variables(self) -> dict[str, nn.Parameter]:
        """Give the parameters by their TensorFlow names; see `RNNCell.variables`."""
        found: dict[str, nn.Parameter] = {}
        for number, cell in enumerate(self.cells):
            inner = cast("RNNCell", cell).variables()
            found.update({f"{self.scope}/cell_{number}/{name}": v for name, v in inner.items()})
        return found


class Wrapper(RNNCell):
    """A cell around a cell: its sizes, its initial state, its variables' names."""

    around = True

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = check_cell(cell, "cell")
        self.state_size = size_of(cell, "state_size")
        self.output_size = output_size_of(cell)

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        build(self.cell, input_size, **where)

    def initial_state(self, batch_size: int, *, dtype: Any = None, device: Any = None) -> Nest:
        """Give the wrapped cell's initial state."""
        return start_like(self.cell, batch_size, dtype=dtype, device=device)

    def variables(self) -> dict[str, nn.Parameter]:
        """Give the wrapped cell's parameters: a wrapper adds no level to their names."""
        return cast("RNNCell", self.cell).variables()


class ResidualWrapper(Wrapper):
    """Adds the input to a cell's output; the state is the cell's own.

    Args:
        cell: any cell.
        residual_fn: (input, output) -> output; None: their sum.

    Source: Wu et al., arXiv:1609.08144; TensorFlow 1, ``tf.nn.rnn_cell.ResidualWrapper``.

    >>> from unpad.tf1.cells import GRUCell
    >>> ResidualWrapper(GRUCell(3)).output_size
    3
    """

    def __init__(
        self, cell: nn.Module, residual_fn: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> None:
        super().__init__(cell)
        if residual_fn is not None and not callable(residual_fn):  # pyright: ignore[reportUnnecessaryComparison]
            raise ArgumentTypeError(
                "residual_fn", residual_fn, "a function (input, output) -> output", "or None"
            )
        self.residual_fn = residual_fn

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        if self.residual_fn is None and feature_shape(self.output_size) != (input_size,):
            raise ArgumentError(
                "inputs",
                f"{input_size} features",
                f"{self.output_size}, the width of the output that they are added to",
                "give a residual_fn, or leave the first layer unwrapped",
            )
        super()._make(input_size, where)

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x [rows, features] and the cell's state; give both combined and the new state."""
        self._open(x, state)
        output, new = self.cell(x, state)
        add = self.residual_fn or _sum
        return add(x, output), new


class DropoutWrapper(Wrapper):
    """Dropout of a cell's input, output and new state, in training mode alone.

    What is kept is divided by its share. TensorFlow has no training mode there: programs feed a
    share of 1 to evaluate; here ``module.eval()`` does that.

    Args:
        cell: any cell.
        input_keep_prob, output_keep_prob, state_keep_prob: shares to keep, above 0 and up to 1. The
            state's share holds for what is carried on and returned, but not for the c of an
            `LSTMStateTuple`.
        variational_recurrent: one mask for all steps of a sequence.
        input_size, dtype: only needed by TensorFlow's variational masks; no use here.
        seed: only None: masks follow ``torch.manual_seed``.
        dropout_state_filter_visitor: substate -> True, or False to leave it alone (or, for an
            `LSTMStateTuple` or tuple, a tuple of these); None: all but the c of an LSTM.

    Source: Zaremba et al., arXiv:1409.2329; variational: Gal and Ghahramani, arXiv:1512.05287;
    TensorFlow 1, ``tf.nn.rnn_cell.DropoutWrapper``.

    >>> from unpad.tf1.cells import GRUCell
    >>> DropoutWrapper(GRUCell(3), output_keep_prob=0.5).state_size
    3
    """

    def __init__(
        self,
        cell: nn.Module,
        input_keep_prob: float = 1.0,
        output_keep_prob: float = 1.0,
        state_keep_prob: float = 1.0,
        variational_recurrent: bool = False,
        input_size: Any = None,
        dtype: torch.dtype | None = None,
        seed: None = None,
        dropout_state_filter_visitor: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(cell)
        if seed is not None:
            raise ArgumentError("seed", seed, "None", "use torch.manual_seed before training")
        self.input_keep_prob = check_keep("input_keep_prob", input_keep_prob)
        self.output_keep_prob = check_keep("output_keep_prob", output_keep_prob)
        self.state_keep_prob = check_keep("state_keep_prob", state_keep_prob)
        self.variational_recurrent = check_flag("variational_recurrent", variational_recurrent)
        self.filter = _filter(dropout_state_filter_visitor or _all_but_memory, self.state_size)

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x and the cell's state; give the cell's output and new state, less what is lost."""
        self._open(x, state)
        if not self.training:
            return self.cell(x, state)
        output, new = self.cell(self._drop(x, self.input_keep_prob), state)
        kept = map_leaves(self._drop_state, new, self.filter)
        return self._drop(output, self.output_keep_prob), kept

    def _drop(self, value: Nest, keep: float) -> Nest:
        if keep == 1.0:
            return value
        each = partial(drop, keep=keep, per_sequence=self.variational_recurrent)
        return map_leaves(each, value)

    def _drop_state(self, value: Tensor, chosen: bool) -> Tensor:
        return self._drop(value, self.state_keep_prob) if chosen else value


def build(cell: nn.Module, input_size: int, **where: Any) -> None:
    """Make the weights of a cell that wants the input's width; other cells have theirs already."""
    if isinstance(cell, RNNCell):
        cell.build(input_size, **where)


def _sum(x: Nest, output: Nest) -> Nest:
    shapes = [[leaf.shape for leaf in leaves(nest)] for nest in (x, output)]
    if not same_form(x, output) or shapes[0] != shapes[1]:
        raise ArgumentError(
            "cell",
            f"an output {describe(output)} for an input {describe(x)}",
            "an output formed like the input that it is added to",
            "give a residual_fn",
        )
    return map_leaves(torch.add, x, output)


def _all_but_memory(substate: Any) -> Any:
    return LSTMStateTuple(c=False, h=True) if isinstance(substate, LSTMStateTuple) else True


def _filter(visitor: Callable[[Any], Any], size: Any, chosen: bool = True) -> Nest:
    """Ask the visitor about every part of a state; a part that is left alone is not asked about."""
    answer = visitor(size) if chosen else False
    if not is_nested(size):
        return bool(answer)
    answers = answer if isinstance(answer, tuple) else (answer,) * len(size)
    return tuple(
        _filter(visitor, part, bool(wanted)) for part, wanted in zip(size, answers, strict=True)
    )
