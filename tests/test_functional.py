"""dynamic_rnn and its kin: TensorFlow 1's meaning, against the oracle and against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import oracle
from random_cells import random_cell
from unpad.cells import Cell, GRUCell, LayerNormLSTMCell, LSTMCell, Stack
from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError
from unpad.functional import bidirectional_dynamic_rnn, dynamic_rnn, static_rnn
from unpad.nest import leaves, map_leaves
from unpad.ragged import Ragged
from unpad.states import select_rows

CELLS = {
    "gru": lambda: GRUCell(3, 4).double(),
    "lstm": lambda: LSTMCell(3, 4, proj_size=2).double(),
    "stack": lambda: Stack([LSTMCell(3, 4), GRUCell(4, 2)]).double(),
    "random": lambda: random_cell(3),
}


@pytest.fixture(params=CELLS)
def cell(request):
    return CELLS[request.param]()


def padded(cell, lengths, total=None, pad=float("nan")):
    """x [B, S, I] with NaN in the pads, its ragged form, and a random state."""
    x, offsets, state = oracle.batch(cell, lengths)
    ragged = Ragged(x, offsets)
    total = max(lengths, default=0) if total is None else total
    return ragged.to_padded(total_length=total, value=pad).requires_grad_(), ragged, state


@pytest.mark.parametrize("lengths", [[2, 5, 1, 4], [0, 3, 0, 2], [0, 0], [3, 3]])
def test_dynamic_rnn_is_the_loop_with_zero_output_past_the_end(cell, lengths):
    x, ragged, state = padded(cell, lengths, total=6)
    outputs, final = dynamic_rnn(cell, x, lengths, state)
    wanted, wanted_final, _ = oracle.loop(cell, ragged.values, ragged.offsets, state)
    oracle.assert_close(outputs, ragged.with_values(wanted).to_padded(total_length=6), 1e-10)
    for a, b in zip(leaves(final), leaves(wanted_final), strict=True):
        oracle.assert_close(a, b, 1e-10)
    loss = oracle.random_loss([outputs, *leaves(final)], 0)
    if sum(lengths):
        gradients = torch.autograd.grad(loss, [x, *cell.parameters()], allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients), "NaN leaked from a pad"


@given(lengths=oracle.lengths(max_batch=4, max_length=5))
def test_static_rnn_has_the_numbers_and_gradients_of_dynamic_rnn(lengths):
    cell = LayerNormLSTMCell(3, 4).double()
    x, _, state = padded(cell, lengths, total=max(lengths, default=0) + 1)
    state = map_leaves(lambda leaf: leaf.requires_grad_(), state)
    found = []
    for outputs, final in (
        static_rnn(cell, list(x.unbind(1)), state, sequence_length=lengths),
        dynamic_rnn(cell, x, lengths, state),
    ):
        if isinstance(outputs, list):
            outputs = torch.stack(outputs, 1)
        loss = oracle.random_loss([outputs, *leaves(final)], 0)
        inputs = [x, *leaves(state), *cell.parameters()]
        gradients = torch.autograd.grad(loss, inputs, materialize_grads=True)
        found.append([outputs, *leaves(final), *gradients])
    for a, b in zip(*found, strict=True):
        oracle.assert_close(a, b, 1e-10)


def test_static_rnn_calls_the_cell_on_live_rows_alone():
    class Count(Cell):
        input_size = state_size = 2
        rows: list[int] = []  # noqa: RUF012 - a record of the calls

        def forward(self, x, state):
            self.rows.append(len(x))
            return state + x, state + x

    cell = Count()
    static_rnn(cell, [torch.ones(4, 2)] * 5, sequence_length=[3, 1, 0, 2])
    assert cell.rows == [3, 2, 1]


def test_without_lengths_every_sequence_is_whole(cell):
    x, _, state = padded(cell, [4, 4])
    outputs, final = dynamic_rnn(cell, x, initial_state=state)
    given, given_final = dynamic_rnn(cell, x, [4, 4], state)
    assert torch.equal(outputs, given)
    listed, _ = static_rnn(cell, list(x.unbind(1)), state)
    oracle.assert_close(torch.stack(listed, 1), outputs, 1e-10)
    for a, b in zip(leaves(final), leaves(given_final), strict=True):
        assert torch.equal(a, b)


def test_time_major_is_the_same_with_the_axes_swapped(cell):
    x, _, state = padded(cell, [2, 0, 3])
    outputs, final = dynamic_rnn(cell, x, [2, 0, 3], state)
    swapped, swapped_final = dynamic_rnn(cell, x.transpose(0, 1), [2, 0, 3], state, time_major=True)
    assert torch.equal(swapped.transpose(0, 1), outputs)
    for a, b in zip(leaves(final), leaves(swapped_final), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lengths", [[2, 5, 1], [0, 3, 0]])
def test_bidirectional_reads_backward_from_each_true_end(lengths):
    forward, backward = GRUCell(3, 4).double(), LSTMCell(3, 2).double()
    x, ragged, state = padded(forward, lengths, total=6)
    _, _, state_bw = padded(backward, lengths)
    outputs, states = bidirectional_dynamic_rnn(forward, backward, x, lengths, state, state_bw)
    assert isinstance(outputs, tuple)
    for cell, output, final, start, reverse in (
        (forward, outputs[0], states[0], state, False),
        (backward, outputs[1], states[1], state_bw, True),
    ):
        wanted, wanted_final, _ = oracle.loop(
            cell, ragged.values, ragged.offsets, start, reverse=reverse
        )
        oracle.assert_close(output, ragged.with_values(wanted).to_padded(total_length=6), 1e-10)
        for a, b in zip(leaves(final), leaves(wanted_final), strict=True):
            oracle.assert_close(a, b, 1e-10)


def test_lengths_may_be_given_in_any_form():
    cell = GRUCell(3, 4)
    x = torch.randn(3, 5, 3)
    wanted, _ = dynamic_rnn(cell, x, [2, 0, 5])
    for lengths in ((2, 0, 5), np.array([2, 0, 5]), torch.tensor([2, 0, 5], dtype=torch.int32)):
        assert torch.equal(dynamic_rnn(cell, x, lengths)[0], wanted)


def test_ragged_input_gives_ragged_output_and_every_state():
    cell = LSTMCell(3, 4)
    ragged = Ragged.from_list([torch.randn(2, 3), torch.randn(0, 3), torch.randn(4, 3)])
    outputs, (h, c), (every_h, every_c) = dynamic_rnn(cell, ragged, return_states=True)
    assert isinstance(outputs, Ragged)
    assert torch.equal(every_h.values, outputs.values)
    assert torch.equal(every_c.values[-1], c[2])
    assert torch.equal(outputs.values[1], h[0])


def test_no_sequence_and_no_step():
    cell = LSTMCell(3, 4)
    outputs, (h, _) = dynamic_rnn(cell, torch.zeros(0, 5, 3))
    assert outputs.shape == (0, 5, 4)
    assert h.shape == (0, 4)
    outputs, (h, _) = dynamic_rnn(cell, torch.zeros(2, 0, 3), [0, 0])
    assert outputs.shape == (2, 0, 4)
    assert not h.any()
    outputs, _ = static_rnn(cell, [torch.zeros(2, 3)], sequence_length=[0, 0])
    assert outputs[0].shape == (2, 4)


# A state of another dtype than the input is beyond the compiler: the eager loop says that it runs.
@pytest.mark.filterwarnings("ignore:.*eager loop")
def test_dtype_is_that_of_the_cells_own_initial_state():
    class Count(Cell):
        input_size = 3
        state_size = 1

        def forward(self, x, state):
            return state, state + 1

    _, state = dynamic_rnn(Count(), torch.zeros(2, 4, 3), [4, 1], dtype=torch.float64)
    assert state.dtype == torch.float64
    assert state[:, 0].tolist() == [4, 1]


def test_rows_of_a_state_are_selected_by_slice_list_or_mask():
    state = (torch.arange(8.0).reshape(4, 2), (torch.arange(4),))
    for rows in (
        slice(1, 3),
        [1, 2],
        torch.tensor([1, 2]),
        torch.tensor([False, True, True, False]),
    ):
        matrix, (vector,) = select_rows(state, rows)
        assert matrix.tolist() == [[2, 3], [4, 5]]
        assert vector.tolist() == [1, 2]
    stacked = torch.arange(6).reshape(1, 3, 2)
    assert select_rows(stacked, [2, 0], dim=1).tolist() == [[[4, 5], [0, 1]]]
    for rows, dim in (([2], 0), ([3], 1), (torch.tensor([True]), 1), ([0], 2 + 1)):
        with pytest.raises(RowIndexError, match=r"`rows`.*\[1, 3, 2\].*dim=1"):
            select_rows(stacked, rows, dim=dim)


def test_bad_calls_are_refused_by_name_before_any_work():
    class Never(GRUCell):
        def forward(self, x, state):
            raise AssertionError("the cell must not be called")

    cell = Never(3, 4)
    x = torch.randn(2, 5, 3)
    steps = list(x.unbind(1))
    both = GRUCell(3, 4), cell
    refused = [
        (ArgumentError, "sequence_length", lambda: dynamic_rnn(cell, x, [1, 6])),
        (ArgumentError, "sequence_length", lambda: dynamic_rnn(cell, x, [1, -1])),
        (ArgumentTypeError, "sequence_length", lambda: dynamic_rnn(cell, x, [2.9, 0.5])),
        (ArgumentError, "sequence_length", lambda: dynamic_rnn(cell, x, [1, 2, 3])),
        (ArgumentError, "sequence_length", lambda: static_rnn(cell, steps, sequence_length=[1, 6])),
        (ArgumentError, "sequence_length", lambda: bidirectional_dynamic_rnn(*both, x, [1, 6])),
        (ArgumentTypeError, "inputs", lambda: dynamic_rnn(cell, None)),
        (ArgumentError, "inputs", lambda: dynamic_rnn(cell, torch.randn(5, 3))),
        (ArgumentError, "inputs.*4 features", lambda: dynamic_rnn(cell, torch.randn(2, 5, 4))),
        (ArgumentTypeError, "inputs", lambda: static_rnn(cell, x)),
        (ArgumentError, "inputs", lambda: static_rnn(cell, [])),
        (ArgumentError, r"inputs\[1\]", lambda: static_rnn(cell, [x[:, 0], x[:1, 0]])),
        (ArgumentTypeError, "cell", lambda: dynamic_rnn(4, x)),
        (ArgumentTypeError, "unpad.nn.GRUCell", lambda: dynamic_rnn(nn.GRUCell(3, 4), x)),
        (ArgumentError, "initial_state", lambda: dynamic_rnn(cell, x, None, torch.zeros(1, 4))),
        (ArgumentTypeError, "initial_state", lambda: dynamic_rnn(cell, x, None, (x, x))),
    ]
    for error, message, call in refused:
        with pytest.raises(error, match=message):
            call()
