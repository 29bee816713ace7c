"""`unpad.tf1.raw_rnn`: its loop function's five parts, its edges, its gradients."""

from __future__ import annotations

import re

import pytest
import torch

from unpad import ArgumentError, ArgumentTypeError, tf1

GRU = tf1.GRUCell(4)
GRU.build(3)
LSTM = tf1.LSTMCell(4)
LSTM.build(3)
X = torch.randn(4, 6, 3)
H = torch.randn(4, 4)
DONE, LIVE = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def test_raw_rnn_as_tensorflows_documentation_writes_it():
    x, lengths = torch.randn(4, 6, 3), torch.tensor([6, 0, 2, 5])
    for row, length in enumerate(lengths):
        x[row, length:] = float("nan")
    array = tf1.TensorArray(dtype=torch.float32, size=6).unstack(x.transpose(0, 1))

    def loop(time, output, state, loop_state):
        finished = time >= lengths
        x_t = torch.zeros(4, 3) if bool(finished.all()) else array.read(time)
        return finished, x_t, GRU.zero_state(4) if output is None else state, output, None

    emitted, state, _ = tf1.raw_rnn(GRU, loop)
    wanted, final = tf1.dynamic_rnn(GRU, x, lengths)
    torch.testing.assert_close(emitted.stack().transpose(0, 1), wanted)
    torch.testing.assert_close(state, final)
    found = torch.autograd.grad(emitted.stack().sum(), list(GRU.parameters()))
    for a, b in zip(found, torch.autograd.grad(wanted.sum(), list(GRU.parameters())), strict=True):
        torch.testing.assert_close(a, b)
    written = tf1.TensorArray(torch.float32, 2).write(1, x[0, 0]).write(0, x[0, 1])
    torch.testing.assert_close(written.stack(), x[0, :2].flip(0))


def over_at_once(cell, x, state, emit=None):
    return tf1.raw_rnn(cell, lambda *_: (DONE, x, state, emit, None))


def test_raw_rnn_that_is_over_at_once_emits_nothing_and_keeps_the_state():
    emitted, state, loop_state = over_at_once(GRU, X[:, 0], H)
    assert emitted.stack().shape == (0, 4, 4)
    assert torch.equal(state, H)
    assert loop_state is None


@pytest.mark.parametrize("cell", [GRU, LSTM, tf1.MultiRNNCell([LSTM, tf1.GRUCell(2)])])
def test_a_loop_that_is_over_at_once_has_gradients_of_zero(cell):
    """All lengths 0: TensorFlow's gradients of the loop's variables are zeros there, not None."""
    x = torch.randn(4, 3, requires_grad=True)
    emitted, state, _ = over_at_once(cell, x, cell.zero_state(4))
    for result in (emitted.stack(), *torch.utils._pytree.tree_leaves(state)):
        wanted = [x, *cell.parameters()]
        found = torch.autograd.grad(result.sum(), wanted, retain_graph=True)
        assert all(not gradient.any() for gradient in found)


def test_the_state_of_a_loop_that_is_over_at_once_is_the_initial_state_with_gradient_one():
    state = H.clone().requires_grad_()
    _, final, _ = over_at_once(GRU, X[:, 0], state)
    (gradient,) = torch.autograd.grad(final.sum(), state)
    assert torch.equal(gradient, torch.ones(4, 4))


def test_nan_in_the_weights_of_a_loop_that_is_over_at_once_reaches_nothing():
    cell = tf1.GRUCell(4)
    cell.build(3)
    torch.nn.init.constant_(cell.gates_kernel, float("nan"))
    _, final, _ = over_at_once(cell, X[:, 0], H)
    assert torch.equal(final, H)
    (gradient,) = torch.autograd.grad(final.sum(), cell.gates_kernel)
    assert not gradient.any()


def counting(first, later):
    """A loop of three steps whose loop state is given by two functions of its number."""

    def loop(time, output, state, loop_state):
        kept = first if output is None else later(time, loop_state)
        return torch.full((4,), time >= 3), X[:, 0], H if output is None else state, output, kept

    return tf1.raw_rnn(GRU, loop)[2]


def test_a_loop_state_of_none_keeps_the_last_one():
    assert counting(5, lambda time, kept: None) == 5
    assert counting(0, lambda time, kept: kept + 1 if time < 3 else None) == 2


def test_no_loop_state_at_first_is_none_at_the_end():
    assert counting(None, lambda time, kept: time) is None


def refused(cell, *calls):
    """The message about the last of these calls' results."""

    def loop(time, output, state, _):
        given = calls[time]
        return given(output, state) if callable(given) else given

    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        tf1.raw_rnn(cell, loop)
    return str(caught.value)


START = (LIVE, X[:, 0], H, None, None)


def test_a_loop_function_that_is_none_is_refused():
    with pytest.raises(ArgumentTypeError, match="loop_fn"):
        tf1.raw_rnn(GRU, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (START[:4], "4 values at time 0"),
        (None, "None at time 0"),
        ((True, *START[1:]), "finished at time 0"),
        ((torch.zeros(4), *START[1:]), "finished at time 0"),
        ((LIVE[:, None], *START[1:]), "finished at time 0"),
        ((LIVE, X[:3, 0], H, None, None), "next_input at time 0.*4 rows"),
        ((LIVE, None, H, None, None), "next_input at time 0"),
        ((LIVE, X[:, 0].double(), H, None, None), "next_input at time 0.*float64"),
        ((LIVE, X[:, 0], None, None, None), "next_state at time 0.*the initial state"),
        ((LIVE, X[:, 0], H[:, :2], None, None), "next_state at time 0"),
        ((LIVE, X[:, 0], H.double(), None, None), "next_state at time 0.*float64"),
        ((LIVE, X[:, 0], (H, H), None, None), "next_state at time 0"),
        ((LIVE, X[:, 0], H, 4, None), "emit at time 0"),
    ],
)
def test_what_the_first_call_gives_is_checked_in_words(given, words):
    text = refused(GRU, given)

    assert re.search(words, text.replace("\n", " ")), text
    assert "remedy" in text


def test_a_plain_tuple_for_an_lstms_state_is_refused():
    assert "LSTMStateTuple" in refused(LSTM, (LIVE, X[:, 0], (H, H), None, None))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda y, s: (LIVE[:3], X[:, 0], s, y, None), "finished at time 1"),
        (lambda y, s: (LIVE, X[:, 0, :2], s, y, None), "next_input at time 1"),
        (lambda y, s: (LIVE, (X[:, 0],), s, y, None), "next_input at time 1"),
        (lambda y, s: (LIVE, X[:, 0], s[:, :2], y, None), "next_state at time 1"),
        (lambda y, s: (LIVE, X[:, 0], s.double(), y, None), "next_state at time 1"),
        (lambda y, s: (LIVE, X[:, 0], None, y, None), "next_state at time 1"),
        (lambda y, s: (LIVE, X[:, 0], s, y[:, :2], None), "emit at time 1"),
        (lambda y, s: (LIVE, X[:, 0], s, y.double(), None), "emit at time 1"),
        (lambda y, s: (LIVE, X[:, 0], s, (y, y), None), "emit at time 1"),
    ],
)
def test_what_a_later_call_gives_is_checked_in_words(given, words):
    text = refused(GRU, START, given)
    assert words in text
    assert "remedy" in text


def test_what_is_emitted_keeps_to_the_form_shown_first():
    shown = (LIVE, X[:, 0], H, torch.zeros(2), None)
    for emit in (None, torch.zeros(4, 3), torch.zeros(2)):
        text = refused(GRU, shown, lambda y, s, emit=emit: (LIVE, X[:, 0], s, emit, None))
        assert "emit at time 1" in text
        assert "[4, 2]" in text


def test_a_nest_that_is_emitted_comes_back_as_a_nest():
    form = {"double": torch.zeros(4), "step": torch.zeros((), dtype=torch.int64)}

    def loop(time, output, state, _):
        emit = form
        if output is not None:
            emit = {"double": 2 * output, "step": torch.full((4,), time)}
        ended = torch.tensor([time >= n for n in (2, 0, 3, 1)])
        return ended, X[:, 0], H if output is None else state, emit, None

    emitted, _, _ = tf1.raw_rnn(GRU, loop)
    assert emitted["double"].stack().shape == (3, 4, 4)
    assert emitted["step"].stack().tolist() == [[1, 0, 1, 1], [2, 0, 2, 0], [0, 0, 3, 0]]


@pytest.mark.parametrize("index", [2, 99, -3])
def test_a_step_that_an_array_does_not_have_is_told_by_its_number(index):
    array = tf1.TensorArray.of([torch.zeros(3)] * 2, torch.zeros(3))
    with pytest.raises(IndexError, match=f"`index`: got {index}; allowed: a step of 2"):
        array.read(index)
