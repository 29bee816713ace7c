"""The eager engine against the oracle, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import oracle
from random_cells import SEEDS, random_cell
from unpad.cells import Cell, Dropout, GRUCell, LSTMCell, RNNCell
from unpad.engine import eager
from unpad.engine.order import step_order
from unpad.errors import ArgumentError, ArgumentTypeError, UnpadError

CELLS = (
    lambda: RNNCell(3, 4),
    lambda: GRUCell(3, 4, reset_after=False),
    lambda: LSTMCell(3, 4, proj_size=2, peepholes=True),
)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", oracle.LENGTHS)
@pytest.mark.parametrize("make", CELLS)
def test_outputs_states_and_gradients_are_those_of_one_sequence_at_a_time(make, lengths, reverse):
    cell = make().double()
    x, offsets, state = oracle.batch(cell, lengths)
    actual = oracle.outcome(eager.run, cell, x, offsets, state, reverse=reverse)
    wanted = oracle.outcome(oracle.loop, cell, x, offsets, state, reverse=reverse)
    oracle.assert_same(actual, wanted, 1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_cell_runs_as_one_sequence_at_a_time(seed):
    cell = random_cell(seed)
    memories = [buffer.requires_grad_() for buffer in cell.buffers()]
    x, offsets, state = oracle.batch(cell, [2, 0, 5, 1], seed=seed)
    options = {"captured": memories, "reverse": bool(seed % 2)}
    actual = oracle.outcome(eager.run, cell, x, offsets, state, **options)
    oracle.assert_same(
        actual, oracle.outcome(oracle.loop, cell, x, offsets, state, **options), 1e-10
    )


@given(lengths=oracle.lengths(), reverse=st.booleans())
def test_any_lengths_in_float32(lengths, reverse):
    cell = LSTMCell(3, 4)
    x, offsets, state = oracle.batch(cell, lengths, dtype=torch.float32)
    actual = oracle.outcome(eager.run, cell, x, offsets, state, reverse=reverse)
    oracle.assert_same(actual, oracle.expected(cell, x, offsets, state, reverse=reverse), 1e-5)


@given(lengths=oracle.lengths(), reverse=st.booleans())
def test_every_token_has_one_place_in_the_loop_and_steps_follow_time(lengths, reverse):
    offsets = oracle.offsets_of(lengths)
    order = step_order(offsets, reverse=reverse)
    assert sorted(order.tokens.tolist()) == list(range(sum(lengths)))
    assert order.tokens[order.places].tolist() == list(range(sum(lengths)))
    assert sum(order.live) == sum(lengths)
    starts, place = offsets.tolist(), 0
    for step, live in enumerate(order.live):
        for row in order.sequences[:live].tolist():
            first, last = starts[row] + step, starts[row + 1] - 1 - step
            assert order.tokens[place] == (last if reverse else first)
            place += 1


def test_length_0_keeps_the_state_and_its_gradient_is_the_identity():
    cell = GRUCell(3, 4).double()
    x, offsets, state = oracle.batch(cell, [0, 3, 0, 2])
    state.requires_grad_()
    _, final, _ = eager.run(cell, x, offsets, state)
    assert torch.equal(final[0], state[0])
    assert torch.equal(final[2], state[2])
    weights = torch.randn(4, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((final * weights).sum(), state)
    assert torch.equal(gradient[0], weights[0])
    assert torch.equal(gradient[2], weights[2])


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_without_any_token_a_backward_pass_still_works(lengths):
    cell = LSTMCell(3, 4)
    optimizer = torch.optim.Adam(cell.parameters())
    before = [p.clone() for p in cell.parameters()]
    x, offsets, _ = oracle.batch(cell, lengths, dtype=torch.float32)
    output, (h, _), _ = eager.run(cell, x, offsets, cell.initial_state(len(lengths)))
    assert output.shape == (0, 4)
    (output.sum() + h.sum()).backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, cell.parameters(), strict=True))


def test_a_cell_whose_operations_are_undefined_on_no_rows_still_runs_on_no_tokens():
    class Flatten(Cell):
        input_size = torch.Size([2, 3])
        state_size = 6

        def forward(self, x, state):
            new = state + x.view(len(x), -1)
            return new, new

    output, final, _ = eager.run(
        Flatten(), torch.zeros(0, 2, 3), torch.tensor([0, 0]), torch.ones(1, 6)
    )
    assert output.shape == (0, 6)
    assert torch.equal(final, torch.ones(1, 6))


def test_states_of_any_form_rank_and_dtype_are_carried():
    class Odd(Cell):
        input_size = 2
        state_size = (2, {"not": "read"})

        def initial_state(self, batch_size, *, dtype=None, device=None):
            steps = torch.zeros(batch_size, dtype=torch.int64)
            matrix = torch.zeros(batch_size, 2, 2, dtype=dtype)
            return {"steps": steps, "pair": [matrix, (torch.ones(batch_size, 2, dtype=dtype),)]}

        def forward(self, x, state):
            matrix, (sum_of_x,) = state["pair"]
            matrix = 0.5 * matrix + x.unsqueeze(1) * sum_of_x.unsqueeze(2)
            output = matrix.sum(1)
            return output, {"steps": state["steps"] + 1, "pair": [matrix, (sum_of_x + x,)]}

    cell = Odd()
    cell.output_size = 2
    x, offsets = torch.randn(6, 2, dtype=torch.float64), oracle.offsets_of([1, 0, 5])
    state = cell.initial_state(3, dtype=torch.float64)
    actual = oracle.outcome(eager.run, cell, x, offsets, state)
    oracle.assert_same(actual, oracle.outcome(oracle.loop, cell, x, offsets, state), 1e-12)
    _, final, _ = eager.run(cell, x, offsets, state)
    assert final["steps"].tolist() == [1, 0, 5]
    assert isinstance(final["pair"], list)


def test_gradients_and_second_gradients_are_exact():
    cell = LSTMCell(2, 3).double()
    x, offsets, state = oracle.batch(cell, [3, 1])
    inputs = (x.requires_grad_(), *(leaf.requires_grad_() for leaf in state))

    def run(x, h, c):
        output, final, _ = eager.run(cell, x, offsets, (h, c))
        return output, *final

    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)


def test_per_sample_gradients_by_vmap_are_those_of_a_loop():
    cell = GRUCell(2, 3).double()
    parameters = dict(cell.named_parameters())
    x = torch.randn(4, 5, 2, dtype=torch.float64)
    offsets, state = torch.tensor([0, 3, 5]), torch.zeros(2, 3, dtype=torch.float64)

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            output, final, _ = eager.run(self.cell, x, offsets, state)
            return output.square().sum() + final.sum()

    model = Sum()

    def loss(parameters, x):
        named = {f"cell.{name}": value for name, value in parameters.items()}
        return torch.func.functional_call(model, named, (x,))

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for sample in range(4):
        alone = torch.autograd.grad(model(x[sample]), list(parameters.values()))
        for name, gradient in zip(parameters, alone, strict=True):
            oracle.assert_close(together[name][sample], gradient, 1e-10, name)


# torch's own forward mode scripts a decomposition at its first use.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_and_reverse_jacobians_agree():
    cell = RNNCell(2, 3).double()
    x, offsets, state = oracle.batch(cell, [2, 1])

    def run(x):
        return eager.run(cell, x, offsets, state)[0]

    oracle.assert_close(torch.func.jacfwd(run)(x), torch.func.jacrev(run)(x), 1e-10)


def test_no_grad_and_inference_mode_give_the_same_numbers():
    cell = LSTMCell(3, 4)
    x, offsets, state = oracle.batch(cell, [2, 0, 3], dtype=torch.float32)
    wanted, _, _ = eager.run(cell, x, offsets, state)
    with torch.no_grad():
        assert torch.equal(eager.run(cell, x, offsets, state)[0], wanted)
    with torch.inference_mode():
        inside, (h, c), _ = eager.run(cell, x, offsets, state)
    assert torch.equal(inside, wanted)
    with torch.no_grad():
        eager.run(cell, x, offsets, (h, c))  # a state made in inference mode may be carried on


def test_autocast_runs_with_a_float32_state():
    for cell in (LSTMCell(3, 4), GRUCell(3, 4, bias=False), RNNCell(3, 4)):
        x, offsets, state = oracle.batch(cell, [2, 0, 3], dtype=torch.float32)
        wanted, _, _ = eager.run(cell, x, offsets, state)
        with torch.autocast("cpu", torch.bfloat16):
            output, _, _ = eager.run(cell, x, offsets, state)
        oracle.assert_close(output, wanted, 0.03)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_sequence_keeps_its_masks_over_time_and_others_have_their_own(reverse):
    class Identity(Cell):
        input_size = state_size = 50

        def forward(self, x, state):
            return x, x

    cell = Dropout(Identity(), input=0.5, same_over_time=True)
    lengths = [2, 6, 0, 4]
    x = torch.ones(sum(lengths), 50)
    output, _, _ = eager.run(
        cell, x, oracle.offsets_of(lengths), cell.initial_state(4), reverse=reverse
    )
    first, second, _, fourth = output.split(lengths)
    for rows in (first, second, fourth):
        assert torch.equal(rows, rows[:1].expand_as(rows))
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(second[0], fourth[0])


def test_masks_do_not_hang_on_the_order_of_the_loop():
    cell = Dropout(GRUCell(8, 8), input=0.5, state=0.3, same_over_time=True)
    x = torch.randn(4, 8)
    runs = []
    for offsets in ([0, 1, 4], [0, 1, 2]):
        torch.manual_seed(5)
        offsets = torch.tensor(offsets)
        tokens = int(offsets[-1])
        runs.append(eager.run(cell, x[:tokens], offsets, torch.ones(2, 8))[0])
    # The first sequence is the second row of the first loop, and the first row of the second.
    assert torch.equal(runs[0][0], runs[1][0])


def test_a_cell_that_changes_its_state_in_place_is_refused():
    class InPlace(Cell):
        input_size = state_size = 3

        def forward(self, x, state):
            state.add_(x)
            return state, state

    with pytest.raises(ArgumentError, match=r"InPlace.*end in _"):
        eager.run(InPlace(), torch.ones(4, 3), torch.tensor([0, 4]), torch.zeros(1, 3))


def test_results_of_the_wrong_form_are_refused_in_words():
    def cell(function):
        class Wrong(Cell):
            input_size = state_size = 3

            def forward(self, x, state):
                return function(x, state)

        return Wrong()

    wrong = {
        r"returns the pair": lambda x, s: s,
        r"one row for each row": lambda x, s: (s.sum(), s),
        r"new state is \[2, 2\]": lambda x, s: (s, s[:, :2]),
        r"new state is \(\[2, 3\], \[2, 3\]\)": lambda x, s: (s, (s, s)),
        r"became torch.int64": lambda x, s: (s, s.long()),
    }
    for message, function in wrong.items():
        with pytest.raises(UnpadError, match=message):
            eager.run(cell(function), torch.ones(4, 3), torch.tensor([0, 2, 4]), torch.zeros(2, 3))
    with pytest.raises(ArgumentTypeError, match="Wrong"):
        eager.run(cell(lambda x, s: None), torch.ones(1, 3), torch.tensor([0, 1]), torch.ones(1, 3))


def test_parametrized_weights_are_worked_out_once_a_run():
    class Double(nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return 2 * weight

    cell = GRUCell(3, 4)
    plain = GRUCell(3, 4)
    plain.load_state_dict(cell.state_dict())
    with torch.no_grad():
        plain.weight_hh.mul_(2)
    twice = Double()
    nn.utils.parametrize.register_parametrization(cell, "weight_hh", twice)
    twice.calls = 0
    x, offsets, state = oracle.batch(plain, [5, 2], dtype=torch.float32)
    output, _, _ = eager.run(cell, x, offsets, state)
    assert twice.calls == 1
    assert torch.equal(output, eager.run(plain, x, offsets, state)[0])
