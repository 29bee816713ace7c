"""`Recurrent`: any cell or cells on each other, against the oracle layer by layer."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import oracle
import unpad.nn as un
from random_cells import random_cell
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import leaves
from unpad.ragged import Ragged
from unpad.states import select_rows

LENGTHS = [2, 5, 0, 4, 1]


class Decay(un.Cell):
    """A user's cell: a leaky sum of what a plain product makes of the input."""

    def __init__(self, input_size, size):
        super().__init__()
        self.input_size, self.state_size = input_size, size
        self.map = nn.Linear(input_size, size)

    def forward(self, x, state):
        new = 0.9 * state + torch.tanh(self.map(x))
        return new, new


def rows_of(size, lengths=LENGTHS):
    return [torch.randn(n, size, dtype=torch.float64, requires_grad=True) for n in lengths]


def alone(layer, rows):
    """The output values and the final states of a Recurrent, by the oracle, layer by layer."""
    x, offsets, finals = torch.cat(rows), oracle.offsets_of([len(row) for row in rows]), []
    backward = layer.backward_cells if layer.bidirectional else [None] * len(layer.cells)
    for cell, other in zip(layer.cells, backward, strict=True):
        runs = [
            oracle.loop(
                each,
                x,
                offsets,
                each.initial_state(len(rows), dtype=x.dtype),
                reverse=each is other,
            )
            for each in (cell, other)
            if each is not None
        ]
        x = torch.cat([output for output, _, _ in runs], dim=1)
        finals += [final for _, final, _ in runs]
    return x, leaves(tuple(finals))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_gru_on_an_lstm_on_a_users_cell(bidirectional):
    times = 2 if bidirectional else 1
    cells = [Decay(3, 4), un.LSTMCell(4 * times, 16), un.GRUCell(16 * times, 8)]
    layer = un.Recurrent(cells, bidirectional).double()
    rows = rows_of(3)
    outputs, final = layer(rows)
    wanted, wanted_final = alone(layer, rows)
    assert [len(output) for output in outputs] == LENGTHS
    assert outputs[0].shape[1] == 8 * times
    found = [torch.cat(outputs), *leaves(final)]
    wanted = [wanted, *wanted_final]
    for a, b in zip(found, wanted, strict=True):
        oracle.assert_close(a, b, 1e-10)
    inputs = [*rows, *layer.parameters()]
    gradients = [torch.autograd.grad(oracle.random_loss(r, 0), inputs) for r in (found, wanted)]
    for a, b in zip(*gradients, strict=True):
        oracle.assert_close(a, b, 1e-10)


def test_final_states_are_named_by_direction_and_listed_by_layer():
    rows = [torch.randn(n, 3) for n in LENGTHS]
    assert un.Recurrent(un.GRUCell(3, 4))(rows)[1].shape == (5, 4)
    h, c = un.Recurrent(un.LSTMCell(3, 4))(rows)[1]
    assert h.shape == c.shape == (5, 4)
    (only,) = un.Recurrent([un.GRUCell(3, 4)])(rows)[1]
    assert only.shape == (5, 4)
    layer = un.Recurrent(un.GRUCell(3, 4), bidirectional=True)
    outputs, final = layer(rows)
    for place, output in enumerate(outputs):
        if len(output):
            assert torch.equal(final.forward[place], output[-1, :4])
            assert torch.equal(final.backward[place], output[0, 4:])
    lower, upper = un.Recurrent([un.GRUCell(3, 4), un.LSTMCell(8, 2)], bidirectional=True)(rows)[1]
    assert lower.backward.shape == (5, 4)
    assert upper.forward[1].shape == (5, 2)


def test_every_form_of_input_gives_back_its_own():
    layer = un.Recurrent(un.LSTMCell(3, 4), bidirectional=True)
    rows = [torch.randn(n, 3) for n in (2, 5, 1)]
    ragged = Ragged.from_list(rows)
    wanted, final, (states, backward) = layer(ragged, return_states=True)
    assert isinstance(wanted, Ragged)
    assert isinstance(states[1], Ragged)
    assert isinstance(backward[1], Ragged)
    packed, packed_final, packed_states = layer(
        pack_sequence(rows, enforce_sorted=False), return_states=True
    )
    assert isinstance(packed, PackedSequence)
    assert torch.equal(Ragged.from_packed(packed).values, wanted.values)
    assert torch.equal(Ragged.from_packed(packed_states.backward[1]).values, backward[1].values)
    for a, b in zip(leaves(final), leaves(packed_final), strict=True):
        assert torch.equal(a, b)
    padded = ragged.to_padded(total_length=6, value=float("nan"))
    output, _, (padded_states, _) = layer(padded, lengths=[2, 5, 1], return_states=True)
    assert torch.equal(output, wanted.to_padded(total_length=6))
    assert torch.equal(padded_states[1], states[1].to_padded(total_length=6))
    time_major = un.Recurrent(layer.cells[0], batch_first=False)
    output, _ = time_major(padded.transpose(0, 1), lengths=[2, 5, 1])
    assert torch.equal(
        output, wanted.map(lambda v: v[:, :4]).to_padded(total_length=6).transpose(0, 1)
    )
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    assert torch.equal(layer(jagged)[0].values(), wanted.values)


def test_one_sequence_without_a_batch_axis():
    layer = un.Recurrent([un.LSTMCell(3, 4), un.GRUCell(4, 2)])
    x = torch.randn(5, 3)
    output, final, states = layer(x, return_states=True)
    batched, batched_final, batched_states = layer(x[None], return_states=True)
    assert torch.equal(output, batched[0])
    for a, b in zip(leaves((final, states)), leaves((batched_final, batched_states)), strict=True):
        assert torch.equal(a, b[0])
    again, _ = layer(x, final)
    assert torch.equal(again, layer(x[None], batched_final)[0][0])


def test_every_state_at_every_step_is_that_of_the_loop():
    layer = un.Recurrent([un.LSTMCell(3, 4), Decay(4, 2)], return_states=True).double()
    rows = rows_of(3)
    _, final, (lower, upper) = layer(rows)
    x, offsets = torch.cat(rows), oracle.offsets_of(LENGTHS)
    output, _, states = oracle.loop(
        layer.cells[0], x, offsets, layer.cells[0].initial_state(5, dtype=torch.float64)
    )
    _, _, wanted = oracle.loop(
        layer.cells[1], output, offsets, torch.zeros(5, 2, dtype=torch.float64)
    )
    for a, b in zip([*lower, upper], [*states, wanted], strict=True):
        oracle.assert_close(torch.cat(a), b, 1e-10)
    oracle.assert_close(lower[1][1][-1], final[0][1][1], 1e-12)
    assert len(layer(rows, return_states=False)) == 2


def test_two_runs_with_a_carried_state_are_one_run():
    layer = un.Recurrent([un.LSTMCell(3, 4), un.GRUCell(4, 2)])
    x = torch.randn(4, 9, 3)
    whole, final = layer(x)
    first, state = layer(x[:, :4])
    second, last = layer(x[:, 4:], state)
    oracle.assert_close(torch.cat([first, second], 1), whole, 1e-6)
    for a, b in zip(leaves(last), leaves(final), strict=True):
        oracle.assert_close(a, b, 1e-6)


def test_a_state_of_8_carries_on_with_1_or_3_of_its_rows():
    layer = un.Recurrent([un.LSTMCell(3, 4), un.GRUCell(4, 2)], bidirectional=False)
    _, state = layer(torch.randn(8, 5, 3))
    x = torch.randn(3, 2, 3)
    with pytest.raises(ArgumentError, match=r"\[8, 4\].*\[3, 4\].*select_rows"):
        layer(x, state)
    output, _ = layer(x, select_rows(state, slice(3)))
    oracle.assert_close(layer(x[1:2], select_rows(state, [1]))[0], output[1:2], 1e-6)


def test_an_initial_state_that_is_given_gets_its_gradient():
    layer = un.Recurrent([un.LSTMCell(3, 4), un.GRUCell(8, 2)], bidirectional=True).double()
    rows = rows_of(3, [2, 0, 3])
    _, like = layer(rows)
    flat = [torch.randn_like(leaf).requires_grad_() for leaf in leaves(like)]

    def run(*flat):
        (h, c, h_b, c_b, low, high) = flat
        state = (un.Directions((h, c), (h_b, c_b)), un.Directions(low, high))
        outputs, final = layer(rows, state)
        return (torch.cat(outputs), *leaves(final))

    assert torch.autograd.gradcheck(run, flat)


def test_a_learned_initial_state_is_one_for_all_rows_and_learns():
    layer = un.Recurrent(
        [un.LSTMCell(3, 4), un.GRUCell(8, 2)], bidirectional=True, learned_initial_state=True
    )
    names = [name for name, _ in layer.named_parameters() if name.startswith("initial")]
    assert len(names) == 6
    rows = [torch.randn(n, 3) for n in (2, 0, 3)]
    with torch.no_grad():
        for parameter in layer.initial:
            parameter.normal_()
    _, (lower, upper) = layer(rows)
    assert torch.equal(lower.forward[1][1], layer.initial[1])
    assert torch.equal(upper.backward[1], layer.initial[5])
    lower.forward[0].sum().backward()
    assert layer.initial[0].grad is not None
    assert not torch.equal(layer.initial[0].grad, torch.ones(4))
    sizes = {len(layer(torch.randn(n, 4, 3))[0]) for n in (1, 8)}
    assert sizes == {1, 8}


def test_the_gradient_of_a_learned_state_is_the_sum_over_the_rows():
    layer = un.Recurrent(un.GRUCell(3, 4), learned_initial_state=True).double()
    _, final = layer([torch.zeros(0, 3, dtype=torch.float64)] * 3)
    weights = torch.randn(3, 4, dtype=torch.float64)
    (final * weights).sum().backward()
    oracle.assert_close(layer.initial[0].grad, weights.sum(0), 1e-12)


def test_a_cells_own_initial_state_is_used_whatever_arguments_it_takes():
    class Ones(Decay):
        def initial_state(self, batch_size):
            return torch.ones(batch_size, 4)

    _, final = un.Recurrent(Ones(3, 4))([torch.randn(0, 3), torch.randn(2, 3)])
    assert torch.equal(final[0], torch.ones(4))
    learned = un.Recurrent(Ones(3, 4), learned_initial_state=True)
    assert torch.equal(learned.initial[0], torch.ones(4))


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_random_cells_in_both_directions(seed):
    layer = un.Recurrent(random_cell(seed), bidirectional=True)
    rows = rows_of(layer.input_size)
    outputs, final = layer(rows)
    wanted, wanted_final = alone(layer, rows)
    oracle.assert_close(torch.cat(outputs), wanted, 1e-10)
    for a, b in zip(leaves(final), wanted_final, strict=True):
        oracle.assert_close(a, b, 1e-10)


def test_the_backward_copy_starts_afresh_with_weights_of_its_own():
    layer = un.Recurrent(un.Stack([un.GRUCell(3, 4), un.LayerNormLSTMCell(4, 4)]), True)
    forward, backward = layer.cells[0].cells[0], layer.backward_cells[0].cells[0]
    assert not torch.equal(forward.weight_ih, backward.weight_ih)
    assert len(list(layer.parameters())) == 2 * len(list(layer.cells[0].parameters()))
    given = un.GRUCell(3, 4)
    layer = un.Recurrent(un.GRUCell(3, 4), True, backward_cell=given)
    assert layer.backward_cells[0] is given


def test_shared_cells_are_warned_of_and_named():
    with pytest.warns(UserWarning, match=r"cell\[0\] and cell\[1\] are the same GRUCell") as caught:
        layer = un.Recurrent([un.GRUCell(4, 4)] * 3)
    assert caught[0].filename == __file__
    assert len(list(layer.parameters())) == 4
    cell = un.GRUCell(4, 4)
    with pytest.warns(UserWarning, match=r"cell\[0\] and backward_cell\[0\]"):
        un.Recurrent(cell, True, backward_cell=cell)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        un.Recurrent([un.GRUCell(4, 4) for _ in range(3)])


def test_copies_give_the_same_numbers():
    layer = un.Recurrent(
        [un.LSTMCell(3, 4), un.GRUCell(8, 2)], bidirectional=True, learned_initial_state=True
    )
    x = torch.randn(2, 5, 3)
    wanted = layer(x)[0]
    other = un.Recurrent(
        [un.LSTMCell(3, 4), un.GRUCell(8, 2)], bidirectional=True, learned_initial_state=True
    )
    other.load_state_dict(layer.state_dict())
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        assert torch.equal(copied(x)[0], wanted)


def test_tokens_of_higher_rank():
    class Grid(un.Cell):
        input_size = torch.Size([2, 3])
        state_size = torch.Size([2, 3])

        def forward(self, x, state):
            new = 0.5 * state + x
            return new, new

    layer = un.Recurrent(Grid(), bidirectional=True)
    x = torch.randn(4, 5, 2, 3)
    output, final = layer(x, lengths=[5, 0, 2, 1])
    assert output.shape == (4, 5, 2, 6)
    oracle.assert_close(final.forward[2], 0.5 * x[2, 0] + x[2, 1], 1e-6)
    oracle.assert_close(final.backward[2], 0.5 * x[2, 1] + x[2, 0], 1e-6)


def test_a_memory_that_the_cell_captured_gets_its_gradient():
    class Attend(un.Cell):
        def __init__(self, memory):
            super().__init__()
            self.input_size, self.state_size = 3, 4
            self.memory, self.map = memory, nn.Linear(3, 4, dtype=memory.dtype)

        def forward(self, x, state):
            weights = torch.softmax((self.map(x) + state) @ self.memory.t(), dim=1)
            new = weights @ self.memory
            return new, new

    cell = Attend(torch.randn(5, 4, dtype=torch.float64))
    rows = rows_of(3, [2, 0, 3])

    def run(memory):
        cell.memory = memory
        outputs, final = un.Recurrent(cell)(rows)
        return torch.cat(outputs), final

    memory = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, memory)


def test_bad_arguments_are_refused_by_name():
    refused = [
        (ArgumentTypeError, "unpad.nn.LSTMCell", lambda: un.Recurrent(nn.LSTMCell(3, 4))),
        (ArgumentTypeError, "cell", lambda: un.Recurrent(nn.Linear(3, 4))),
        (ArgumentTypeError, "cell", lambda: un.Recurrent(4)),
        (ArgumentError, "cell", lambda: un.Recurrent([])),
        (ArgumentTypeError, "bidirectional", lambda: un.Recurrent(un.GRUCell(3, 4), 2)),
        (
            ArgumentError,
            r"cells\[1\].*input_size 4.*8.*both directions",
            lambda: un.Recurrent([un.GRUCell(3, 4), un.GRUCell(4, 4)], True),
        ),
        (
            ArgumentError,
            "backward_cell",
            lambda: un.Recurrent(un.GRUCell(3, 4), True, backward_cell=un.GRUCell(3, 5)),
        ),
        (
            ArgumentError,
            "backward_cell",
            lambda: un.Recurrent(un.GRUCell(3, 4), backward_cell=un.GRUCell(3, 4)),
        ),
    ]
    for error, message, build in refused:
        with pytest.raises(error, match=message):
            build()


def test_bad_calls_are_refused_by_name():
    layer = un.Recurrent(un.LSTMCell(3, 4))
    x = torch.randn(2, 5, 3)
    state = (torch.zeros(2, 4), torch.zeros(2, 4))
    refused = [
        (ArgumentError, "lengths", lambda: layer(x, lengths=[1, 6])),
        (ArgumentError, "5 features.*3 features", lambda: layer(torch.randn(2, 3, 5))),
        (ArgumentTypeError, "initial_state", lambda: layer(x, state[0])),
        (ArgumentTypeError, "initial_state", lambda: layer(x, (*state, state[0]))),
        (ArgumentTypeError, "initial_state", lambda: layer(x, (0.0, 0.0))),
        (ArgumentError, r"\[2, 4\]", lambda: layer(x, (torch.zeros(2, 5), state[1]))),
        (ArgumentTypeError, "int64", lambda: layer(x, (state[0].long(), state[1]))),
    ]
    for error, message, call in refused:
        with pytest.raises(error, match=message):
            call()
    assert torch.equal(layer(x, list(state))[0], layer(x, state)[0])
