"""Recurrent networks as functions, with the meaning that they have in TensorFlow 1; CTC, softmax.

Past the end of a sequence the output is 0 and the state stays as it was. Unlike there, lengths are
checked, and a pad is never read: not even NaN in the padding reaches a result or a gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_dtype, check_flag, check_memory, check_precision
from unpad.cells.cell import feature_shape, start, start_like, start_unmade
from unpad.cells.compose import (
    check_cell,
    check_states,
    check_tokens,
    output_size_of,
    size_of,
)
from unpad.ctc import ctc_beam_decode, ctc_greedy_decode, ctc_loss, ctc_unalignable
from unpad.engine import choose, lean
from unpad.engine.eager import check_result
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.forms import Opened, open_input
from unpad.jit import opaque
from unpad.nest import Nest, made, map_leaves
from unpad.ragged import as_lengths
from unpad.softmax import (
    classes_by_bigrams,
    classes_by_embedding,
    classes_by_frequency,
    classes_in_order,
    linear_cross_entropy,
)
from unpad.states import check_state

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "bidirectional_dynamic_rnn",
    "classes_by_bigrams",
    "classes_by_embedding",
    "classes_by_frequency",
    "classes_in_order",
    "ctc_beam_decode",
    "ctc_greedy_decode",
    "ctc_loss",
    "ctc_unalignable",
    "dynamic_rnn",
    "linear_cross_entropy",
    "static_rnn",
]


@opaque
def dynamic_rnn(
    cell: nn.Module,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Nest = None,
    dtype: torch.dtype | None = None,
    *,
    time_major: bool = False,
    return_states: bool = False,
    memory: str | int = "fast",
    precision: str | None = None,
) -> tuple[Any, ...]:
    """Run a cell over a batch of sequences.

    Args:
        cell: any cell.
        inputs: [B, S, ...], or [S, B, ...] with ``time_major``; or a Ragged, a PackedSequence, a
            nested tensor, a list of tensors [length, ...].
        sequence_length: [B], each 0 to S: list, tuple, NumPy array or integer tensor on any device.
            None: every sequence has S steps.
        initial_state: nest of [B, ...], formed like the cell's state; None: the cell's own.
        dtype: of the cell's own initial state; None: that of the inputs.
        time_major: whether time is the first axis.
        return_states: also give the state after every token.
        memory, precision: what is kept for the backward pass, and what products are rounded to, as
            for `unpad.nn.Recurrent`.

    Returns:
        The outputs in the form of the inputs, always with S steps and 0 past the end; the state
        after each sequence's last token; with ``return_states`` every state too. Length 0 gives
        back the initial state, and its gradient is the identity.

    Raises:
        ArgumentError, ArgumentTypeError: wrong cell, inputs, state or lengths, before any work.

    Source: TensorFlow 1, ``tf.nn.dynamic_rnn``.

    >>> from unpad.cells import GRUCell
    >>> outputs, state = dynamic_rnn(GRUCell(3, 4), torch.zeros(2, 5, 3), [5, 0])
    >>> tuple(outputs.shape), tuple(state.shape)
    ((2, 5, 4), (2, 4))
    """
    batch = _open(cell, inputs, sequence_length, time_major)
    check_flag("return_states", return_states)
    state = _start(cell, initial_state, batch, dtype, "initial_state")
    ways: dict[str, Any] = {"memory": check_memory(memory), "precision": check_precision(precision)}
    output, final, states = choose.run(
        cell, batch.values, batch.offsets, state, return_states=return_states, **ways
    )
    results = (batch.close(output), final)
    return (*results, map_leaves(batch.close, states)) if return_states else results


@opaque
def bidirectional_dynamic_rnn(
    cell_fw: nn.Module,
    cell_bw: nn.Module,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Nest = None,
    initial_state_bw: Nest = None,
    dtype: torch.dtype | None = None,
    *,
    time_major: bool = False,
    memory: str | int = "fast",
    precision: str | None = None,
) -> tuple[tuple[Any, Any], tuple[Nest, Nest]]:
    """Run one cell from each sequence's start and another from its end.

    Args:
        cell_fw: reads from the first token to the last.
        cell_bw: reads from the last token, not from the padding, to the first.
        inputs, sequence_length, dtype, time_major, memory, precision: as for `dynamic_rnn`; bytes
            are halved, for each cell its own.
        initial_state_fw, initial_state_bw: one for each cell.

    Returns:
        ``((outputs_fw, outputs_bw), (state_fw, state_bw))``, not concatenated. The output of
        ``cell_bw`` at step t belongs to input t; ``state_bw`` is the state after the first token.

    Raises:
        ArgumentError, ArgumentTypeError: as for `dynamic_rnn`.

    Source: TensorFlow 1, ``tf.nn.bidirectional_dynamic_rnn``.

    >>> from unpad.cells import GRUCell
    >>> cells = GRUCell(3, 4), GRUCell(3, 5)
    >>> (forward, backward), states = bidirectional_dynamic_rnn(*cells, torch.zeros(2, 6, 3))
    >>> tuple(forward.shape), tuple(backward.shape)
    ((2, 6, 4), (2, 6, 5))
    """
    batch = _open(cell_fw, inputs, sequence_length, time_major, "cell_fw")
    check_cell(cell_bw, "cell_bw")
    sizes = [feature_shape(size_of(cell, "input_size")) for cell in (cell_fw, cell_bw)]
    if sizes[0] != sizes[1]:
        raise ArgumentError(
            "cell_bw",
            f"input_size {list(sizes[1])}",
            f"{list(sizes[0])}, the input_size of cell_fw",
            "build both cells for one input",
        )
    fw = _start(cell_fw, initial_state_fw, batch, dtype, "initial_state_fw")
    bw = _start(cell_bw, initial_state_bw, batch, dtype, "initial_state_bw")
    kept = lean.share(check_memory(memory), 2)
    ways: dict[str, Any] = {"memory": kept, "precision": check_precision(precision)}
    ragged = batch.values, batch.offsets
    output_fw, final_fw, _ = choose.run(cell_fw, *ragged, fw, **ways)
    output_bw, final_bw, _ = choose.run(cell_bw, *ragged, bw, reverse=True, **ways)
    return (batch.close(output_fw), batch.close(output_bw)), (final_fw, final_bw)


@opaque
def static_rnn(
    cell: nn.Module,
    inputs: Sequence[Tensor],
    initial_state: Nest = None,
    dtype: torch.dtype | None = None,
    sequence_length: Any = None,
) -> tuple[list[Tensor], Nest]:
    """Run a cell by a plain loop in Python: the baseline, and an aid to debugging.

    No engine takes part: each step calls the cell on the rows that are still live. The numbers are
    those of `dynamic_rnn`, at the speed of Python.

    Args:
        cell: any cell.
        inputs: a list of S tensors [B, ...], one for each step.
        initial_state, dtype: as for `dynamic_rnn`.
        sequence_length: [B], each 0 to S; None: every sequence has S steps.

    Returns:
        A list of S outputs [B, ...], 0 past the end, and the state after each last token.

    Raises:
        ArgumentError, ArgumentTypeError: no list, an empty one, steps of unequal shape; as for
            `dynamic_rnn`.

    Source: TensorFlow 1, ``tf.nn.static_rnn``.

    >>> from unpad.cells import GRUCell
    >>> outputs, state = static_rnn(GRUCell(3, 4), [torch.zeros(2, 3)] * 5, sequence_length=[5, 0])
    >>> len(outputs), tuple(outputs[0].shape)
    (5, (2, 4))
    """
    check_cell(cell, "cell")
    _check_steps(cell, inputs)
    rows = len(inputs[0])
    lengths = torch.full((rows,), len(inputs), device="cpu")
    if sequence_length is not None:
        lengths = as_lengths(
            sequence_length, batch_size=rows, max_length=len(inputs), argument="sequence_length"
        )
    whole = Opened(inputs[0], torch.arange(rows + 1, device="cpu"), lambda values: values)
    state = made(_start(cell, initial_state, whole, dtype, "initial_state"))
    outputs: list[Tensor] = []
    for step, x in enumerate(inputs):
        live = (lengths > step).nonzero()[:, 0].to(x.device)
        output, state = _step(cell, x, state, live)
        outputs.append(output)
    return outputs, state


def _step(cell: nn.Module, x: Tensor, state: Nest, live: Tensor) -> tuple[Tensor, Nest]:
    """One step on the live rows; the others put out 0 and keep their state."""
    if len(live) == 0 and len(x):
        return x.new_zeros((len(x), *feature_shape(output_size_of(cell)))), state
    before = state if len(live) == len(x) else map_leaves(lambda leaf: leaf[live], state)
    result = cell(x if len(live) == len(x) else x[live], before)
    check_result(cell, result, len(live), before)
    output, new = result
    if len(live) == len(x):
        return output, new
    padded = output.new_zeros((len(x), *output.shape[1:])).index_copy(0, live, output)
    return padded, map_leaves(
        lambda old, leaf: old.index_copy(0, live, leaf.to(old.dtype)), state, new
    )


def _open(
    cell: nn.Module, inputs: Any, sequence_length: Any, time_major: bool, argument: str = "cell"
) -> Opened:
    check_cell(cell, argument)
    check_flag("time_major", time_major)
    features = feature_shape(size_of(cell, "input_size"))
    batch = open_input(
        inputs,
        sequence_length,
        features=features,
        batch_first=not time_major,
        like=lambda: torch.empty(0),
        argument="inputs",
        lengths_argument="sequence_length",
    )
    if not batch.batched:
        raise ArgumentError(
            "inputs",
            f"one sequence, shape {list(batch.values.shape)}",
            "[B, S, ...], or [S, B, ...] with time_major=True",
            "add the batch dimension: inputs.unsqueeze(0)",
        )
    return batch


def _start(
    cell: nn.Module, given: Nest, batch: Opened, dtype: torch.dtype | None, argument: str
) -> Nest:
    check_dtype(dtype)
    check_tokens(cell, "inputs", batch.values)
    if dtype is None and given is None:
        return start_unmade(cell, batch.batch_size, batch.values)
    if dtype is None:
        own = start(cell, batch.batch_size, batch.values)
    else:
        own = start_like(cell, batch.batch_size, dtype=dtype, device=batch.values.device)
    if given is None:
        return own
    state = check_state(given, own, argument)
    check_states(cell, argument, state)
    return state


def _check_steps(cell: nn.Module, inputs: Any) -> None:
    if not isinstance(inputs, (list, tuple)):
        raise ArgumentTypeError(
            "inputs",
            type(inputs).__name__,
            "a list of S tensors [B, ...], one for each step",
            "use dynamic_rnn for one tensor, or list(inputs.unbind(1))",
        )
    steps = cast("list[Any]", inputs)
    if not steps:
        raise ArgumentError("inputs", [], "at least one step", "use dynamic_rnn for no steps")
    features = feature_shape(size_of(cell, "input_size"))
    for number, step in enumerate(steps):
        wanted = (len(steps[0]), *features)
        if not isinstance(step, Tensor) or tuple(step.shape) != wanted:
            raise ArgumentError(
                f"inputs[{number}]",
                step,
                f"a tensor of shape {list(wanted)}",
                "give all steps one batch size and the cell's input_size",
            )
