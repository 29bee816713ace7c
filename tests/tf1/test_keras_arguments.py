"""Keras's dropout, and the arguments that every layer of Keras takes."""

from __future__ import annotations

import pytest
import torch

import unpad
from engine.every_cell import TIERS
from unpad import ArgumentError, ArgumentTypeError
from unpad.tf1 import keras
from unpad.tf1.keras import cell as keras_cell

ENGINES = ["torch", *(["native"] if TIERS else [])]
each_engine = pytest.mark.parametrize("engine", ENGINES)
LAYERS = [keras.SimpleRNN, keras.LSTM, keras.GRU]
B, T, D, H = 4, 6, 3, 5


# Dropout ------------------------------------------------------------------------------------------


def revealing(**options):
    """A layer whose outputs are x, or the h of the step before, less what was dropped."""
    layer = keras.SimpleRNN(
        H, activation="linear", use_bias=False, input_shape=(None, H), **options
    )
    layer.return_sequences = True
    zero, one = torch.zeros(H, H), torch.eye(H)
    layer.set_weights([one, zero] if "dropout" in options else [zero, one])
    return layer.train()


@each_engine
def test_a_mask_of_the_input_holds_for_all_steps_of_a_sequence(engine):
    layer = revealing(dropout=0.4)
    with unpad.engine(engine):
        masks = layer(torch.ones(64, T, H)).detach()
    values, counts = masks.unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / 0.6]))
    assert torch.equal(masks, masks[:, :1].expand_as(masks))
    assert len(masks[:, 0].unique(dim=0)) > 8, "rows have masks of their own"
    assert 0.5 < counts[1] / counts.sum() < 0.7


@each_engine
def test_a_mask_of_the_state_holds_for_all_steps_of_a_sequence(engine):
    layer = revealing(recurrent_dropout=0.5)
    with unpad.engine(engine):
        found = layer(torch.zeros(16, T, H), torch.ones(16, H)).detach()
    kept = found[:, 0] / 2.0
    assert set(kept.flatten().tolist()) == {0.0, 1.0}
    for step in range(T):
        assert torch.equal(found[:, step], kept * 2.0 ** (step + 1))


@each_engine
@pytest.mark.parametrize("make", LAYERS)
def test_dropout_is_on_in_training_mode_alone_and_follows_torchs_seed(make, engine):
    layer = make(H, dropout=0.3, recurrent_dropout=0.2, input_shape=(None, D))
    plain = make(H, weights=layer.get_weights())
    x = torch.randn(B, T, D)
    with unpad.engine(engine):
        assert torch.equal(layer.eval()(x), plain(x))
        layer.train()
        first, second = (torch.manual_seed(0) and layer(x) for _ in range(2))
        assert torch.equal(first, second)
        assert not torch.equal(layer(x), first)


@pytest.mark.parametrize("make", [*LAYERS, keras.LayerNormLSTMCell, keras.PeepholeLSTMCell])
@pytest.mark.parametrize("implementation", [1, 2])
def test_both_engines_drop_the_same_and_give_the_same_gradients(make, implementation):
    options = {"dropout": 0.3, "recurrent_dropout": 0.2, "implementation": implementation}
    layer = make(H, **options, input_shape=(None, D))
    layer = layer if isinstance(layer, keras.RNN) else keras.RNN(layer)
    x = unpad.Ragged.from_list([torch.randn(n, D) for n in (5, 0, 3, 8)])
    found = []
    for engine in ENGINES:
        torch.manual_seed(3)
        with unpad.engine(engine):
            output = layer.train()(x)
            found.append([output, *torch.autograd.grad(output.sum(), list(layer.parameters()))])
    for other in found[1:]:
        for ours, theirs in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def simple_step(w, x, h, mx, mh):
    h = torch.tanh((x * mx[0]) @ w[0] + (h[0] * mh[0]) @ w[1] + w[2])
    return h, (h,)


def lstm_step(w, x, state, mx, mh):
    """Keras 2.15's LSTMCell.call with implementation 1, gate by gate."""
    (h, c), total = state, []
    for n in range(4):
        k = slice(n * H, (n + 1) * H)
        total.append((x * mx[n]) @ w[0][:, k] + (h * mh[n]) @ w[1][:, k] + w[2][k])
    i, f, g, o = total
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h, (h, c)


def gru_step(after):
    def step(w, x, state, mx, mh):
        """Keras 2.15's GRUCell.call with implementation 1."""
        (h,), part = state, [slice(n * H, (n + 1) * H) for n in range(3)]
        b = w[2] if after else torch.stack([w[2], torch.zeros(3 * H, dtype=w[2].dtype)])
        z, r, n = ((x * mx[k]) @ w[0][:, part[k]] + b[0][part[k]] for k in range(3))
        z = (z + (h * mh[0]) @ w[1][:, part[0]] + b[1][part[0]]).sigmoid()
        r = (r + (h * mh[1]) @ w[1][:, part[1]] + b[1][part[1]]).sigmoid()
        if after:
            n = n + r * ((h * mh[2]) @ w[1][:, part[2]] + b[1][part[2]])
        else:
            n = n + (r * (h * mh[2])) @ w[1][:, part[2]]
        h = z * h + (1 - z) * n.tanh()
        return h, (h,)

    return step


CELLS = {
    "simple": (keras.SimpleRNNCell, {}, simple_step, 1, 1),
    "lstm": (keras.LSTMCell, {}, lstm_step, 4, 2),
    "gru after": (keras.GRUCell, {}, gru_step(True), 3, 1),
    "gru before": (keras.GRUCell, {"reset_after": False}, gru_step(False), 3, 1),
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("rates", [(0.3, 0.2), (0.0, 0.2), (0.3, 0.0)])
def test_the_equations_are_keras_2s_with_its_masks(name, rates, monkeypatch):
    """The masks given, in float64, step by step: each gate has its own."""
    make, options, step, gates, states = CELLS[name]
    inputs, recurrent = rates
    cell = make(
        H, dropout=inputs, recurrent_dropout=recurrent, implementation=1, input_size=D, **options
    )
    cell.double().train()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    shapes = [D] * (gates * (inputs > 0)) + [H] * (gates * (recurrent > 0))
    masks = [torch.randint(0, 2, (B, n)).double() / 0.7 for n in shapes]
    drawn = iter(())

    def known(value, keep, *, per_sequence):
        assert per_sequence
        mask = next(drawn)
        assert mask.shape == value.shape
        assert keep == 1 - (inputs if mask.shape[1] == D else recurrent)
        return value * mask

    monkeypatch.setattr(keras_cell, "drop", known)
    ones = [torch.ones(B, 1, dtype=torch.float64)] * gates
    mx = masks[:gates] if inputs else ones
    mh = masks[-gates:] if recurrent else ones
    weights = list(cell.parameters())
    state = tuple(torch.randn(B, H).double() for _ in range(states))
    wanted = state
    given = state if states > 1 else state[0]
    for _ in range(3):
        x, drawn = torch.randn(B, D).double(), iter(masks)
        output, given = cell(x, given)
        expected, wanted = step(weights, x, wanted, mx, mh)
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
        assert next(drawn, None) is None, "a mask that nothing used"


def test_without_dropout_of_the_state_all_gates_read_one_mask(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        keras_cell, "drop", lambda value, keep, **_: (drawn.append(value.shape), value)[1]
    )
    cell = keras.LSTMCell(H, dropout=0.5, input_size=D).train()
    cell(torch.ones(B, D), cell.initial_state(B))
    assert drawn == [(B, D)]


@pytest.mark.parametrize("name", ["dropout", "recurrent_dropout"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, "0.5", True])
def test_a_rate_that_is_none_is_refused(name, rate):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"{name}.*0 to below 1"):
        keras.GRU(H, **{name: rate})


# Arguments of every layer -------------------------------------------------------------------------


@pytest.mark.parametrize("make", LAYERS)
@pytest.mark.parametrize(
    "shape",
    [{"input_shape": (T, D)}, {"batch_input_shape": (B, None, D)}, {"input_dim": D}],
    ids=["input_shape", "batch_input_shape", "input_dim"],
)
def test_a_shape_of_the_input_makes_the_weights(make, shape):
    layer = make(H, **shape)
    assert layer.cell.kernel.shape[0] == D
    both = keras.Bidirectional(make(H), **shape)
    assert both.backward_layer.cell.kernel.shape[0] == D
    assert keras.RNN(keras.GRUCell(H), **shape).cell.kernel.shape[0] == D


@pytest.mark.parametrize("make", LAYERS)
def test_a_layer_that_is_not_trainable_has_no_gradients(make):
    for layer in (
        make(H, trainable=False),
        keras.RNN([keras.LSTMCell(H), keras.GRUCell(H)], trainable=False),
        keras.RNN(keras.LayerNormLSTMCell(H, trainable=False)),
        keras.Bidirectional(make(H), trainable=False),
    ):
        output = layer(torch.randn(B, T, D, requires_grad=True))
        assert not any(parameter.requires_grad for parameter in layer.parameters())
        output.sum().backward()


def test_dtypes_may_be_names_and_weights_may_be_given():
    layer = keras.GRU(H, dtype="float64", input_shape=(None, D))
    assert layer(torch.randn(B, T, D, dtype=torch.float64)).dtype == torch.float64
    other = keras.GRU(H, weights=layer.get_weights(), name="second")
    assert other.name == "second"
    torch.testing.assert_close(other.cell.kernel.double(), layer.cell.kernel, rtol=1e-6, atol=1e-6)
    both = keras.Bidirectional(keras.GRU(H, input_shape=(None, D)))
    copy = keras.Bidirectional(keras.GRU(H), "concat", both.get_weights())
    x = torch.randn(B, T, D)
    assert torch.equal(both(x), copy(x))


@pytest.mark.parametrize("make", [*LAYERS, keras.LSTMCell])
def test_what_none_stands_for_is_taken_and_what_changes_nothing(make):
    nothing = {
        f"{weight}_{kind}": None
        for weight in ("kernel", "recurrent", "bias")
        for kind in ("regularizer", "constraint")
    }
    make(H, **nothing, enable_caching_device=True, autocast=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel_regularizer": "l2"}, "kernel_regularizer.*weight_decay"),
        ({"recurrent_constraint": object()}, r"recurrent_constraint.*optimizer\.step"),
        ({"activity_regularizer": "l1"}, "activity_regularizer.*loss"),
        ({"input_shape": 3}, "input_shape.*steps, features"),
        ({"input_shape": (3,)}, "input_shape.*steps, features"),
        ({"batch_input_shape": (3, 4)}, "batch_input_shape.*batch, steps, features"),
        ({"input_dim": 0}, "input_dim.*1 or more"),
        ({"input_dim": 3, "input_shape": (None, 4)}, "input_dim and input_shape.*one width"),
        ({"trainable": 1}, "trainable.*True or False"),
        ({"dtype": "float33"}, "dtype.*float33"),
        ({"dtype": torch.int64}, "dtype.*int64"),
        ({"unitz": 3}, "unitz.*spelling"),
    ],
)
def test_an_argument_without_a_meaning_is_refused_in_words(options, words):
    for make in (*LAYERS, keras.LSTMCell):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
            make(H, **options)
    for make in (keras.RNN, keras.Bidirectional):
        inner = keras.GRUCell(H) if make is keras.RNN else keras.GRU(H)
        with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
            make(inner, **options)


def test_constants_are_refused_with_what_to_do():
    layer = keras.GRU(H, input_shape=(None, D))
    for call in (
        lambda: layer(torch.zeros(B, T, D), None, torch.zeros(B, 2)),
        lambda: layer(torch.zeros(B, T, D), constants=[torch.zeros(B, 2)]),
    ):
        with pytest.raises(ArgumentError, match=r"constants.*Ragged\.repeat_like"):
            call()


@pytest.mark.parametrize("given", ["x", [["a"] * T] * B, [[1] * T] * (B - 1) + [[1]], [None]])
def test_a_mask_that_is_none_is_refused_by_its_name(given):
    with pytest.raises((ArgumentError, ArgumentTypeError), match="`mask`"):
        keras.GRU(H)(torch.zeros(B, T, D), mask=given)


@pytest.mark.parametrize("wrong", ["x", ["a", "b"], [[1.0], [2.0, 3.0]], None])
def test_weights_that_are_no_arrays_are_refused_by_their_place(wrong):
    layer = keras.GRU(H, input_size=D)
    before = layer.get_weights()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"`weights\[1\]`"):
        layer.set_weights([before[0] + 1, wrong, before[2]])
    for one, other in zip(before, layer.get_weights(), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize(
    "make", [keras.GRU, lambda *a, **k: keras.Bidirectional(keras.GRU(*a, **k))]
)
def test_training_is_said_for_one_call(make):
    layer, x = make(H, dropout=0.5, input_size=D), torch.ones(B, T, D)
    layer.eval()
    plain = layer(x)
    dropped = [layer(x, training=True) for _ in range(2)]
    assert not torch.equal(*dropped)
    assert not any(module.training for module in layer.modules())
    torch.testing.assert_close(layer(x), plain)
    layer.train()
    torch.testing.assert_close(layer(x, training=False), plain)
    assert all(module.training for module in layer.modules())
    with pytest.raises(ArgumentTypeError, match="`training`"):
        layer(x, training=1)
    with pytest.raises(ArgumentError, match="`inputs`"):
        layer(x[0], training=False)
    assert all(module.training for module in layer.modules())


def test_a_layer_makes_the_weights_of_a_cell_of_tensorflow_1():
    cell = unpad.tf1.GRUCell(H)
    x = torch.randn(B, T, D)
    output = keras.RNN(cell, return_sequences=True)(x)
    torch.testing.assert_close(output, unpad.tf1.dynamic_rnn(cell, x)[0])
