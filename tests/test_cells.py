"""Cells against torch.nn's, against the papers' equations in NumPy, and as users misuse them."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import oracle
from unpad.cells import (
    Cell,
    Dropout,
    GRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    Residual,
    RNNCell,
    Stack,
    Zoneout,
)
from unpad.engine import choose
from unpad.engine.choose import engine
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.functional import dynamic_rnn
from unpad.ragged import Ragged

SHIPPED = {
    "rnn": lambda: RNNCell(3, 4),
    "relu": lambda: RNNCell(3, 4, nonlinearity="relu"),
    "gru": lambda: GRUCell(3, 4),
    "gru before": lambda: GRUCell(3, 4, reset_after=False),
    "lstm": lambda: LSTMCell(3, 4),
    "lstm without bias": lambda: LSTMCell(3, 4, bias=False),
    "lstm with everything": lambda: LSTMCell(
        3, 4, forget_bias=1.0, peepholes=True, proj_size=2, cell_clip=0.3, proj_clip=0.1
    ),
    "layer norm": lambda: LayerNormLSTMCell(3, 4),
    "layer norm without bias": lambda: LayerNormLSTMCell(3, 4, bias=False),
    "stack": lambda: Stack([GRUCell(3, 5), LSTMCell(5, 4), RNNCell(4, 2)]),
    "residual": lambda: Residual(LSTMCell(3, 3)),
    "dropout in eval": lambda: Dropout(GRUCell(3, 4), input=0.5, output=0.5, state=0.5).eval(),
    "zoneout in eval": lambda: Zoneout(LSTMCell(3, 4), (0.2, 0.6)).eval(),
}


@pytest.fixture(params=SHIPPED)
def shipped(request):
    return SHIPPED[request.param]()


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def numpy_of(cell):
    return {name: p.detach().double().numpy() for name, p in cell.named_parameters()}


def random_state(cell, rows, dtype=torch.float64):
    """A batch's x and state; x is [rows, I]."""
    x, _, state = oracle.batch(cell, [1] * rows, dtype=dtype)
    return x, state


# Every cell through an engine ------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [[2, 5, 1, 4], [0, 3, 0, 2], [0, 0], []])
def test_every_shipped_cell_runs_as_one_sequence_at_a_time(shipped, lengths, reverse):
    cell = shipped.double()
    x, offsets, state = oracle.batch(cell, lengths)
    actual = oracle.outcome(choose.run, cell, x, offsets, state, reverse=reverse)
    oracle.assert_same(actual, oracle.expected(cell, x, offsets, state, reverse=reverse), 1e-10)


def test_every_shipped_cell_in_float32_is_near_float64(shipped):
    x, offsets, state = oracle.batch(shipped, [4, 0, 1, 6], dtype=torch.float32)
    actual = oracle.outcome(choose.run, shipped, x, offsets, state)
    oracle.assert_same(actual, oracle.expected(shipped, x, offsets, state), 1e-5)


def test_a_copied_and_a_pickled_cell_give_the_same_numbers(shipped):
    x, state = random_state(shipped, 3, torch.float32)
    wanted, _ = shipped(x, state)
    for copied in (copy.deepcopy(shipped), pickle.loads(pickle.dumps(shipped))):
        assert torch.equal(copied(x, state)[0], wanted)


def test_the_initial_state_is_zeros_of_the_cells_sizes_and_dtype(shipped):
    cell = shipped.double()
    for leaf in oracle.pytree.tree_leaves(cell.initial_state(5)):
        assert leaf.dtype == torch.float64
        assert len(leaf) == 5
        assert not leaf.any()
    output, _ = cell(*random_state(cell, 5))
    assert output.shape == (5, cell.output_size)


# torch.nn's numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (RNNCell, nn.RNNCell, {}),
        (RNNCell, nn.RNNCell, {"nonlinearity": "relu"}),
        (GRUCell, nn.GRUCell, {}),
        (LSTMCell, nn.LSTMCell, {}),
    ],
)
def test_a_cell_is_torchs_in_numbers_gradients_and_state_dict(ours, theirs, options, bias):
    torch.manual_seed(3)
    cell = ours(3, 4, bias=bias, dtype=torch.float64, **options)
    torch.manual_seed(3)
    peer = theirs(3, 4, bias=bias, dtype=torch.float64, **options)
    assert list(cell.state_dict()) == list(peer.state_dict())
    for (name, a), b in zip(cell.named_parameters(), peer.parameters(), strict=True):
        assert torch.equal(a, b), f"{name}: the same seed starts torch's cell otherwise"
    peer = theirs(3, 4, bias=bias, dtype=torch.float64, **options)
    cell.load_state_dict(peer.state_dict())
    peer.load_state_dict(cell.state_dict())
    x, state = random_state(cell, 5)
    output, new = cell(x.requires_grad_(), state)
    wanted = peer(x, state)
    new, wanted = (new, wanted) if isinstance(new, tuple) else ((new,), (wanted,))
    assert output is new[0]
    weights = [torch.randn_like(leaf) for leaf in new]
    found = []
    for leaves, module in ((new, cell), (wanted, peer)):
        loss = sum((leaf * weight).sum() for leaf, weight in zip(leaves, weights, strict=True))
        found.append(torch.autograd.grad(loss, [x, *module.parameters()]))
    for a, b in zip((*new, *found[0]), (*wanted, *found[1]), strict=True):
        oracle.assert_close(a, b, 1e-10)


# The papers' equations -------------------------------------------------------------------------


def test_gru_with_reset_before_is_the_first_papers():
    cell = GRUCell(3, 4, reset_after=False).double()
    x, h = random_state(cell, 5)
    p = numpy_of(cell)
    w_r, w_z, w_n = np.split(p["weight_ih"], 3)
    u_r, u_z, u_n = np.split(p["weight_hh"], 3)
    b_r, b_z, b_n = np.split(p["bias_ih"] + p["bias_hh"], 3)
    a, s = x.numpy(), h.numpy()
    r = sigmoid(a @ w_r.T + s @ u_r.T + b_r)
    z = sigmoid(a @ w_z.T + s @ u_z.T + b_z)
    n = np.tanh(a @ w_n.T + (r * s) @ u_n.T + b_n)
    oracle.assert_close(cell(x, h)[0], torch.from_numpy((1 - z) * n + z * s), 1e-12)


def test_the_two_forms_of_gru_differ():
    after, before = GRUCell(3, 4), GRUCell(3, 4, reset_after=False)
    before.load_state_dict(after.state_dict())
    x, h = random_state(after, 2, torch.float32)
    assert (after(x, h)[0] - before(x, h)[0]).abs().max() > 1e-4


def test_lstm_with_peepholes_clipping_and_projection_is_saks():
    cell = LSTMCell(3, 4, peepholes=True, proj_size=2, cell_clip=0.4, proj_clip=0.05).double()
    x, (h, c) = random_state(cell, 50)
    p = numpy_of(cell)
    total = x.numpy() @ p["weight_ih"].T + h.numpy() @ p["weight_hh"].T
    i, f, g, o = np.split(total + p["bias_ih"] + p["bias_hh"], 4, axis=1)
    old = c.numpy()
    i, f = sigmoid(i + p["weight_ci"] * old), sigmoid(f + p["weight_cf"] * old)
    new = f * old + i * np.tanh(g)
    assert (np.abs(new) > 0.4).any(), "the clip must be at work for this to test it"
    new = np.clip(new, -0.4, 0.4)
    out = (sigmoid(o + p["weight_co"] * new) * np.tanh(new)) @ p["weight_hr"].T
    assert (np.abs(out) > 0.05).any()
    output, (h_new, c_new) = cell(x, (h, c))
    oracle.assert_close(output, torch.from_numpy(np.clip(out, -0.05, 0.05)), 1e-12)
    oracle.assert_close(c_new, torch.from_numpy(new), 1e-12)
    assert output is h_new


def test_layer_norm_lstm_is_ba_kiros_and_hintons():
    cell = LayerNormLSTMCell(3, 4, eps=1e-3).double()
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    x, (h, c) = random_state(cell, 5)
    p = numpy_of(cell)

    def norm(v, name):
        centred = v - v.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-3)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    total = norm(x.numpy() @ p["weight_ih"].T, "norm_ih")
    total = total + norm(h.numpy() @ p["weight_hh"].T, "norm_hh")
    i, f, g, o = np.split(total, 4, axis=1)
    new = sigmoid(f) * c.numpy() + sigmoid(i) * np.tanh(g)
    out = sigmoid(o) * np.tanh(norm(new, "norm_c"))
    output, (_, c_new) = cell(x, (h, c))
    oracle.assert_close(output, torch.from_numpy(out), 1e-12)
    oracle.assert_close(c_new, torch.from_numpy(new), 1e-12)


class Normalizes(Cell):
    def __init__(self, width):
        super().__init__()
        self.input_size = self.state_size = width
        self.norm = nn.LayerNorm(width)

    def forward(self, x, state):
        return self.norm(x + state), state


@pytest.mark.parametrize("width", [5, 8, 32, 37])
@pytest.mark.parametrize("name", ["auto", "torch"])
def test_layer_norm_of_numbers_near_the_ends_of_float32_is_its_equation(width, name):
    """Where the variance overflows, torch's own kernel gives 0 or NaN, by the width."""
    for scale in (1e-30, 1e18, 1e25):
        x = (scale * torch.randn(4, width)).requires_grad_()
        v = x.detach().numpy()
        with np.errstate(over="ignore"):
            centred = v - v.mean(1, keepdims=True)
            wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(1e-5))
        with engine(name):
            output, _ = dynamic_rnn(Normalizes(width), Ragged(x, [0, 3, 4]))
        oracle.assert_close(output.values, torch.from_numpy(wanted), 1e-5)
        output.values.sum().backward()
        assert x.grad.isfinite().all()
    assert not wanted.any(), "the variance of numbers of 1e25 must overflow for this to test it"


# How parameters start --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_the_forget_bias_is_what_was_asked_though_there_are_two(value):
    cell = LSTMCell(3, 4, forget_bias=value)
    assert torch.equal((cell.bias_ih + cell.bias_hh)[4:8], torch.full((4,), value))
    normed = LayerNormLSTMCell(3, 4, forget_bias=value)
    assert torch.equal((normed.norm_ih.bias + normed.norm_hh.bias)[4:8], torch.full((4,), value))
    cell.reset_parameters()
    assert torch.equal((cell.bias_ih + cell.bias_hh)[4:8], torch.full((4,), value))


def test_orthogonal_start_makes_every_gates_matrix_orthogonal():
    cell = GRUCell(3, 8, init="orthogonal")
    for gate in cell.weight_hh.detach().split(8):
        oracle.assert_close(gate @ gate.T, torch.eye(8), 1e-5)
    assert not cell.bias_ih.any()
    assert cell.weight_ih.abs().max() <= (6 / (3 + 8)) ** 0.5


def test_xavier_start_keeps_glorots_bound_and_no_bias():
    cell = LSTMCell(3, 50, init="xavier", forget_bias=1.0)
    bound = (6 / (50 + 50)) ** 0.5
    assert 0.9 * bound < cell.weight_hh.abs().max() <= bound
    assert torch.equal(cell.bias_ih + cell.bias_hh, torch.eye(4)[1].repeat_interleave(50))


def test_a_function_may_start_the_parameters():
    cell = RNNCell(3, 4, init=lambda name, p: nn.init.constant_(p, len(name)))
    assert (cell.weight_ih == 9).all()
    assert (cell.bias_hh == 7).all()


# Cells made of cells ---------------------------------------------------------------------------


def test_a_stack_feeds_each_cells_output_to_the_next():
    first, second = LSTMCell(3, 5), GRUCell(5, 2)
    stack = Stack([first, second])
    x, state = random_state(stack, 4, torch.float32)
    output, (lower, upper) = stack(x, state)
    between, wanted_lower = first(x, state[0])
    wanted, _ = second(between, state[1])
    assert torch.equal(output, wanted)
    assert torch.equal(upper, wanted)
    assert torch.equal(lower[1], wanted_lower[1])


def test_a_stack_of_unfitting_widths_is_refused_with_both_numbers():
    with pytest.raises(ArgumentError, match=r"cells\[1\].*input_size 4.*5"):
        Stack([GRUCell(3, 5), GRUCell(4, 4)])


def test_one_cell_three_times_shares_its_weights_and_says_so():
    with pytest.warns(
        UserWarning, match=r"cells\[0\] and cells\[1\].*\[GRUCell\(\.\.\.\) for _ in"
    ):
        stack = Stack([GRUCell(4, 4)] * 3)
    assert len(list(stack.parameters())) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Stack([GRUCell(4, 4) for _ in range(3)])


def test_residual_adds_the_input():
    inner = LSTMCell(3, 3)
    x, state = random_state(inner, 4, torch.float32)
    output, _ = Residual(inner)(x, state)
    assert torch.equal(output, x + inner(x, state)[0])
    with pytest.raises(ArgumentError, match="from 3 to 4"):
        Residual(GRUCell(3, 4))


# Weight tricks ---------------------------------------------------------------------------------


def run(cell, lengths, x):
    state = oracle.pytree.tree_map(torch.ones_like, cell.initial_state(len(lengths)))
    return choose.run(cell, x, oracle.offsets_of(lengths), state)


class DropConnect(nn.Module):
    def forward(self, weight):
        return nn.functional.dropout(weight, 0.5, self.training)


@pytest.mark.filterwarnings("ignore:.*eager loop.*")
@pytest.mark.parametrize(
    "trick",
    [
        lambda cell: nn.utils.parametrizations.weight_norm(cell, "weight_hh"),
        lambda cell: nn.utils.parametrizations.spectral_norm(cell, "weight_hh"),
        lambda cell: nn.utils.parametrizations.orthogonal(cell, "weight_ih"),
        lambda cell: nn.utils.parametrize.register_parametrization(
            cell, "weight_hh", DropConnect()
        ),
    ],
)
def test_weight_tricks_train_the_raw_weights(trick):
    cell = RNNCell(4, 4)
    trick(cell)
    before = [p.detach().clone() for p in cell.parameters()]
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.3)
    x = torch.randn(6, 4)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = run(cell, [4, 2], x)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for old, new in zip(before, cell.parameters(), strict=True):
        assert not torch.equal(old, new)
    assert losses[-1] < losses[0]
    cell.eval()
    with torch.no_grad():
        assert torch.equal(run(cell, [6], x)[0], run(cell, [6], x)[0])


def test_spectral_norm_goes_on_iterating_from_run_to_run():
    cell = nn.utils.parametrizations.spectral_norm(RNNCell(4, 40), "weight_hh")
    x = torch.randn(6, 4)
    for _ in range(60):
        run(cell, [4, 2], x)
    cell.eval()
    assert abs(float(torch.linalg.matrix_norm(cell.weight_hh.detach(), 2)) - 1) < 0.01


# Errors ----------------------------------------------------------------------------------------


def test_bad_arguments_are_refused_by_name():
    refused = [
        (ArgumentError, "input_size", lambda: GRUCell(0, 4)),
        (ArgumentTypeError, "hidden_size", lambda: GRUCell(3, 4.0)),
        (ArgumentTypeError, "hidden_size", lambda: LayerNormLSTMCell(3, "4")),
        (ArgumentError, "nonlinearity", lambda: RNNCell(3, 4, nonlinearity="gelu")),
        (ArgumentError, "init", lambda: RNNCell(3, 4, init="zeros")),
        (ArgumentError, "proj_size", lambda: LSTMCell(3, 4, proj_size=-1)),
        (ArgumentError, "proj_clip", lambda: LSTMCell(3, 4, proj_clip=1.0)),
        (ArgumentError, "cell_clip", lambda: LSTMCell(3, 4, cell_clip=0.0)),
        (ArgumentError, "forget_bias", lambda: LSTMCell(3, 4, bias=False, forget_bias=1.0)),
        (ArgumentError, "cells", lambda: Stack([])),
        (ArgumentTypeError, "cells", lambda: Stack(GRUCell(3, 4))),
        (ArgumentTypeError, r"cells\[1\]", lambda: Stack([GRUCell(3, 4), nn.Linear(4, 4)])),
        (ArgumentTypeError, "unpad.nn.GRUCell", lambda: Residual(nn.GRUCell(3, 3))),
        (ArgumentError, "input", lambda: Dropout(GRUCell(3, 4), input=1.5)),
        (ArgumentTypeError, "output", lambda: Dropout(GRUCell(3, 4), output="0.5")),
        (ArgumentError, "state", lambda: Dropout(LSTMCell(3, 4), state=(0.5,))),
        (ArgumentError, "state", lambda: Dropout(Stack([LSTMCell(3, 4)]), state=0.5)),
        (ArgumentError, "rates", lambda: Zoneout(GRUCell(3, 4), (0.5, 0.5))),
        (ArgumentError, "rates", lambda: Zoneout(GRUCell(3, 4), -0.1)),
    ]
    for error, message, build in refused:
        with pytest.raises(error, match=message):
            build()


def test_a_cell_without_sizes_or_forward_is_told_what_is_missing():
    class Bare(Cell):
        state_size = 3

    with pytest.raises(ArgumentError, match="Bare without input_size"):
        Stack([Bare()])
    with pytest.raises(NotImplementedError, match="Bare has no forward"):
        Bare()(torch.zeros(1, 3), torch.zeros(1, 3))


def test_the_output_is_like_the_first_state_unless_it_is_set():
    class Sized(Cell):
        input_size = 2
        state_size = (torch.Size([2, 3]), 4)

    cell = Sized()
    assert cell.output_size == torch.Size([2, 3])
    cell.output_size = 7
    assert cell.output_size == 7
    matrix, vector = cell.initial_state(5, dtype=torch.float64)
    assert matrix.shape == (5, 2, 3)
    assert vector.shape == (5, 4)
