"""TensorFlow 1's loop whose inputs are made as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_dtype, check_flag
from unpad.cells.cell import feature_shape
from unpad.cells.compose import check_cell, output_size_of
from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError
from unpad.jit import opaque
from unpad.nest import Nest, leaves, map_leaves, rebuild
from unpad.tf1.loop import Given, check_first, check_next, opened
from unpad.tf1.waiting import waiting_if_refused
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
        if not -len(self._steps) <= index < len(self._steps):
            steps = f"a step of {len(self._steps)}, counted from 0"
            raise RowIndexError("index", index, steps, "look at size()")
        step = self._steps[index]
        if step is None:
            raise ArgumentError("index", index, "a step that was written", "write it first")
        return step

    def stack(self) -> Tensor:
        """All steps as one tensor [steps, ...]."""
        if not self._steps:
            return self._like.unsqueeze(0)[:0]
        return torch.stack([self.read(index) for index in range(self.size())])

    def concat(self) -> Tensor:
        """All steps end to end along their first axis."""
        return self.stack().flatten(0, 1)

    def unstack(self, value: Tensor) -> TensorArray:
        """Return an array with one step for each row of ``value``."""
        return TensorArray.of(list(value.unbind(0)), value.new_zeros(value.shape[1:]))


LoopFunction = Callable[[int, Any, Any, Any], tuple[Any, Any, Any, Any, Any]]


@opaque
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
            bool tensor [B]. Inputs, states and what is emitted keep their shapes and dtypes;
            None for the loop state keeps the last one.
        parallel_iterations, swap_memory, scope: as for `unpad.tf1.dynamic_rnn`; no use here.

    Returns:
        What was emitted, a `TensorArray` of as many steps as ran, or a nest of these (0 for rows
        that had finished before); the state, that of a finished row as it was; the loop state.

    Raises:
        ArgumentTypeError: ``loop_fn`` is no function, or gives other than five parts, a
            ``finished`` that is no bool tensor, another dtype than before.
        ArgumentError: shapes that differ from those of the call before; rows, too.

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
    with waiting_if_refused(cell):
        return _loop(cell, loop_fn)


def _loop(cell: nn.Module, loop_fn: LoopFunction) -> tuple[Any, Nest, Any]:
    """Run until every row has finished."""
    given = opened(loop_fn(0, None, None, None), 0)
    _build(cell, given.x)
    given = check_first(cell, given)
    like = given.emit if given.emit is not None else _output_like(cell, given)
    kept, emitted = given.loop_state, list[list[Tensor]]()
    while not bool(given.finished.all()):
        given, kept, row = _step(cell, loop_fn, given, kept, like, len(emitted) + 1)
        emitted.append(row)
    if not emitted:
        given = _attached(cell, given)
    arrays = _arrays(emitted, like, given)
    return rebuild(like, arrays), given.state, kept


def _step(
    cell: nn.Module, loop_fn: LoopFunction, before: Given, kept: Any, like: Nest, time: int
) -> tuple[Given, Any, list[Tensor]]:
    """Run the cell and the loop function once; a row that was finished stays as it was."""
    done = before.finished
    # What a finished row is given must not reach a gradient, whatever it is.
    x = map_leaves(lambda leaf: _where(done, torch.zeros_like(leaf), leaf), before.x)
    output, new = cell(x, before.state)
    given = opened(loop_fn(time, output, new, kept), time)
    if before.emit is None and given.emit is None:
        given = given._replace(emit=output)
    check_next(given, before, like, time)
    row = [_where(done, torch.zeros_like(leaf), leaf) for leaf in leaves(given.emit)]
    state = map_leaves(lambda new, old: _where(done, old, new), given.state, before.state)
    # As in TensorFlow: no loop state to begin with is none at the end, and None keeps the last.
    kept = given.loop_state if kept is not None and given.loop_state is not None else kept
    return (
        given._replace(finished=done | given.finished, state=state, emit=before.emit),
        kept,
        row,
    )


def _build(cell: nn.Module, x: Any) -> None:
    if isinstance(x, Tensor) and x.dim():
        build(cell, x.shape[-1], dtype=x.dtype, device=x.device)


def _output_like(cell: nn.Module, given: Given) -> Nest:
    first = leaves(given.state)[0]
    size: Any = output_size_of(cell)
    return map_leaves(lambda part: first.new_zeros(tuple(feature_shape(part))), size)


def _arrays(emitted: list[list[Tensor]], like: Nest, given: Given) -> list[TensorArray]:
    """One array for each leaf of what was emitted."""
    batch, forms = len(given.finished), leaves(like)
    columns = [list(column) for column in zip(*emitted, strict=True)] or [[] for _ in forms]
    tie = 0.0 if emitted else _tie([given.state])
    return [
        TensorArray.of(column, leaf.new_zeros((batch, *leaf.shape)) - tie)
        for column, leaf in zip(columns, forms, strict=True)
    ]


def _attached(cell: nn.Module, given: Given) -> Given:
    """Tie the state of a loop that never ran to the weights: TensorFlow's gradient is 0 there."""
    tie = _tie([list(cell.parameters()), given.x])
    keep = [
        leaf - tie.to(leaf) if leaf.is_floating_point() else leaf for leaf in leaves(given.state)
    ]
    return given._replace(state=rebuild(given.state, keep))


def _tie(nests: Nest) -> Tensor:
    """A scalar 0 with a gradient of zeros to every leaf that wants one, whatever is in it."""
    wanted = [leaf for leaf in leaves(nests) if leaf.requires_grad]
    return torch.cat([torch.zeros(0), *(leaf.flatten()[:0].float() for leaf in wanted)]).sum()


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    if no.dim() == 0:
        return no  # one number for the whole batch, as in TensorFlow
    return torch.where(rows.reshape(-1, *(1,) * (no.dim() - 1)), yes, no)
