"""TensorFlow 1's recurrent functions of two directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from unpad import functional
from unpad.cells.arguments import check_flag
from unpad.cells.compose import check_cells, size_of
from unpad.errors import ArgumentError
from unpad.jit import opaque
from unpad.nest import Nest
from unpad.tf1.cell import state_like
from unpad.tf1.nested import part
from unpad.tf1.rnn import check_form, check_same_dtype, prepare, stack_steps, unstack_steps
from unpad.tf1.waiting import waiting_if_refused


@opaque
def bidirectional_dynamic_rnn(
    cell_fw: nn.Module,
    cell_bw: nn.Module,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Nest = None,
    initial_state_bw: Nest = None,
    dtype: torch.dtype | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tuple[Any, Any], tuple[Nest, Nest]]:
    """Run one cell from each sequence's start and another from its end.

    Args:
        cell_fw: reads from the first step to the last.
        cell_bw: reads from the last step, not from the padding, to the first.
        inputs, dtype, parallel_iterations, swap_memory, time_major, scope: as for
            `unpad.tf1.dynamic_rnn`.
        sequence_length: [B], each 0 to S: this function checks them, as TensorFlow's does.
        initial_state_fw, initial_state_bw: one for each cell.

    Returns:
        ``((outputs_fw, outputs_bw), (state_fw, state_bw))``, not concatenated. The output of
        ``cell_bw`` at step t belongs to input t; ``state_bw`` is the state after the first step.

    Raises:
        ArgumentError, ArgumentTypeError: as for `unpad.tf1.dynamic_rnn`.

    Source: TensorFlow 1, ``tf.nn.bidirectional_dynamic_rnn``.

    >>> from unpad.tf1.cells import GRUCell
    >>> cells = GRUCell(4), GRUCell(5)
    >>> (forward, backward), states = bidirectional_dynamic_rnn(*cells, torch.zeros(2, 6, 3))
    >>> tuple(forward.shape), tuple(backward.shape)
    ((2, 6, 4), (2, 6, 5))
    """
    with waiting_if_refused(cell_fw, cell_bw):
        fw, values = prepare(cell_fw, inputs, "cell_fw")
        bw, _ = prepare(cell_bw, inputs, "cell_bw")
        check_same_dtype(fw, values, dtype)
        outputs, states = functional.bidirectional_dynamic_rnn(
            fw,
            bw,
            values,
            sequence_length,
            check_form(fw, initial_state_fw, "initial_state_fw", values),
            check_form(bw, initial_state_bw, "initial_state_bw", values),
            dtype,
            time_major=check_flag("time_major", time_major),
            memory="lean" if check_flag("swap_memory", swap_memory) else "fast",
        )
    ready = fw, bw
    found = [part(cell, output) for cell, output in zip(ready, outputs, strict=True)]
    finals = [
        state_like(size_of(cell, "state_size"), state)
        for cell, state in zip(ready, states, strict=True)
    ]
    return (found[0], found[1]), (finals[0], finals[1])


@opaque
def static_bidirectional_rnn(
    cell_fw: nn.Module,
    cell_bw: nn.Module,
    inputs: Sequence[Any],
    initial_state_fw: Nest = None,
    initial_state_bw: Nest = None,
    dtype: torch.dtype | None = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Nest, Nest]:
    """Run one cell from each sequence's start and another from its end, over a list of steps.

    Args:
        cell_fw, cell_bw, initial_state_fw, initial_state_bw, dtype, scope, sequence_length: as for
            `unpad.tf1.bidirectional_dynamic_rnn`.
        inputs: a list of S tensors [B, ...], one for each step.

    Returns:
        A list of S outputs [B, features of both], forward's first, the state of each direction.

    Raises:
        ArgumentError, ArgumentTypeError: as for `unpad.tf1.static_rnn`.

    Source: TensorFlow 1, ``tf.nn.static_bidirectional_rnn``.

    >>> from unpad.tf1.cells import GRUCell
    >>> outputs, fw, bw = static_bidirectional_rnn(GRUCell(4), GRUCell(5), [torch.zeros(2, 3)] * 6)
    >>> len(outputs), tuple(outputs[0].shape)
    (6, (2, 9))
    """
    outputs, (state_fw, state_bw) = bidirectional_dynamic_rnn(
        cell_fw,
        cell_bw,
        stack_steps(inputs),
        sequence_length,
        initial_state_fw,
        initial_state_bw,
        dtype,
        time_major=True,
    )
    return unstack_steps(torch.cat(outputs, -1)), state_fw, state_bw


@opaque
def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[nn.Module],
    cells_bw: Sequence[nn.Module],
    inputs: Any,
    initial_states_fw: Sequence[Nest] | None = None,
    initial_states_bw: Sequence[Nest] | None = None,
    dtype: torch.dtype | None = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[Any, tuple[Nest, ...], tuple[Nest, ...]]:
    """Run layers of two directions on each other: both outputs go into both cells of the next.

    Args:
        cells_fw, cells_bw: a cell of each direction for every layer.
        inputs, dtype, sequence_length, parallel_iterations, time_major, scope, swap_memory: as for
            `unpad.tf1.bidirectional_dynamic_rnn`.
        initial_states_fw, initial_states_bw: a list with a state (or None) for every layer.

    Returns:
        The last layer's outputs, forward's and backward's features side by side; the states of
        every layer, forward's and backward's.

    Raises:
        ArgumentError, ArgumentTypeError: lists of unequal length; as for the layers.

    Source: tf.contrib.rnn.stack_bidirectional_dynamic_rnn.

    >>> from unpad.tf1.cells import GRUCell
    >>> fw, bw = [GRUCell(4), GRUCell(5)], [GRUCell(4), GRUCell(5)]
    >>> outputs, states, _ = stack_bidirectional_dynamic_rnn(fw, bw, torch.zeros(2, 6, 3))
    >>> tuple(outputs.shape), len(states)
    ((2, 6, 10), 2)
    """
    forward = check_cells(cells_fw, "cells_fw")
    backward = check_cells(cells_bw, "cells_bw")
    _check_count("cells_bw", backward, len(forward))
    starts_fw = _check_count("initial_states_fw", initial_states_fw, len(forward))
    starts_bw = _check_count("initial_states_bw", initial_states_bw, len(forward))
    finals_fw: list[Nest] = []
    finals_bw: list[Nest] = []
    with waiting_if_refused(*forward, *backward):
        for layer in zip(forward, backward, starts_fw, starts_bw, strict=True):
            cell_fw, cell_bw, start_fw, start_bw = layer
            outputs, (final_fw, final_bw) = bidirectional_dynamic_rnn(
                cell_fw,
                cell_bw,
                inputs,
                sequence_length,
                start_fw,
                start_bw,
                dtype,
                swap_memory=swap_memory,
                time_major=time_major,
            )
            inputs = torch.cat(outputs, -1)
            finals_fw.append(final_fw)
            finals_bw.append(final_bw)
    return inputs, tuple(finals_fw), tuple(finals_bw)


def _check_count(argument: str, given: Sequence[Any] | None, layers: int) -> Sequence[Any]:
    if given is None:
        return [None] * layers
    if len(given) != layers:
        raise ArgumentError(
            argument,
            f"{len(given)} entries",
            f"{layers}, one for each layer",
            "give every layer one",
        )
    return given
