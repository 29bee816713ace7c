"""Rewrites of a step: the same numbers from fewer and larger products."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import oracle
import unpad
from random_cells import random_cell
from unpad import Cell
from unpad.compiler import build
from unpad.compiler.build import compile_cell
from unpad.compiler.step import Step
from unpad.engine import choose, native_engine
from unpad.engine.autograd import _StepCell


class JoinedGates(Cell):
    """TensorFlow's form: one product of [x, h]."""

    input_size, state_size = 3, (4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(7, 16)

    def forward(self, x, state):
        h, c = state
        i, j, f, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class FourLinears(Cell):
    """An LSTM as a textbook has it: eight small Linears."""

    input_size, state_size = 3, (4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.ModuleList(nn.Linear(3, 4) for _ in range(4))
        self.h = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (a(x) + b(h) for a, b in zip(self.x, self.h, strict=True))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


def compiled(cell: nn.Module):
    cell = cell.double()
    x, _, state = oracle.batch(cell, [2])
    return compile_cell(cell, x, state)


def products(step: Step) -> list[tuple[int, int]]:
    needed = [step.graph[n] for n in step.needed()]
    return [step.matrices[n.index // 2] for n in needed if n.op == "linear"]


def test_four_linears_cost_what_one_costs() -> None:
    step = compiled(FourLinears()).step
    assert sorted(products(step)) == [(3, 16), (4, 16)]
    counts = unpad.explain(FourLinears()).multiply_adds
    assert counts["forward before"] == 3 * 16
    assert counts["forward loop"] == 4 * 16


def test_four_linears_are_joined_without_a_node_of_autograd() -> None:
    made = compiled(FourLinears())
    assert made.once.calls == []
    assert made.once.counts == ((1,) * 4, (1,) * 4, (2,) * 4)
    assert made.step.flipped == {0, 1}


def test_the_part_of_x_of_a_joined_product_leaves_the_loop() -> None:
    counts = unpad.explain(JoinedGates()).multiply_adds
    assert counts["forward before"] == 3 * 16
    assert counts["forward loop"] == 4 * 16
    assert counts["backward loop"] == 4 * 16
    text = str(unpad.explain(JoinedGates()))
    loop = text[text.index("loop:") : text.index("\nbackward")]
    assert loop.count("·") == 1


@pytest.mark.parametrize("make", [JoinedGates, FourLinears])
def test_both_spellings_agree_with_the_oracle(make) -> None:
    cell = make().double()
    x, offsets, state = oracle.batch(cell, [2, 0, 4, 1])
    actual = oracle.outcome(choose.run, cell, x, offsets, state)
    oracle.assert_same(actual, oracle.expected(cell, x, offsets, state), 1e-10)


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_a_simplified_step_is_the_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = random_cell(number)
    results = []
    for simplify in (build.simplify, lambda step, once: (step, once)):
        monkeypatch.setattr(build, "simplify", simplify)
        made = compiled(cell)
        parts = made.once.run([t for t in made.leaf_tensors() if t is not None])
        matrices, shared = made.once.weights(parts, made.once.joined(parts))
        torch.manual_seed(number)
        graph, step = made.step.graph, made.step
        x = torch.randn(6, step.x_width, dtype=torch.float64)
        states = tuple(torch.randn(6, w, dtype=torch.float64) for w in step.state_widths)
        output, new = _StepCell(step, matrices, shared)(x, states)
        assert output.shape == (6, graph[step.output].width)
        results.append([output, *new])
    for a, b in zip(*results, strict=True):
        oracle.assert_close(a, b, 1e-12)


def test_what_nothing_uses_is_dropped() -> None:
    class Wasteful(Cell):
        input_size = state_size = 3

        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 100)

        def forward(self, x, h):
            self.unused(h).exp()
            h = torch.tanh(self.used(h) + x)
            return h, h

    made = compiled(Wasteful())
    assert products(made.step) == [(3, 3)]
    assert made.step.matrices == [(3, 3)]
    assert len(made.once.matrices) == 1


def test_biases_are_added_once_a_run() -> None:
    made = compiled(unpad.nn.LSTMCell(3, 4))
    assert len(made.step.shared_widths) == 1
    assert made.step.shared_widths == [16]


class GainsAndBiases(Cell):
    """Sums of elementwise products, wide and narrow, in the order that ``total`` gives them."""

    input_size, state_size = 4, 5

    def __init__(self, total) -> None:
        super().__init__()
        self.total = total
        self.gain, self.bias = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))
        self.one = nn.Parameter(torch.randn(1))

    def forward(self, x, h):
        narrow = x[:, :1] * x[:, 1:2], x[:, 2:3], x[:, 3:4] * h[:, :1]
        h = torch.tanh(self.total(h * self.gain, *narrow, self.bias, self.one))
        return h, h


@pytest.mark.parametrize("engine", ["torch", *["native"] * native_engine.available()])
@pytest.mark.parametrize(
    "total",
    [
        lambda wide, a, b, c, bias, one: (a + wide) + b,
        lambda wide, a, b, c, bias, one: (wide + a) + one + b,
        lambda wide, a, b, c, bias, one: (a + wide) + (c + bias),
        lambda wide, a, b, c, bias, one: one + (b + wide) + a + bias,
        lambda wide, a, b, c, bias, one: ((a + wide) + b) + (c + one),
    ],
)
def test_a_sum_of_elementwise_products_is_the_same_in_any_order(total, engine: str) -> None:
    cell = GainsAndBiases(total).double()
    x, offsets, state = oracle.batch(cell, [2, 0, 4, 1])
    with unpad.engine(engine):
        actual = oracle.outcome(choose.run, cell, x, offsets, state)
    oracle.assert_same(actual, oracle.expected(cell, x, offsets, state), 1e-10)


def test_the_biases_of_two_norms_are_one() -> None:
    step = compiled(unpad.nn.LayerNormLSTMCell(3, 4)).step
    assert sorted(step.shared_widths) == [4, 4, 16, 16, 16]  # of c; two gains, one sum of biases
