"""What users of recurrent libraries reported about regularisation, weight tricks and derivatives.

One test for each report, named after what its user saw. The oracle is each sequence alone, in
float64: a plain loop over the cell, or torch.nn's layer on that one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import unpad
from oracle import assert_close, loop, offsets_of
from reports import UNSORTED, each_engine, each_layer
from unpad import Cell, Ragged
from unpad.nn import GRU, GRUCell, LSTMCell, Recurrent

# 1k. Regularisation ------------------------------------------------------------------------------


class Echo(Cell):
    """Puts out its input, so that a wrapper's masks can be seen."""

    input_size = state_size = 64

    def forward(self, x, state):
        return x, state


@each_engine
def test_119_the_same_dropout_mask_over_time_was_missing(engine: str) -> None:
    cell = unpad.nn.Dropout(Echo(), input=0.5, same_over_time=True)
    ragged = Ragged.from_lengths(torch.ones(12, 64), UNSORTED)
    with unpad.engine(engine):
        output, _ = unpad.dynamic_rnn(cell, ragged)
    masks = [row[0] for row in output]
    for row, mask in zip(output, masks, strict=True):
        assert torch.equal(row, mask.expand_as(row))
    assert not torch.equal(masks[0], masks[1])
    assert set(output.values.unique().tolist()) == {0.0, 2.0}
    assert unpad.dynamic_rnn(cell.eval(), ragged)[0].equal(ragged)


@each_engine
def test_120_zoneout_could_not_be_had_for_the_memory_alone(engine: str) -> None:
    plain = LSTMCell(3, 4).double()
    ragged = Ragged.from_lengths(torch.randn(12, 3).double(), UNSORTED)
    start = (torch.randn(4, 4).double(), torch.randn(4, 4).double())
    with unpad.engine(engine):
        _, (h, c) = unpad.dynamic_rnn(plain, ragged, None, start)
        _, (_, frozen) = unpad.dynamic_rnn(unpad.nn.Zoneout(plain, (0.0, 1.0)), ragged, None, start)
        _, same = unpad.dynamic_rnn(unpad.nn.Zoneout(plain, 0.0), ragged, None, start)
        half = unpad.nn.Zoneout(plain, (0.3, 0.5)).eval()
        _, mixed = unpad.dynamic_rnn(half, ragged, None, start)
    assert_close(frozen, start[1], 1e-12)
    assert_close(same[0], h, 1e-12)
    assert_close(same[1], c, 1e-12)
    for row, x in enumerate(ragged):
        state = tuple(leaf[row : row + 1] for leaf in start)
        for token in x:
            _, new = plain(token[None], state)
            old_share = (0.3, 0.5)
            state = tuple(
                p * old + (1 - p) * leaf for p, old, leaf in zip(old_share, state, new, strict=True)
            )
        for leaf, wanted in zip(mixed, state, strict=True):
            assert_close(leaf[row : row + 1], wanted, 1e-10)


class DropConnect(nn.Module):
    """Zeroes a third of a weight anew at each call."""

    def forward(self, weight: Tensor) -> Tensor:
        return F.dropout(weight, 0.3)


@pytest.mark.parametrize(
    "trick",
    [
        lambda m: parametrizations.weight_norm(m, "weight_hh"),
        lambda m: parametrizations.spectral_norm(m, "weight_hh"),
        lambda m: parametrize.register_parametrization(m, "weight_hh", DropConnect()),
    ],
    ids=["weight_norm", "spectral_norm", "DropConnect"],
)
def test_122_weight_tricks_broke_or_zeroed_weights_for_good(
    trick: Callable[[nn.Module], Any],
) -> None:
    cell = GRUCell(3, 4)
    trick(cell)
    layer = Recurrent(cell)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    before = [p.detach().clone() for p in layer.parameters()]
    ragged = Ragged.from_lengths(torch.randn(12, 3), UNSORTED)
    for _ in range(5):
        optimizer.zero_grad()
        layer(ragged)[0].values.square().sum().backward()
        optimizer.step()
    for parameter, old in zip(layer.parameters(), before, strict=True):
        assert not torch.equal(parameter, old)
    layer.eval()
    wanted, _, _ = loop(cell, ragged.values, ragged.offsets, torch.zeros(4, 4))
    if "DropConnect" not in str(cell):
        assert_close(layer(ragged)[0].values, wanted, 1e-5)


# 1l. Transforms ----------------------------------------------------------------------------------


@each_layer
def test_123_there_were_no_second_derivatives(ours: Any, theirs: Any) -> None:
    layer = ours(2, 3).double()
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        weights = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, weights, (Ragged(x, [0, 3, 4]),))[0].values

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))
    assert torch.autograd.gradgradcheck(run, (x, *layer.parameters()))


def test_123_a_gradient_penalty_trains() -> None:
    critic, score = GRU(3, 4), nn.Linear(4, 1)
    parameters = [*critic.parameters(), *score.parameters()]
    optimizer = torch.optim.Adam(parameters, 0.01)
    x = Ragged(torch.randn(6, 3, requires_grad=True), [0, 2, 2, 6])
    output, _ = critic(x)
    (slope,) = torch.autograd.grad(score(output.last()).sum(), x.values, create_graph=True)
    (x.with_values(slope).square().sum().sum(-1).add(1e-8).sqrt() - 1).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in parameters if p.grad is not None)
    assert critic.weight_hh_l0.grad.any()
    optimizer.step()


def test_124_per_sample_gradients_failed() -> None:
    layer = GRU(3, 4).double()
    weights = {name: p.detach() for name, p in layer.named_parameters()}
    samples = torch.randn(4, 5, 3).double()

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        output, _ = torch.func.functional_call(layer, weights, (x,))
        return output.square().sum()

    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, samples)
    for i, sample in enumerate(samples):
        single = torch.func.grad(loss)(weights, sample)
        for name, gradient in single.items():
            assert_close(together[name][i], gradient, 1e-10)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own
def test_124_forward_mode_and_jacobians_failed() -> None:
    layer = GRU(2, 3).double()
    offsets = offsets_of([2, 0, 1])

    def run(x: Tensor) -> Tensor:
        return layer(Ragged(x, offsets))[1].flatten()

    x, direction = torch.randn(3, 2).double(), torch.randn(3, 2).double()
    jacobian = torch.autograd.functional.jacobian(run, x)
    assert_close(torch.func.jacrev(run)(x), jacobian, 1e-10)
    _, pushed = torch.func.jvp(run, (x,), (direction,))
    assert_close(pushed, (jacobian * direction).sum((-1, -2)), 1e-10)
