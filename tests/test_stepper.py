"""Token by token is the same as all at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import unpad
from unpad import ArgumentError, ArgumentTypeError, Stepper
from unpad.engine import native_engine
from unpad.nest import leaves, map_leaves

native = pytest.mark.skipif(not native_engine.available(), reason="no native engine here")


class Counting(unpad.Cell):
    """An integer state beside a floating one: called as it is."""

    input_size, state_size = 3, (4, 1)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 4)

    def initial_state(self, batch_size: int):
        return torch.zeros(batch_size, 4), torch.zeros(batch_size, 1, dtype=torch.int64)

    def forward(self, x, state):
        h, n = state
        h = torch.tanh(self.linear(torch.cat([x, h], 1))) / (n + 1)
        return h, (h, n + 1)


class Shaped(unpad.Cell):
    """Tokens, outputs and states of rank 2."""

    input_size = state_size = torch.Size([2, 3])

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3) / 2)

    def forward(self, x, state):
        new = torch.tanh(x + state @ self.weight)
        return new * 2, new


LAYERS = {
    "RNN": lambda: unpad.nn.RNN(3, 5, 2),
    "GRU": lambda: unpad.nn.GRU(3, 5),
    "LSTM": lambda: unpad.nn.LSTM(3, 7, 3, proj_size=4),
    "no bias": lambda: unpad.nn.LSTM(3, 130, bias=False),
    "dropout in eval": lambda: unpad.nn.GRU(3, 5, 2, dropout=0.5),
    "cell": lambda: unpad.nn.LayerNormLSTMCell(3, 6),
    "cells on each other": lambda: unpad.nn.Recurrent(
        [unpad.nn.LSTMCell(3, 5), unpad.nn.GRUCell(5, 2)]
    ),
    "learned start": lambda: unpad.nn.Recurrent(
        unpad.nn.LSTMCell(3, 5), learned_initial_state=True
    ),
    "zoneout in eval": lambda: unpad.nn.Recurrent(unpad.nn.Zoneout(unpad.nn.GRUCell(3, 5), 0.3)),
    "integer state": Counting,
    "rank 2": Shaped,
}


def made(name: str) -> nn.Module:
    layer = LAYERS[name]().eval()
    for parameter in layer.parameters():  # learned starts are zeros at first
        nn.init.normal_(parameter, std=0.4)
    return layer


def whole(layer: nn.Module, x: torch.Tensor):
    """Output [S, B, ...] and final state of whole sequences x [S, B, ...]."""
    run = layer if hasattr(layer, "batch_first") else unpad.nn.Recurrent(layer)
    run.batch_first = False
    with torch.no_grad():
        return run(x)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("batch", [1, 2, 33])
def test_steps_are_the_layer_on_the_whole_sequence(name: str, batch: int) -> None:
    layer = made(name)
    x = torch.randn(9, batch, *((2, 3) if name == "rank 2" else (3,)))
    output, final = whole(layer, x)
    stepper = Stepper(layer, batch)
    found = torch.stack([stepper(token) for token in x])
    assert stepper.engine == (
        "native" if native_engine.available() and name != "integer state" else "eager"
    )
    torch.testing.assert_close(found, output, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(leaves(stepper.state), leaves(final), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_one_stream_has_no_batch_axis(name: str) -> None:
    layer = made(name)
    x = torch.randn(6, *((2, 3) if name == "rank 2" else (3,)))
    output, final = whole(layer, x[:, None])
    stepper = Stepper(layer)
    state = stepper.state
    for token, wanted in zip(x, output[:, 0], strict=True):
        result, state = stepper.step(token, state)
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6)
    axis = 1 if isinstance(layer, (unpad.nn.RNN, unpad.nn.GRU, unpad.nn.LSTM)) else 0
    for mine, theirs in zip(leaves(state), leaves(final), strict=True):
        torch.testing.assert_close(mine, theirs.squeeze(axis), rtol=1e-5, atol=1e-6)
    for mine, start in zip(leaves(stepper.state), leaves(Stepper(layer).state), strict=True):
        assert torch.equal(mine, start)  # `step` left the stepper's own state alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arrays_in_arrays_out_to_the_same_bits(dtype: torch.dtype) -> None:
    layer = unpad.nn.LSTM(3, 5, 2).to(dtype)
    x = torch.randn(4, 2, 3, dtype=dtype)
    stepper, other = Stepper(layer, 2), Stepper(layer, 2)
    state = tuple(leaf.numpy() for leaf in other.state)
    for token in x:
        kept = [leaf.copy() for leaf in state]
        wanted = stepper(token)
        found, new = other.step(token.numpy(), state)
        assert isinstance(found, np.ndarray)
        assert found.dtype == token.numpy().dtype
        assert np.array_equal(found, wanted.numpy())
        assert np.array_equal(
            found, Stepper(layer, 2).step(token, tuple(map(torch.from_numpy, state)))[0]
        )
        assert all(np.array_equal(a, b) for a, b in zip(kept, state, strict=True))
        state = new
    for mine, theirs in zip(stepper.state, state, strict=True):
        assert np.array_equal(mine.numpy(), theirs)


def test_strided_read_only_and_gradient_inputs_are_taken() -> None:
    layer = unpad.nn.GRU(3, 5)
    x = torch.randn(3, 2)
    wanted = Stepper(layer, 2)(x.t().contiguous())
    assert torch.equal(Stepper(layer, 2)(x.t()), wanted)
    frozen = x.t().contiguous().numpy()
    frozen.setflags(write=False)
    assert np.array_equal(Stepper(layer, 2)(frozen), wanted.numpy())
    found = Stepper(layer, 2)(x.t().contiguous().requires_grad_())
    assert not found.requires_grad
    assert torch.equal(found, wanted)


def test_the_weights_are_followed() -> None:
    layer = unpad.nn.LSTM(3, 5, 2)
    stepper, x = Stepper(layer), torch.randn(3)
    before = stepper(x)
    with torch.no_grad():
        layer.weight_hh_l1.mul_(2)
        layer.bias_ih_l0.add_(1)
    stepper.reset()
    after = stepper(x)
    assert not torch.equal(before, after)
    assert torch.equal(after, Stepper(layer)(x))
    layer.weight_ih_l0 = nn.Parameter(torch.randn(20, 3))
    stepper.refresh()
    assert torch.equal(stepper(x), Stepper(layer)(x))


class Scaled(unpad.Cell):
    input_size = state_size = 3

    def __init__(self) -> None:
        super().__init__()
        self.map, self.scale = nn.Linear(3, 3), 1.0

    def forward(self, x, h):
        h = torch.tanh(self.map(x) * self.scale + h)
        return h, h


LAYER_CHANGES = {
    "load_state_dict": lambda m: m.load_state_dict(unpad.nn.LSTM(3, 5).state_dict()),
    "assigned": lambda m: m.load_state_dict(unpad.nn.LSTM(3, 5).state_dict(), assign=True),
    "a parameter": lambda m: setattr(m, "weight_hh_l0", nn.Parameter(torch.ones(20, 5))),
    "its data": lambda m: setattr(m.weight_hh_l0, "data", torch.ones(20, 5)),
    "weight_norm": lambda m: parametrizations.weight_norm(m, "weight_hh_l0").eval()(
        torch.ones(1, 3)
    ),
}
CELL_CHANGES = {
    "a number": lambda c: setattr(c, "scale", 3.0),
    "a module": lambda c: setattr(c, "map", nn.Linear(3, 3)),
    "a hook": lambda c: c.map.register_forward_hook(lambda _, x, y: y * 2),
    "a parametrization": lambda c: parametrizations.weight_norm(c.map),
}


@pytest.mark.parametrize("given", [False, True], ids=["own state", "given state"])
@pytest.mark.parametrize("change", [*LAYER_CHANGES, *CELL_CHANGES])
def test_a_changed_layer_is_seen_at_the_next_step_and_the_state_goes_on(
    change: str, given: bool
) -> None:
    layer = unpad.nn.LSTM(3, 5) if change in LAYER_CHANGES else Scaled()
    stepper, x = Stepper(layer), torch.randn(3, 3)
    stepper(x[0])
    state = stepper.state
    {**LAYER_CHANGES, **CELL_CHANGES}[change](layer)
    other = Stepper(layer)
    wanted, _ = other.step(x[1], state)
    found = stepper.step(x[1], state)[0] if given else stepper(x[1])
    assert torch.equal(found, wanted)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1)
    found, other = stepper.step(x[2], state)[0], Stepper(layer)
    assert torch.equal(found, other.step(x[2], state)[0])
    assert not torch.equal(found, wanted)


def test_training_mode_is_refused_at_the_next_step() -> None:
    layer = unpad.nn.LSTM(3, 5, 2, dropout=0.5).eval()
    stepper, x = Stepper(layer), torch.randn(3)
    before = stepper(x)
    layer.train()
    with pytest.raises(unpad.ArgumentError, match="eval"):
        stepper(x)
    layer.eval()
    stepper.reset()
    assert torch.equal(stepper(x), before)


def test_states_are_copies_and_can_be_given_back() -> None:
    stepper = Stepper(unpad.nn.LSTM(3, 5, 2), 4)
    x = torch.randn(6, 4, 3)
    for token in x[:3]:
        stepper(token)
    state = stepper.state
    kept = map_leaves(torch.clone, state)
    first = [stepper(token) for token in x[3:]]
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(kept), strict=True))
    stepper.state = state
    assert all(torch.equal(a, stepper(token)) for a, token in zip(first, x[3:], strict=True))


@pytest.mark.parametrize("layer", [unpad.nn.LSTM(3, 5, 2), unpad.nn.GRUCell(3, 5)])
def test_reset_starts_some_streams_anew(layer: nn.Module) -> None:
    stepper, x = Stepper(layer, 3), torch.randn(2, 3, 3)
    start = stepper(x[0])
    stepper.reset([1])
    second = stepper(x[0])
    assert torch.equal(second[1], start[1])
    assert not torch.equal(second[0], start[0])
    stepper.reset(torch.tensor([True, False, True]))
    third = stepper(x[0])
    assert torch.equal(third[[0, 2]], start[[0, 2]])
    stepper.reset()
    assert torch.equal(stepper(x[0]), start)


def test_a_row_is_its_own() -> None:
    layer = unpad.nn.LSTM(3, 6)
    x = torch.randn(5, 40, 3)
    many, one = Stepper(layer, 40), Stepper(layer)
    for token in x:
        found, alone = many(token), one(token[17])
        if native_engine.available():
            assert torch.equal(found[17], alone)
        torch.testing.assert_close(found[17], alone)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (unpad.nn.LSTM(3, 5, bidirectional=True), "one direction"),
        (unpad.nn.LSTM(3, 5, 2, dropout=0.5), "eval"),
        pytest.param(
            unpad.nn.Recurrent(unpad.nn.Zoneout(unpad.nn.GRUCell(3, 5), 0.3)), "eval", marks=native
        ),
    ],
)
def test_what_has_no_steps_is_refused(layer: nn.Module, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Stepper(layer)


@pytest.mark.parametrize("wrong", [nn.LSTM(3, 5), "LSTM", unpad.nn.LSTM])
def test_what_is_no_cell_is_refused(wrong) -> None:
    with pytest.raises(ArgumentTypeError, match="layer"):
        Stepper(wrong)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(3),
        torch.zeros(2, 4),
        torch.zeros(1, 2, 3),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, dtype=torch.int64),
        np.zeros((2, 3)),
        np.zeros((3, 2), np.float32),
        np.array([["a"] * 3] * 2),
        [[0.0] * 3] * 2,
        None,
    ],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}-{getattr(x, 'shape', '')}",
)
@pytest.mark.parametrize("layer", [unpad.nn.LSTM(3, 5), unpad.nn.GRU(3, 5)], ids=["LSTM", "GRU"])
def test_a_wrong_token_is_refused_and_the_state_stays(layer: nn.Module, x) -> None:
    stepper = Stepper(layer, 2)
    stepper(torch.randn(2, 3))
    before = stepper.state
    with pytest.raises((ArgumentError, ArgumentTypeError), match="x"):
        stepper(x)
    assert all(
        torch.equal(a, b) for a, b in zip(leaves(before), leaves(stepper.state), strict=True)
    )


@pytest.mark.parametrize(
    "state",
    [
        torch.zeros(1, 2, 5),
        (torch.zeros(1, 2, 5),),
        (torch.zeros(1, 2, 5), torch.zeros(1, 3, 5)),
        (torch.zeros(1, 2, 5), np.zeros((1, 2, 4), np.float32)),
        (torch.zeros(1, 2, 5), "c"),
    ],
    ids=["alone", "one", "rows", "array", "text"],
)
def test_a_wrong_state_is_refused(state) -> None:
    stepper = Stepper(unpad.nn.LSTM(3, 5), 2)
    with pytest.raises((ArgumentError, ArgumentTypeError), match="state"):
        stepper.step(torch.zeros(2, 3), state)
    with pytest.raises((ArgumentError, ArgumentTypeError), match="state"):
        stepper.state = state


def test_no_state_is_the_first() -> None:
    layer, x = unpad.nn.LSTM(3, 5), torch.randn(3)
    wanted = Stepper(layer)(x)
    assert torch.equal(Stepper(layer).step(x, None)[0], wanted)
    found, state = Stepper(layer).step(x.numpy(), None)
    assert np.array_equal(found, wanted.numpy())
    assert all(isinstance(leaf, np.ndarray) for leaf in state)


def test_a_subclass_of_tensor_is_its_numbers() -> None:
    class Own(torch.Tensor):
        pass

    layer, x = unpad.nn.LSTM(3, 5), torch.randn(3)
    found = Stepper(layer)(x.as_subclass(Own))
    assert torch.equal(found, Stepper(layer)(x))


def test_steppers_outlive_their_layers() -> None:
    stepper = Stepper(unpad.nn.LSTM(3, 5, 2))
    assert stepper(torch.randn(3)).shape == (5,)
    assert repr(stepper).startswith("Stepper(LSTM, engine=")
