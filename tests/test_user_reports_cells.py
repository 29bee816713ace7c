"""What users of recurrent libraries reported about own cells, tracing, memory and numerics.

One test for each report, named after what its user saw. The oracle is each sequence alone, in
float64: a plain loop over the cell, or torch.nn's layer on that one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unpad
from oracle import assert_close, assert_same, batch, expected, loop, outcome
from reports import UNSORTED, HandGRU, each_engine, each_layer
from torch_pairs import flat
from unpad import Cell, Ragged
from unpad.engine import choose
from unpad.nn import GRU, LSTM, GRUCell, LSTMCell, Recurrent


class CumulativeProduct(Cell):
    """No parameter at all: the state is multiplied by each token."""

    input_size = state_size = 3

    def initial_state(self, batch_size, *, dtype=None, device=None):
        return torch.ones(batch_size, 3, dtype=dtype, device=device)

    def forward(self, x, state):
        return state * x, state * x


class ThreeStates(Cell):
    """A level, a trend and a step counter."""

    input_size, state_size = 2, (2, 2, torch.Size([]))
    output_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([0.3, 0.6]))

    def forward(self, x, state):
        level, trend, count = state
        new = level + trend + self.rate * (x - level)
        trend = trend + torch.sigmoid(self.rate) * (new - level - trend)
        return torch.cat([new, trend], -1), (new, trend, count + 1)


class Attending(Cell):
    """Looks at an outer memory [M, H] at every step."""

    def __init__(self, memory: Tensor) -> None:
        super().__init__()
        self.memory = memory
        self.input_size, self.state_size = 2, memory.shape[1]
        self.mix = nn.Linear(2 + memory.shape[1], memory.shape[1])

    def forward(self, x, h):
        h = torch.tanh(self.mix(torch.cat([x, h], -1)))
        read = torch.softmax(h @ self.memory.T, -1) @ self.memory
        return read, h + 0.5 * read


def check(cell: nn.Module, lengths: list[int], engine: str = "auto", **options: Any) -> None:
    """Outputs, states and all gradients of the public door equal those of the loop."""
    cell = cell.double()
    x, offsets, state = batch(cell, lengths)
    with unpad.engine(engine):
        assert_same(
            outcome(choose.run, cell, x, offsets, state, **options),
            expected(cell, x, offsets, state, **options),
            1e-10,
        )


# 1c. Own cells -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
def test_32_layers_had_to_be_alike_and_variants_meant_editing_internals(
    bidirectional: bool,
) -> None:
    width = 2 if bidirectional else 1
    cells = [LSTMCell(3, 16), GRUCell(16 * width, 8), HandGRU(8 * width, 4)]
    layer = Recurrent(cells, bidirectional=bidirectional).double()
    ragged = Ragged.from_lengths(torch.randn(12, 3).double(), UNSORTED)
    values = ragged.values
    output, final = layer(ragged)
    for place, cell in enumerate(cells):
        both = [cell, layer.backward_cells[place]] if bidirectional else [cell]
        runs = [
            loop(each, values, ragged.offsets, each.initial_state(4), reverse=direction == 1)
            for direction, each in enumerate(both)
        ]
        values = torch.cat([run[0] for run in runs], -1)
        found = final[place] if bidirectional else (final[place],)
        for mine, run in zip(found, runs, strict=True):
            for leaf, wanted in zip(flat(mine), flat(run[1]), strict=True):
                assert_close(leaf, wanted, 1e-10)
    assert_close(output.values, values, 1e-10)


def test_34_the_cell_state_at_every_step_forced_a_cell_loop() -> None:
    cell = LSTMCell(3, 4).double()
    ragged = Ragged.from_lengths(torch.randn(12, 3).double(), UNSORTED)
    _, _, (h, c) = Recurrent(cell, return_states=True)(ragged)
    _, _, (h_loop, c_loop) = loop(cell, ragged.values, ragged.offsets, cell.initial_state(4))
    assert_close(h.values, h_loop, 1e-10)
    assert_close(c.values, c_loop, 1e-10)


def test_37_compiling_took_hours_for_long_sequences() -> None:
    layer = Recurrent(HandGRU(3, 4))
    layer([torch.randn(10, 3)])
    traces = unpad.trace_count()
    (output,), _ = layer([torch.randn(5000, 3)])
    output.sum().backward()
    assert unpad.trace_count() == traces


@each_engine
@pytest.mark.parametrize("cell", [CumulativeProduct, ThreeStates, lambda: LSTMCell(3, 4)])
def test_38_there_was_no_scan_that_trains(cell: Callable[[], nn.Module], engine: str) -> None:
    check(cell(), [2, 0, 5, 1], engine)
    check(cell(), [2, 0, 5, 1], engine, reverse=True)


def test_44_tensors_read_from_outside_had_no_gradient() -> None:
    start = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    cell = Attending(start).double()
    x = Ragged.from_lengths(torch.randn(5, 2).double(), [3, 0, 2])

    def run(memory: Tensor) -> tuple[Tensor, Tensor]:
        cell.memory = memory
        output, final = unpad.dynamic_rnn(cell, x)
        return output.values, final

    assert torch.autograd.gradcheck(run, (start,))
    # An output grown by concat, outside of the cell.
    grown = [unpad.dynamic_rnn(cell, window)[0].values for window in x.chunks(2)]
    (gradient,) = torch.autograd.grad(torch.cat(grown).sum(), cell.memory)
    assert gradient.abs().sum() > 0


# 1d. Tracing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: GRU(3, 4), lambda: Recurrent(HandGRU(3, 4))])
def test_46_every_new_length_was_traced_again(make: Callable[[], nn.Module]) -> None:
    layer = make()
    layer([torch.randn(2, 3)])[0][0].sum().backward()
    traces = unpad.trace_count()
    for _ in range(200):
        lengths = torch.randint(0, 20, (int(torch.randint(0, 9, ())),)).tolist()
        output, _ = layer(Ragged.from_lengths(torch.randn(sum(lengths), 3), lengths))
        output.values.sum().backward()
    assert unpad.trace_count() == traces


# 1e-f. Memory, numerics --------------------------------------------------------------------------


def test_62_taking_the_last_step_made_a_sparse_gradient_and_a_warning() -> None:
    layer = GRU(3, 4)
    ragged = Ragged.from_list([torch.randn(2000, 3), torch.randn(7, 3)])
    output, final = layer(ragged)
    last = output.last()
    assert torch.equal(last, final[0])
    (gradient,) = torch.autograd.grad(last.sum(), output.values, retain_graph=True)
    assert gradient.layout == torch.strided
    assert gradient.shape == output.values.shape
    assert gradient.sum() == last.numel()
    mine = torch.autograd.grad(last.sum(), [*layer.parameters()], retain_graph=True)
    theirs = torch.autograd.grad(final.sum(), [*layer.parameters()])
    for left, right in zip(mine, theirs, strict=True):
        assert_close(left, right, 1e-5)


@pytest.mark.parametrize("batch_size", [1, 4])
@each_engine
@each_layer
def test_68_deep_layers_of_unequal_width_were_wrong_on_one_path(
    ours: Any, theirs: Any, engine: str, batch_size: int
) -> None:
    reference = theirs(5, 10, 3).double()
    layer = ours(5, 10, 3).double()
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(6, batch_size, 5, dtype=torch.float64, requires_grad=True)
    with unpad.engine(engine):
        output, final = layer(x)
        mine = torch.autograd.grad(output.sin().sum(), [x, *layer.parameters()])
    wanted, wanted_final = reference(x)
    right = torch.autograd.grad(wanted.sin().sum(), [x, *reference.parameters()])
    pairs = [(output, wanted), *zip(flat(final), flat(wanted_final), strict=True)]
    for left, other in [*pairs, *zip(mine, right, strict=True)]:
        assert_close(left, other, 1e-10)


@pytest.mark.parametrize("batch_size", [1, 99, 101, 513, 1025])
def test_72_outputs_were_wildly_wrong_above_a_batch_of_100(batch_size: int) -> None:
    layer, reference = LSTM(3, 4), nn.LSTM(3, 4).double()
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(4, batch_size, 3)
    output, (h, c) = layer(x)
    wanted, (h_wanted, c_wanted) = reference(x.double())
    for left, right in ((output, wanted), (h, h_wanted), (c, c_wanted)):
        assert_close(left, right, 1e-5)


def test_74_gru_meant_two_formulas() -> None:
    reference = nn.GRU(3, 4, batch_first=True).double()
    after, before = (
        GRU(3, 4, batch_first=True, reset_after=flag).double() for flag in (True, False)
    )
    for layer in (after, before):
        layer.load_state_dict(reference.state_dict())
    reference.load_state_dict(after.state_dict())  # and back
    x = torch.randn(2, 5, 3).double()
    assert_close(after(x)[0], reference(x)[0], 1e-10)

    w_x, w_h, b_x, b_h = (p.detach().numpy() for p in reference.parameters())
    h, outputs = np.zeros((2, 4)), []

    def gate(x: Any, h: Any, place: int) -> Any:
        rows = slice(4 * place, 4 * place + 4)
        return x @ w_x[rows].T + b_x[rows] + h @ w_h[rows].T + b_h[rows]

    for step in x.numpy().transpose(1, 0, 2):
        r, z = (1 / (1 + np.exp(-gate(step, h, place))) for place in (0, 1))
        n = np.tanh(gate(step, r * h, 2))
        h = (1 - z) * n + z * h
        outputs.append(h)
    assert_close(before(x)[0], torch.from_numpy(np.stack(outputs, 1)), 1e-10)


def test_77_means_were_divided_by_padded_steps() -> None:
    x, y = (Ragged.from_list([torch.randn(1, 2), torch.randn(9, 2)]) for _ in range(2))
    errors = [((a - b) ** 2).sum() for a, b in zip(x, y, strict=True)]
    assert_close(F.mse_loss(x, y), sum(errors) / (10 * 2), 1e-6)
    assert_close(x.mean()[1], x[1].sum(0) / 9, 1e-6)
