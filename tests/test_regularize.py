"""Dropout and Zoneout around cells."""

from __future__ import annotations

import pytest
import torch

import oracle
from unpad.cells import Cell, Dropout, GRUCell, LSTMCell, Zoneout
from unpad.engine import choose


def random_state(cell, rows, dtype=torch.float64):
    """A batch's x and state; x is [rows, I]."""
    x, _, state = oracle.batch(cell, [1] * rows, dtype=dtype)
    return x, state


# Dropout ---------------------------------------------------------------------------------------


class Identity(Cell):
    """Gives out its input, and keeps what it read of its states."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.input_size = size
        self.state_size = (size, size)

    def forward(self, x, state):
        return x, state


def run(cell, lengths, x=None):
    offsets = oracle.offsets_of(lengths)
    x = torch.ones(sum(lengths), cell.input_size) if x is None else x
    state = oracle.pytree.tree_map(torch.ones_like, cell.initial_state(len(lengths)))
    return choose.run(cell, x, offsets, state)


def test_dropout_over_time_keeps_one_mask_a_sequence():
    cell = Dropout(Identity(64), input=0.5, same_over_time=True)
    output, _, _ = run(cell, [3, 1, 5])
    first, second, third = output.split([3, 1, 5])
    for rows in (first, third):
        assert torch.equal(rows, rows[:1].expand_as(rows))
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], third[0])
    assert set(output.unique().tolist()) == {0.0, 2.0}


def test_fresh_dropout_draws_at_every_step():
    output, _, _ = run(Dropout(Identity(64), output=0.5), [4])
    assert len(output.unique(dim=0)) == 4


@pytest.mark.parametrize("same_over_time", [False, True])
def test_dropout_keeps_the_mean(same_over_time):
    cell = Dropout(Identity(500), input=0.8, same_over_time=same_over_time)
    output, _, _ = run(cell, [1] * 40)
    assert set(output.unique().tolist()) == {0.0, 5.0}
    assert abs(float(output.mean()) - 1) < 0.1


def test_dropout_of_the_state_takes_h_and_leaves_the_memory_c():
    seen = {}

    class Recorder(Identity):
        def forward(self, x, state):
            seen["h"], seen["c"] = state
            return x, state

    cell = Dropout(Recorder(100), state=0.5)
    state = (torch.ones(2, 100), torch.ones(2, 100))
    cell(torch.ones(2, 100), state)
    assert 20 < int((seen["h"] == 0).sum()) < 180
    assert torch.equal(seen["c"], state[1])
    both = Dropout(Recorder(100), state=(0.5, 1.0))
    both(torch.ones(2, 100), state)
    assert not seen["c"].any()


@pytest.mark.parametrize("same_over_time", [False, True])
def test_dropout_in_eval_mode_is_the_plain_cell(same_over_time):
    inner = GRUCell(3, 4)
    cell = Dropout(inner, input=0.5, output=0.5, state=0.5, same_over_time=same_over_time).eval()
    x = torch.randn(7, 3)
    assert torch.equal(run(cell, [3, 4], x)[0], run(inner, [3, 4], x)[0])
    assert not torch.equal(run(cell.train(), [3, 4], x)[0], run(inner, [3, 4], x)[0])


def test_dropout_of_everything_is_zero_and_finite():
    output, _, _ = run(Dropout(Identity(4), output=1.0), [3])
    assert torch.equal(output, torch.zeros(3, 4))


def test_gradients_pass_where_the_mask_did():
    x = torch.randn(9, 64, requires_grad=True)
    cell = Dropout(Identity(64), input=0.5, same_over_time=True)
    output, _, _ = run(cell, [3, 1, 5], x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient * x, output)


# Zoneout ---------------------------------------------------------------------------------------


def test_zoneout_of_1_freezes_each_state_alone_and_0_is_the_plain_cell():
    inner = LSTMCell(3, 4)
    x = torch.randn(6, 3)
    plain, (_, c), _ = run(inner, [4, 2], x)
    output, (_, c_0), _ = run(Zoneout(inner, (0.0, 0.0)), [4, 2], x)
    assert torch.equal(output, plain)
    assert torch.equal(c_0, c)
    for mode in (True, False):
        output, (h_1, c_1), _ = run(Zoneout(inner, 1.0).train(mode), [4, 2], x)
        assert torch.equal(output, torch.ones(6, 4))
        assert torch.equal(h_1, torch.ones(2, 4))
        assert torch.equal(c_1, torch.ones(2, 4))
    _, (h_2, c_2), _ = run(Zoneout(inner, (0.0, 1.0)), [4, 2], x)
    assert torch.equal(c_2, torch.ones(2, 4))
    assert not torch.equal(h_2, torch.ones(2, 4))


def test_zoneout_in_training_takes_each_number_from_the_old_or_the_new_state():
    inner = GRUCell(3, 200)
    cell = Zoneout(inner, 0.25)
    x, old = random_state(inner, 20, torch.float32)
    _, new = inner(x, old)
    output, mixed = cell(x, old)
    kept = mixed == old
    assert torch.equal(torch.where(kept, old, new), mixed)
    assert 0.2 < float(kept.double().mean()) < 0.3
    assert output is mixed


def test_zoneout_in_eval_mode_takes_the_expectation():
    inner = LSTMCell(3, 4)
    x, (h, c) = random_state(inner, 5, torch.float32)
    _, (h_new, c_new) = inner(x, (h, c))
    output, (h_mixed, c_mixed) = Zoneout(inner, (0.25, 0.5)).eval()(x, (h, c))
    oracle.assert_close(h_mixed, 0.25 * h + 0.75 * h_new, 1e-6)
    oracle.assert_close(c_mixed, 0.5 * c + 0.5 * c_new, 1e-6)
    assert output is h_mixed
