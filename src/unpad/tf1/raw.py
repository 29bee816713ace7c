"""TensorFlow 1's loop whose inputs are made as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_dtype, check_flag
from unpad.cells.cell import feature_shape
from unpad.cells.compose import check_cell
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import Nest, leaves, map_leaves, rebuild
from unpad.tf1.wrappers import build


class TensorArray:
    """The steps of a loop, as `raw_rnn` returns them.

    Args:
        dtype: of the steps; None: that of the first.
        size: number of steps that `write` fills; None: as many as are written.
        options: TensorFlow's others (``clear_after_read``, ``element_shape``, ...): no use here, as
            a step can be read again and there is no graph.

    Source: TensorFlow 1, ``tf.TensorArray``.

    >>> array = TensorArray(torch.float32, 2).unstack(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    >>> array.size(), array.read(1).tolist()
    (2, [1.0, 1.0])
    """

    def __init__(
        self, dtype: torch.dtype | None = None, size: int | None = None, **options: Any
    ) -> None:
        check_dtype(dtype)
        self._steps: list[Tensor | None] = [None] * (size or 0)
        self._like = torch.zeros(0, dtype=dtype)

    @classmethod
    def of(cls, steps: list[Tensor], like: Tensor) -> TensorArray:
        """Return an array of these steps; ``like`` has the shape of one where there is none."""
        array = cls()
        array._steps.extend(steps)
        array._like = like
        return array

    def write(self, index: int, value: Tensor) -> TensorArray:
        """Return an array in which step ``index`` is ``value``."""
        steps = [*self._steps, *[None] * (index + 1 - len(self._steps))]
        steps[index] = value
        array = TensorArray()
        array._steps, array._like = steps, self._like
        return array

    def size(self) -> int:
        """Number of steps."""
        return len(self._steps)

    def read(self, index: int) -> Tensor:
        """One step; it can be read again."""
        step = self._steps[index]
        if step is None:
            raise ArgumentError("index", index, "a step that was written", "write it first")
        return step

    def stack(self) -> Tensor:
        """All steps as one tensor [steps, ...]."""
        if not self._steps:
            return self._like.new_zeros((0, *self._like.shape))
        return torch.stack([self.read(index) for index in range(self.size())])

    def concat(self) -> Tensor:
        """All steps end to end along their first axis."""
        return self.stack().flatten(0, 1)

    def unstack(self, value: Tensor) -> TensorArray:
        """Return an array with one step for each row of ``value``."""
        return TensorArray.of(list(value.unbind(0)), value.new_zeros(value.shape[1:]))


LoopFunction = Callable[[int, Any, Any, Any], tuple[Any, Any, Any, Any, Any]]


def raw_rnn(
    cell: nn.Module,
    loop_fn: LoopFunction,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Nest, Any]:
    """Run a cell in a loop that makes its own inputs, such as a decoder that is fed its outputs.

    What the loop function does at a step only it knows, so this runs step by step in Python.

    Args:
        cell: any cell.
        loop_fn: ``(time, cell_output, cell_state, loop_state) -> (finished, next_input, next_state,
            emit, next_loop_state)``. The first call has time 0 and None for the others; it gives
            the initial state and what an emitted row looks like (zeros [features], or a nest of
            these; None: the cell's output). Call t + 1 says what step t emits. ``finished`` is a
            bool tensor [B].
        parallel_iterations, swap_memory, scope: as for `unpad.tf1.dynamic_rnn`; no use here.

    Returns:
        What was emitted, a `TensorArray` of as many steps as ran, or a nest of these (0 for rows
        that had finished before); the state, that of a finished row as it was; the loop state.

    Raises:
        ArgumentTypeError: ``loop_fn`` is no function, ``finished`` no bool tensor.

    Source: TensorFlow 1, ``tf.nn.raw_rnn``.

    >>> from unpad.tf1.cells import GRUCell
    >>> cell, x = GRUCell(4), torch.zeros(2, 3)
    >>> def loop(time, output, state, _):
    ...     state = cell.zero_state(2) if output is None else state
    ...     return torch.tensor([time >= 2, time >= 5]), x, state, output, None
    >>> emitted, state, _ = raw_rnn(cell, loop)
    >>> tuple(emitted.stack().shape)
    (5, 2, 4)
    """
    check_cell(cell, "cell")
    check_flag("swap_memory", swap_memory)
    if not callable(loop_fn):
        raise ArgumentTypeError("loop_fn", loop_fn, "a function", "see the docstring")
    ended, x, state, form, loop_state = loop_fn(0, None, None, None)
    finished = _check_finished(ended)
    _build(cell, x)
    emitted: list[list[Tensor]] = []
    like = _emit_like(cell, form, x)
    time = 0
    while not bool(finished.all()):
        # What a finished row is given must not reach a gradient, whatever it is.
        given = map_leaves(lambda leaf: _where(finished, torch.zeros_like(leaf), leaf), x)  # noqa: B023
        output, new = cell(given, state)
        time += 1
        ended, x, next_state, emit, loop_state = loop_fn(time, output, new, loop_state)
        before = finished
        row = leaves(output if emit is None else emit)
        emitted.append([_where(before, torch.zeros_like(leaf), leaf) for leaf in row])
        state = map_leaves(lambda new, old: _where(before, old, new), next_state, state)  # noqa: B023
        finished = finished | _check_finished(ended)
    batch = len(finished)
    columns = [list(column) for column in zip(*emitted, strict=True)] or [[] for _ in leaves(like)]
    arrays = [
        TensorArray.of(column, leaf.new_zeros((batch, *leaf.shape)))
        for column, leaf in zip(columns, leaves(like), strict=True)
    ]
    return rebuild(like, arrays), state, loop_state


def _build(cell: nn.Module, x: Any) -> None:
    if isinstance(x, Tensor):
        build(cell, x.shape[-1], dtype=x.dtype, device=x.device)


def _emit_like(cell: nn.Module, form: Nest, x: Any) -> Nest:
    if form is not None:
        return form
    first = leaves(x)[0]
    size: Any = getattr(cell, "output_size", None)
    return map_leaves(lambda part: first.new_zeros(tuple(feature_shape(part))), size)


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *(1,) * (no.dim() - 1)), yes, no)


def _check_finished(finished: Any) -> Tensor:
    if not isinstance(finished, Tensor) or finished.dtype is not torch.bool:
        raise ArgumentTypeError(
            "loop_fn", finished, "finished as a bool tensor [B]", "such as time >= lengths"
        )
    if finished.dim() != 1:
        raise ArgumentError(
            "loop_fn", f"finished of shape {list(finished.shape)}", "[B]", "give one for each row"
        )
    return finished
