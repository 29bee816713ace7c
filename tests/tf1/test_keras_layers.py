"""What a Keras layer of ours promises beside its numbers: weights, states, edges, errors."""

from __future__ import annotations

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch

import unpad
from engine.every_cell import TIERS
from unpad import ArgumentError, ArgumentTypeError
from unpad.tf1 import keras
from unpad.tf1.activations import NAMED

ENGINES = ["torch", *(["native"] if TIERS else [])]
LAYERS = {
    "SimpleRNN": (keras.SimpleRNN, {}, [(3, 4), (4, 4), (4,)]),
    "LSTM": (keras.LSTM, {}, [(3, 16), (4, 16), (16,)]),
    "GRU": (keras.GRU, {}, [(3, 12), (4, 12), (2, 12)]),
    "GRU before": (keras.GRU, {"reset_after": False}, [(3, 12), (4, 12), (12,)]),
    "LSTM without bias": (keras.LSTM, {"use_bias": False}, [(3, 16), (4, 16)]),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def layer_of(name, **options):
    make, args, _ = LAYERS[name]
    return make(4, **args, **options)


def names_and_shapes(module):
    return [(name, tuple(p.shape)) for name, p in module.named_parameters()]


# Weights ------------------------------------------------------------------------------------------


@each_layer
def test_weights_have_keras_names_layouts_and_order(name):
    layer = layer_of(name, input_size=3)
    shapes = LAYERS[name][2]
    names = ["cell.kernel", "cell.recurrent_kernel", "cell.bias"]
    assert names_and_shapes(layer) == list(zip(names, shapes, strict=False))
    weights = [np.random.default_rng(0).normal(size=shape) for shape in shapes]
    layer.set_weights(weights)
    for given, got in zip(weights, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(got, given.astype(np.float32))


@each_layer
def test_calling_a_layer_again_adds_no_parameter_and_no_trace(name):
    layer = layer_of(name, return_sequences=True)
    holder = keras.Bidirectional(layer)
    before = [id(p) for p in holder.parameters()]
    assert len(before) == 2 * len(LAYERS[name][2])
    start = unpad.trace_count()
    holder(torch.randn(2, 5, 3)).sum().backward()
    traced = unpad.trace_count()
    assert traced > start
    for batch, steps in ((1, 9), (4, 2), (3, 30), (2, 5)):
        holder(torch.randn(batch, steps, 3), mask=torch.rand(batch, steps) < 0.5).sum().backward()
        holder(unpad.Ragged.from_list([torch.randn(n, 3) for n in range(batch)]))
        layer(torch.randn(batch, steps, 3))
    assert [id(p) for p in holder.parameters()] == before
    assert unpad.trace_count() == traced


def test_an_optimizer_made_before_the_first_call_trains_every_weight():
    model = keras.Bidirectional(keras.LSTM(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 5, 3)).square().sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_a_kernel_that_waits_takes_the_dtype_that_the_module_was_given():
    layer = keras.GRU(4).double()
    assert layer(torch.randn(2, 5, 3, dtype=torch.float64)).dtype == torch.float64
    assert layer.cell.kernel.dtype == torch.float64


def test_a_layer_that_waits_loads_a_state_dict_and_weights():
    stack = [keras.LSTMCell(4), keras.GRUCell(2)]
    built = keras.Bidirectional(keras.RNN(stack, return_sequences=True))
    x = torch.randn(2, 5, 3)
    wanted = built(x)
    twin = copy.deepcopy(
        keras.Bidirectional(keras.RNN([keras.LSTMCell(4), keras.GRUCell(2)], True))
    )
    twin.load_state_dict(built.state_dict())
    assert torch.equal(twin(x), wanted)
    other = keras.Bidirectional(keras.RNN([keras.LSTMCell(4), keras.GRUCell(2)], True))
    other.set_weights(built.get_weights())
    assert torch.equal(other(x), wanted)
    for again in (copy.deepcopy(built), pickle.loads(pickle.dumps(built)), saved(built)):
        assert torch.equal(again(x), wanted)


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_weights_that_do_not_fit_are_refused_and_change_nothing():
    layer = keras.LSTM(4)
    arrays = [np.ones((3, 16)), np.ones((4, 16)), np.ones(12)]
    with pytest.raises(ArgumentError, match=r"cell\.bias.*\[16\]"):
        layer.set_weights(arrays)
    with pytest.raises(ArgumentError, match=r"2 arrays.*3: cell\.kernel"):
        layer.set_weights(arrays[:2])
    with pytest.raises(ArgumentTypeError, match="list of arrays"):
        layer.set_weights({"kernel": arrays[0]})
    with pytest.raises(ArgumentError, match="input_size"):
        layer.get_weights()
    layer(torch.randn(1, 2, 5))  # the width was still free
    before = layer.get_weights()
    with pytest.raises(ArgumentError, match=r"cell\.kernel"):
        layer.set_weights([np.ones((3, 16)), np.ones((4, 16)), np.ones(16)])
    assert all(map(np.array_equal, before, layer.get_weights()))


@torch.no_grad()
def test_weights_start_as_keras_says():
    cell = keras.LSTMCell(64, input_size=32)
    limit = math.sqrt(6 / (32 + 256))
    assert 0.98 * limit < float(cell.kernel.abs().max()) <= limit
    product = cell.recurrent_kernel @ cell.recurrent_kernel.T
    torch.testing.assert_close(product, torch.eye(64), rtol=0, atol=1e-5)
    wanted = torch.zeros(4, 64)
    wanted[1] = 1
    assert torch.equal(cell.bias.view(4, 64), wanted)
    plain = keras.LSTMCell(4, unit_forget_bias=False, input_size=3)
    assert not plain.bias.any()
    he = keras.SimpleRNNCell(300, kernel_initializer="he_normal", input_size=200).kernel
    assert float(he.std()) == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    ones = keras.GRUCell(4, bias_initializer="ones", recurrent_initializer=torch.nn.init.zeros_)
    assert bool((ones.bias == 1).all())
    assert not ones.recurrent_kernel.any()
    with pytest.raises(ArgumentError, match=r"kernel_initializer.*glorot"):
        keras.GRUCell(4, kernel_initializer="glorot")


def test_the_backward_copy_has_weights_of_its_own():
    layer = keras.LSTM(4, input_size=3)
    both = keras.Bidirectional(layer)
    assert both.forward_layer is layer
    assert not torch.equal(both.backward_layer.cell.kernel, layer.cell.kernel)
    assert both.backward_layer.go_backwards
    assert not layer.go_backwards


# Activations --------------------------------------------------------------------------------------

FORMULAS = {
    "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "exponential": np.exp,
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "linear": lambda x: x,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "relu": lambda x: np.maximum(x, 0),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMED)
def test_an_activation_is_the_one_of_its_name_and_compiles(name, engine):
    """A cell that did not compile would warn, which is an error here."""
    layer = keras.SimpleRNN(4, name_of(name), input_size=3, return_sequences=True).double()
    x = 3 * torch.randn(5, 1, 3, dtype=torch.float64)
    with unpad.engine(engine):
        found = layer(x)[:, 0].detach().numpy()
    kernel = layer.cell.kernel.detach().numpy()
    np.testing.assert_allclose(found, FORMULAS[name](x[:, 0].numpy() @ kernel), rtol=1e-9)


def name_of(name):
    return None if name == "linear" else name


def test_an_unknown_activation_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"'tan'.*hard_sigmoid"):
        keras.LSTM(4, "tan")
    with pytest.raises(ArgumentTypeError, match="recurrent_activation"):
        keras.GRU(4, recurrent_activation=3)


# States -------------------------------------------------------------------------------------------


def test_a_stateful_layer_goes_on_and_its_gradient_does_not():
    layer = keras.LSTM(4, stateful=True, return_sequences=True, return_state=True)
    twin = keras.LSTM(4, return_sequences=True, return_state=True)
    x = torch.randn(3, 10, 5)
    layer.build(5)
    twin.set_weights(layer.get_weights())
    first = x[:, :4].clone().requires_grad_()
    layer(first)
    output, h, c = layer(x[:, 4:])
    whole, *wanted = twin(x)
    torch.testing.assert_close(output, whole[:, 4:], rtol=0, atol=1e-6)
    torch.testing.assert_close([h, c], wanted, rtol=0, atol=1e-6)
    assert torch.autograd.grad(output.sum(), first, allow_unused=True) == (None,)
    layer.reset_states()
    assert torch.equal(layer(x)[0], whole)
    layer.reset_states([h.detach().numpy(), c.detach()])
    assert torch.equal(layer(x)[0], twin(x, [h, c])[0])
    assert "state_0" not in layer.state_dict()


def test_two_stateful_directions_go_on_each_by_itself():
    both = keras.Bidirectional(keras.GRU(4, stateful=True, return_state=True))
    x = torch.randn(3, 5, 2)
    _, forward, backward = both(x)
    assert torch.equal(both.forward_layer.states[0], forward)
    assert torch.equal(both.backward_layer.states[0], backward)
    result = both(x)
    both.reset_states()
    assert torch.equal(both(x, [forward, backward])[0], result[0])


def test_a_state_that_keras_would_ignore_or_mix_up_is_refused():
    layer = keras.GRU(4, stateful=True)
    x, h = torch.randn(3, 5, 2), torch.randn(3, 4)
    layer(x, h)
    with pytest.raises(ArgumentError, match="reset_states"):
        layer(x, h)
    with pytest.raises(ArgumentError, match="batch of the states kept"):
        layer(x[:2])
    with pytest.raises(ArgumentError, match="stateful"):
        keras.GRU(4).reset_states()
    with pytest.raises(ArgumentError, match="2 states"):
        keras.LSTM(4, stateful=True).reset_states([h])


def test_states_of_a_stack_may_be_flat_or_nested():
    layer = keras.RNN([keras.LSTMCell(4), keras.GRUCell(2)], return_state=True)
    x = torch.randn(3, 5, 2)
    h, c, g = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 2)
    output, (h1, c1), g1 = layer(x, [[h, c], g])
    assert torch.equal(layer(x, [h, c, g])[0], output)
    assert [tuple(t.shape) for t in (h1, c1, g1)] == [(3, 4), (3, 4), (3, 2)]


# Edges --------------------------------------------------------------------------------------------


def nothing(kind):
    """Inputs without one step that counts, in each way that there is, and B."""
    return {
        "all rows empty": (unpad.Ragged(torch.zeros(0, 3), [0, 0, 0]), {}),
        "no time": (torch.zeros(2, 0, 3), {}),
        "all masked": (torch.full((2, 4, 3), torch.nan), {"mask": torch.zeros(2, 4).bool()}),
    }[kind]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["all rows empty", "no time", "all masked"])
@pytest.mark.parametrize("both", [False, True])
def test_without_a_step_states_stay_and_the_output_is_0(kind, both, engine):
    inputs, options = nothing(kind)
    for return_sequences in (False, True):
        layer = keras.LSTM(4, return_state=True, return_sequences=return_sequences)
        layer = keras.Bidirectional(layer) if both else layer
        states = [torch.randn(2, 4, requires_grad=True) for _ in range(4 if both else 2)]
        with unpad.engine(engine):
            output, *final = layer(inputs, states, **options)
            loss = sum((number * s).sum() for number, s in enumerate(final, 1))
            values = output.values if isinstance(output, unpad.Ragged) else output
            loss = loss + values.sum()
        assert all(map(torch.equal, final, states))
        assert not values.any()
        steps = {"all rows empty": 0, "no time": 0, "all masked": 8}[kind]
        assert values.numel() == (steps if return_sequences else 2) * (8 if both else 4)
        for number, gradient in enumerate(torch.autograd.grad(loss, states), 1):
            assert bool((gradient == number).all())


def test_an_empty_batch_gives_an_empty_batch():
    layer = keras.GRU(4, return_sequences=True, return_state=True)
    output, h = layer(torch.zeros(0, 5, 3), mask=torch.zeros(0, 5).bool())
    assert (tuple(output.shape), tuple(h.shape)) == ((0, 5, 4), (0, 4))


def test_zero_output_for_mask_makes_the_last_output_0_as_in_keras():
    layer = keras.GRU(4, zero_output_for_mask=True)
    x = torch.randn(2, 3, 5)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    output = layer(x, mask=mask)
    assert output[0].any()
    assert not output[1].any()
    ragged = layer(unpad.Ragged.from_mask(x, mask))  # no row of these ends in a masked step
    assert torch.equal(ragged[0], output[0])
    assert ragged[1].any()


def test_unroll_and_implementation_change_no_number():
    one = keras.LSTM(4, return_sequences=True, input_size=3)
    other = keras.LSTM(4, return_sequences=True, unroll=True, implementation=1)
    other.set_weights(one.get_weights())
    ragged = unpad.Ragged.from_list([torch.randn(n, 3) for n in (3, 0, 2)])
    assert torch.equal(one(ragged).values, other(ragged).values)


def test_any_cell_of_unpad_is_a_cell():
    layer = keras.RNN(unpad.nn.GRUCell(3, 4), return_sequences=True)
    plain = unpad.nn.Recurrent(layer.cell)
    x = torch.randn(2, 5, 3)
    assert torch.equal(layer(x), plain(x)[0])
    noisy = keras.RNN(unpad.nn.Dropout(keras.LSTMCell(4, input_size=3), input=0.5))
    noisy.eval()
    assert torch.equal(noisy(x), keras.RNN(noisy.cell.cell)(x))


def test_a_layer_runs_under_torch_compile():
    layer = keras.LSTM(4, input_size=3)
    x = torch.randn(2, 5, 3)
    assert torch.equal(torch.compile(layer, backend="eager")(x), layer(x))


# Errors -------------------------------------------------------------------------------------------

X = torch.zeros(2, 5, 3)
RAGGED = unpad.Ragged.from_list([torch.zeros(2, 3), torch.zeros(1, 3)])
H = torch.zeros(2, 4)
MISTAKES = {
    "mask one step short": ((X,), {"mask": torch.ones(2, 4)}, ArgumentError, r"mask.*\[2, 5\]"),
    "mask of probabilities": (
        (X,),
        {"mask": torch.full((2, 5), 0.5)},
        ArgumentTypeError,
        "mask.*0 and 1",
    ),
    "mask and ragged": ((RAGGED,), {"mask": torch.ones(2, 2)}, ArgumentError, "mask.*None"),
    "rank 2": ((X[0],), {}, ArgumentError, r"inputs.*\[B, T, 3\]"),
    "another width": ((X[..., :2],), {}, ArgumentError, r"inputs.*\[B, T, 3\]"),
    "too few states": ((X, [H]), {}, ArgumentError, "initial_state.*2 states"),
    "state of another batch": ((X, [H[:1], H]), {}, ArgumentError, "initial_state.*select_rows"),
    "state of another width": ((X, [H[:, :3], H]), {}, ArgumentError, "initial_state"),
    "state of another dtype": ((X, [H.double(), H]), {}, ArgumentError, "initial_state.*float32"),
    "state as an array": ((X, [H.numpy(), H]), {}, ArgumentTypeError, "initial_state"),
    "inputs of another dtype": ((X.double(),), {}, ArgumentError, "inputs.*float32"),
    "inputs as an array": ((X.numpy(),), {}, ArgumentTypeError, "inputs.*from_numpy"),
}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_any_work(name, both):
    arguments, options, error, match = MISTAKES[name]
    layer = keras.LSTM(4, stateful=True, input_size=3)
    layer = keras.Bidirectional(layer) if both else layer
    if both and len(arguments) == 2:
        arguments = (arguments[0], [H, H, *arguments[1]] if len(arguments[1]) > 1 else [H, H])
    with pytest.raises(error, match=match):
        layer(*arguments, **options)
    parts = (layer.forward_layer, layer.backward_layer) if both else (layer,)
    assert all(part.states is None for part in parts)


BUILDS = {
    "units": (lambda: keras.LSTM(0), "units.*1 or more"),
    "widths": (
        lambda: keras.StackedRNNCells([keras.GRUCell(4), keras.GRUCell(2, input_size=3)]),
        r"cells\[1\].*4",
    ),
    "merge mode": (lambda: keras.Bidirectional(keras.GRU(4), "max"), "merge_mode.*concat"),
    "merge widths": (
        lambda: keras.Bidirectional(
            keras.GRU(4), "sum", backward_layer=keras.GRU(3, go_backwards=True)
        ),
        "merge_mode.*units",
    ),
    "directions": (
        lambda: keras.Bidirectional(keras.GRU(4), backward_layer=keras.GRU(4)),
        "go_backwards",
    ),
    "options": (
        lambda: keras.Bidirectional(
            keras.GRU(4), backward_layer=keras.GRU(4, return_state=True, go_backwards=True)
        ),
        "return_state=True",
    ),
    "layer": (lambda: keras.Bidirectional(keras.GRUCell(4)), "layer.*RNN"),
    "odd states": (
        lambda: keras.Bidirectional(keras.GRU(4, input_size=3))(X, [H]),
        "initial_state.*backward",
    ),
    "rebuilt": (lambda: [keras.GRUCell(4, input_size=3).build(2)], "inputs.*3"),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_wrong_argument_is_named(name):
    make, match = BUILDS[name]
    with pytest.raises((ArgumentError, ArgumentTypeError), match=match):
        make()


def test_a_layer_without_a_known_width_says_what_to_do():
    with pytest.raises(ArgumentError, match="input_size"):
        keras.GRU(4)([])
