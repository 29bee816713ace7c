"""TensorFlow 1's recurrent functions of one direction.

``parallel_iterations`` and ``scope`` change no number and are not looked at: there is no graph, and
weights live in the cell. ``swap_memory`` asks for lean memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from unpad import functional
from unpad.cells.arguments import check_flag, check_like
from unpad.cells.cell import first_floating, start
from unpad.cells.compose import check_cell, size_of
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.jit import opaque
from unpad.nest import Nest, leaves, map_leaves, same_form
from unpad.ragged import Ragged
from unpad.tf1.cell import RNNCell, state_like
from unpad.tf1.nested import Joined, join, joined, part
from unpad.tf1.state import LSTMStateTuple
from unpad.tf1.waiting import waiting_if_refused

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@opaque
def dynamic_rnn(
    cell: nn.Module,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Nest = None,
    dtype: torch.dtype | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, Nest]:
    """Run a cell over a batch of padded sequences.

    Args:
        cell: any cell, of this module or another.
        inputs: [B, S, ...], or [S, B, ...] with ``time_major``, or a nest of these; also a Ragged.
        sequence_length: [B] integers; None: every sequence has S steps. As in TensorFlow, more than
            S counts as S and less than 0 as 0, but here with a warning.
        initial_state: nest of [B, ...], formed like the cell's state; None: the zero state.
        dtype: of the zero state; None: that of the inputs.
        parallel_iterations, scope: no use; see the module.
        swap_memory: keep only some states for the backward pass and run the others again.
        time_major: whether time is the first axis.

    Returns:
        The outputs, always with S steps and 0 past the end, in the form of the cell's output; the
        state after each sequence's last step. Length 0 gives back the initial state. A pad is never
        read: NaN in it reaches no gradient, as it does in TensorFlow.

    Raises:
        ArgumentError, ArgumentTypeError: wrong cell, inputs, state or lengths (a float among them,
            which TensorFlow truncates), before any work.

    Source: TensorFlow 1, ``tf.nn.dynamic_rnn``.

    >>> from unpad.tf1.cells import BasicLSTMCell
    >>> outputs, state = dynamic_rnn(BasicLSTMCell(4), torch.zeros(2, 5, 3), [5, 0])
    >>> tuple(outputs.shape), tuple(state.h.shape)
    ((2, 5, 4), (2, 4))
    """
    memory = "lean" if check_flag("swap_memory", swap_memory) else "fast"
    return _run(cell, inputs, sequence_length, initial_state, dtype, time_major, memory)


def _run(
    cell: nn.Module,
    inputs: Any,
    sequence_length: Any,
    initial_state: Nest,
    dtype: torch.dtype | None,
    time_major: bool,
    memory: str,
) -> tuple[Any, Nest]:
    """Do what both functions do; called by them alone, as a warning names their caller's line."""
    check_flag("time_major", time_major)
    with waiting_if_refused(cell):
        ready, values = prepare(cell, inputs, "cell")
        check_same_dtype(ready, values, dtype)
        output, state = functional.dynamic_rnn(
            ready,
            values,
            clamp_lengths(sequence_length, values, 0 if time_major else 1),
            check_form(ready, initial_state, "initial_state", values),
            dtype,
            time_major=time_major,
            memory=memory,
        )
    return part(ready, output), state_like(size_of(ready, "state_size"), state)


@opaque
def static_rnn(
    cell: nn.Module,
    inputs: Sequence[Any],
    initial_state: Nest = None,
    dtype: torch.dtype | None = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Nest]:
    """Run a cell over a list of steps.

    Nothing is unrolled: it is `dynamic_rnn` with another form of inputs and outputs.

    Args:
        cell: any cell.
        inputs: a list of S tensors [B, ...], or of nests of these, one for each step.
        initial_state, dtype, sequence_length, scope: as for `dynamic_rnn`.

    Returns:
        A list of S outputs [B, ...], 0 past the end, and the state after each last step.

    Raises:
        ArgumentError, ArgumentTypeError: no list, an empty one, steps of unequal shape; as for
            `dynamic_rnn`.

    Source: TensorFlow 1, ``tf.nn.static_rnn``.

    >>> from unpad.tf1.cells import GRUCell
    >>> outputs, state = static_rnn(GRUCell(4), [torch.zeros(2, 3)] * 5, sequence_length=[5, 0])
    >>> len(outputs), tuple(outputs[0].shape)
    (5, (2, 4))
    """
    steps = stack_steps(inputs)
    outputs, state = _run(cell, steps, sequence_length, initial_state, dtype, True, "fast")
    return unstack_steps(outputs), state


def prepare(cell: Any, inputs: Any, argument: str) -> tuple[nn.Module, Any]:
    """Return the cell with its weights made, and the inputs as one value."""
    check_cell(cell, argument)
    if isinstance(inputs, (tuple, list)) and not isinstance(inputs, PackedSequence):
        values = join(inputs)
        _make_by_a_step(cell, inputs)
        return joined(cell, inputs), values
    x = _values_of(inputs)
    if isinstance(cell, RNNCell) and x.dim():
        cell.build(x.shape[-1], dtype=_floating(x), device=x.device)
        if (like := first_floating(cell)) is not None:
            check_like("inputs", x, like)
    nested_output = isinstance(getattr(cell, "output_size", None), tuple)
    return (joined(cell, None) if nested_output else cell), inputs


def _make_by_a_step(cell: nn.Module, inputs: Nest) -> None:
    """Make the weights of the cells within a cell of nests; what they are given only it knows."""
    if any(map(is_lazy, cell.parameters())):
        with torch.no_grad():
            x = map_leaves(lambda leaf: leaf.new_zeros(1, leaf.shape[-1]), inputs)
            cell(x, start(cell, 1, leaves(x)[0]))


def _values_of(inputs: Any) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    if isinstance(inputs, Ragged):
        return inputs.values
    if isinstance(inputs, PackedSequence):
        return inputs.data
    raise ArgumentTypeError(
        "inputs",
        type(inputs).__name__,
        "a tensor [B, S, features], a Ragged, a PackedSequence or a tuple of tensors",
        "use torch.from_numpy, or torch.as_tensor",
    )


def _floating(x: Tensor) -> torch.dtype:
    if x.is_floating_point():
        return x.dtype
    raise ArgumentTypeError(
        "inputs",
        f"a tensor of {x.dtype}",
        "a floating dtype",
        "numbers of words or classes go through nn.Embedding; other numbers: .float()",
    )


def clamp_lengths(lengths: Any, values: Any, axis: int) -> Any:
    """Return lengths within 0 and the number of steps, with a warning where some were not."""
    if lengths is None or not isinstance(values, Tensor) or values.dim() <= axis:
        return lengths
    steps = values.shape[axis]
    try:
        given = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        return lengths  # refused in words where lengths are checked
    if given.dtype not in _INTEGERS or given.dim() != 1:
        return lengths
    batch = values.shape[1 - axis]
    if len(given) != batch:
        raise ArgumentError(
            "sequence_length",
            f"{len(given)} lengths",
            f"{batch}, one for each sequence of inputs {list(values.shape)}",
            "give every sequence its length (check time_major)",
        )
    within = given.clamp(0, steps)
    if not torch.equal(within, given):
        row = int((within != given).nonzero()[0, 0])
        warnings.warn(
            f"sequence_length[{row}] is {int(given[row])}, outside of 0 to {steps}: it counts as "
            f"{int(within[row])}, as in TensorFlow",
            UserWarning,
            stacklevel=5,  # past `_run`, the function that called it and `opaque`
        )
    return within


def check_same_dtype(cell: nn.Module, values: Any, dtype: torch.dtype | None) -> None:
    """Refuse a zero state of another dtype than the inputs: nothing is cast, as in TensorFlow."""
    found = _values_of(values).dtype
    if isinstance(cell, RNNCell) and isinstance(dtype, torch.dtype) and dtype != found:
        raise ArgumentError("dtype", dtype, f"{found}, that of the inputs", "leave it out")


def check_form(cell: nn.Module, state: Nest, argument: str, values: Any) -> Nest:
    """Refuse a plain tuple for an `LSTMStateTuple`, (h, c) perhaps, and another dtype than x's."""
    if state is None:
        return None
    check_plain_tuples(size_of(cell, "state_size"), state, argument)
    dtype = _values_of(values).dtype
    for leaf in leaves(state):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != dtype:
            raise ArgumentTypeError(
                argument, f"a state of {leaf.dtype}", f"{dtype}, as the inputs", f"use .to({dtype})"
            )
    return state


def check_plain_tuples(size: Any, state: Nest, argument: str) -> None:
    """Refuse a plain tuple or list where the cell's state is an `LSTMStateTuple`."""
    if isinstance(size, LSTMStateTuple):
        if isinstance(state, (tuple, list)) and not isinstance(state, LSTMStateTuple):
            raise ArgumentTypeError(
                argument,
                "a plain tuple or list",
                "an LSTMStateTuple(c=..., h=...)",
                "name the parts: c is the memory and comes first, unlike in torch",
            )
    elif isinstance(size, tuple) and isinstance(state, (tuple, list)):
        for inner, given in zip(size, state):  # noqa: B905 - unequal forms are refused later
            check_plain_tuples(inner, given, argument)


def stack_steps(inputs: Any) -> Any:
    """Return a list of steps as one tensor [S, B, ...], or a nest of these."""
    if not isinstance(inputs, (list, tuple)):
        raise ArgumentTypeError(
            "inputs",
            type(inputs).__name__,
            "a list of S tensors [B, ...], one for each step",
            "use dynamic_rnn for one tensor, or list(inputs.unbind(1))",
        )
    if not inputs:
        raise ArgumentError("inputs", [], "at least one step", "use dynamic_rnn for no steps")
    steps: list[Any] = list(inputs)
    first = leaves(steps[0])
    for number, step in enumerate(steps):
        for leaf, like in zip(leaves(step), first) if same_form(step, steps[0]) else [(None, None)]:  # noqa: B905
            if not (isinstance(leaf, Tensor) and isinstance(like, Tensor)) or (
                (leaf.shape, leaf.dtype) != (like.shape, like.dtype)
            ):
                raise ArgumentError(
                    f"inputs[{number}]",
                    step,
                    "tensors of the shapes and the dtype that inputs[0] has",
                    "give all steps one batch size, one width and one dtype",
                )
    columns = [torch.stack(column) for column in zip(*map(leaves, steps), strict=True)]
    return columns[0] if isinstance(steps[0], Tensor) else type(steps[0])(columns)


def unstack_steps(outputs: Any) -> list[Any]:
    """Return [S, B, ...], or a nest of these, as a list of steps."""
    if isinstance(outputs, Tensor):
        return list(outputs.unbind(0))
    columns = [unstack_steps(leaf) for leaf in outputs]
    return [type(outputs)(step) for step in zip(*columns, strict=True)]


__all__ = ["Joined", "dynamic_rnn", "static_rnn"]
