"""A call that is refused leaves the cell as it was: its weights still wait for a width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import unpad
from unpad import functional, tf1
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import map_leaves
from unpad.tf1 import keras

REFUSED = (ArgumentError, ArgumentTypeError)

CELLS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: tf1.BasicRNNCell(4),
    "gru": lambda: tf1.GRUCell(4),
    "lstm": lambda: tf1.LSTMCell(4, use_peepholes=True, num_proj=3),
    "norm": lambda: tf1.LayerNormBasicLSTMCell(4),
    "stack": lambda: tf1.MultiRNNCell([tf1.GRUCell(4), tf1.LSTMCell(4)]),
    "dropout": lambda: tf1.DropoutWrapper(tf1.GRUCell(4), 0.5, 0.5, 0.5),
}

CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "lengths": lambda cell, x: tf1.dynamic_rnn(cell, x, [1] * (len(x) + 1)),
    "state": lambda cell, x: tf1.dynamic_rnn(cell, x, initial_state=x.new_zeros(7)),
    "rank": lambda cell, x: tf1.dynamic_rnn(cell, x[0, 0]),
    "steps": lambda cell, x: tf1.static_rnn(cell, [x[:, 0]], initial_state=x.new_zeros(7)),
    "two directions": lambda cell, x: tf1.bidirectional_dynamic_rnn(cell, cell, x, [-1] * len(x)),
    "layers": lambda cell, x: tf1.stack_bidirectional_dynamic_rnn(
        [tf1.GRUCell(3), cell], [tf1.GRUCell(3), tf1.GRUCell(3)], x, [x.new_zeros(7), None]
    ),
    "loop": lambda cell, x: tf1.raw_rnn(
        cell, lambda *_: (torch.tensor([False]), x[:1, 0], None, None, None)
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", CELLS)
def test_a_refused_call_makes_no_weights(name: str, call: str) -> None:
    cell, wide = CELLS[name](), torch.randn(2, 5, 9)
    optimizer = torch.optim.SGD(cell.parameters(), 0.1)
    with pytest.raises(REFUSED):
        CALLS[call](cell, wide)
    assert cell.input_size is None
    assert all(is_lazy(p) for p in cell.parameters())

    x = torch.randn(2, 5, 3, dtype=torch.float64)
    output, _ = tf1.dynamic_rnn(cell, x, [5, 2])
    output.sum().backward()
    before = [p.detach().clone() for p in cell.parameters()]
    optimizer.step()  # the parameters that it was given before the refusal
    assert cell.input_size == 3
    assert output.dtype == torch.float64
    assert any(not torch.equal(*pair) for pair in zip(before, cell.parameters(), strict=True))


def test_a_refused_call_of_the_cell_itself_makes_no_weights() -> None:
    cell = tf1.MultiRNNCell([tf1.GRUCell(4), tf1.GRUCell(2)])
    with pytest.raises(ArgumentError, match="`state`"):
        cell(torch.randn(2, 9), (torch.zeros(2, 4), torch.zeros(2, 7)))
    assert cell.input_size is None
    assert all(is_lazy(p) for p in cell.parameters())


def test_what_was_made_before_stays_after_a_refused_call() -> None:
    made, waiting = tf1.GRUCell(4), tf1.GRUCell(4)
    made.build(3)
    kernel = made.gates_kernel.detach().clone()
    with pytest.raises(ArgumentError, match="sequence_length"):
        tf1.bidirectional_dynamic_rnn(made, waiting, torch.randn(2, 5, 3), [9, 9])
    assert (made.input_size, waiting.input_size) == (3, None)
    torch.testing.assert_close(made.gates_kernel, kernel)
    assert not is_lazy(made.gates_kernel)


LAYERS: dict[str, Callable[[], keras.RNN | keras.Bidirectional]] = {
    "rnn": lambda: keras.SimpleRNN(4),
    "lstm": lambda: keras.LSTM(4),
    "gru": lambda: keras.GRU(4),
    "stack": lambda: keras.RNN([keras.LSTMCell(4), keras.GRUCell(3)]),
    "tf1 cell": lambda: keras.RNN(tf1.GRUCell(4)),
    "both": lambda: keras.Bidirectional(keras.LSTM(4)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mistake", [{"mask": "x"}, {"initial_state": torch.zeros(7)}])
def test_a_refused_call_of_a_keras_layer_makes_no_kernel(name: str, mistake: Any) -> None:
    layer = LAYERS[name]()
    waiting = [p for p in layer.parameters() if is_lazy(p)]
    others = [p.detach().clone() for p in layer.parameters() if not is_lazy(p)]
    with pytest.raises(REFUSED):
        layer(torch.randn(2, 5, 9), **mistake)
    assert waiting == [p for p in layer.parameters() if is_lazy(p)]
    for before, now in zip(others, (p for p in layer.parameters() if not is_lazy(p)), strict=True):
        torch.testing.assert_close(now.detach(), before, rtol=0, atol=0)
    assert layer(torch.randn(2, 5, 3)).shape[0] == 2


class Pair(tf1.RNNCell):
    """Two cells side by side, for a pair of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = tf1.GRUCell(4), tf1.BasicRNNCell(3)
        self.state_size = self.output_size = (4, 3)

    def forward(self, x: Any, state: Any) -> Any:
        one, two = self.left(x[0], state[0])[0], self.right(x[1], state[1])[0]
        return (one, two), (one, two)


def test_cells_within_a_cell_of_nests_are_made_at_its_first_call() -> None:
    torch.manual_seed(0)
    pair, x = Pair(), (torch.randn(2, 5, 6), torch.randn(2, 5, 2))
    outputs, _ = tf1.dynamic_rnn(pair, x, [5, 3])
    for cell, part, output in zip((pair.left, pair.right), x, outputs, strict=True):
        torch.testing.assert_close(output, tf1.dynamic_rnn(cell, part, [5, 3])[0])


def test_wrappers_take_the_nests_that_their_cell_takes() -> None:
    x = torch.randn(2, 5, 4), torch.randn(2, 5, 3)
    pair = Pair()
    plain, _ = tf1.dynamic_rnn(pair, x)
    added, _ = tf1.dynamic_rnn(tf1.ResidualWrapper(pair), x)
    for output, part, both in zip(plain, x, added, strict=True):
        torch.testing.assert_close(both, output + part)
    dropped, _ = tf1.dynamic_rnn(tf1.DropoutWrapper(Pair(), 0.5, 0.5, 0.5), x)
    assert [part.shape for part in dropped] == [part.shape for part in x]
    with pytest.raises(ArgumentError, match="formed like the input"):
        tf1.dynamic_rnn(tf1.ResidualWrapper(Pair()), (x[1], x[0]))


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("built", [False, True])
def test_a_cell_of_one_tensor_refuses_a_nest(name: str, built: bool) -> None:
    cell, x = CELLS[name](), torch.randn(2, 5, 3)
    if built:
        cell.build(3)
    with pytest.raises(ArgumentTypeError, match=r"`inputs`.*one tensor.*torch.cat"):
        tf1.dynamic_rnn(cell, (x, x))
    assert cell.input_size == (3 if built else None)


def test_a_function_that_makes_no_weights_says_how() -> None:
    with pytest.raises(ArgumentError, match=r"GRUCell without input_size.*build\(input_size\)"):
        functional.dynamic_rnn(tf1.GRUCell(4), torch.randn(2, 5, 3))


CELL, LAYER = tf1.GRUCell(4), keras.LSTM(4, input_size=3)
CELL.build(3)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo's own look at a tensor
@pytest.mark.parametrize(
    "call",
    [
        lambda x: tf1.dynamic_rnn(CELL, x)[0],
        lambda x: tf1.static_rnn(CELL, list(x.unbind(1)))[0][0],
        lambda x: tf1.bidirectional_dynamic_rnn(CELL, CELL, x)[0][0],
        lambda x: functional.dynamic_rnn(CELL, x)[0],
        LAYER,
    ],
)
def test_torch_compile_runs_them_and_names_what_a_whole_graph_cannot_have(call: Any) -> None:
    x = torch.randn(2, 5, 3)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="leave fullgraph=True out"):
        torch.compile(call, backend="eager", fullgraph=True)(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(call, backend="eager")(x), call(x))


@pytest.mark.parametrize(
    "make", [lambda: tf1.LSTMCell(8), lambda: tf1.MultiRNNCell([tf1.GRUCell(8)]),
             lambda: keras.LSTM(8, return_sequences=True),
             lambda: keras.GRU(8, stateful=True, return_sequences=True),
             lambda: keras.Bidirectional(keras.GRU(8, return_sequences=True))]
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_weights_made_in_inference_mode_learn(make: Any) -> None:
    def outputs() -> Tensor:
        return tf1.dynamic_rnn(made, x)[0] if isinstance(made, tf1.RNNCell) else made(x)

    made, x = make(), torch.randn(3, 6, 4)
    with torch.inference_mode():
        first = outputs()
    assert not any(p.is_inference() for p in made.parameters())
    if not getattr(made, "stateful", False):
        torch.testing.assert_close(outputs(), first)
    outputs().sum().backward()
    for parameter in made.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.any())


STEPS: dict[str, Callable[[], Any]] = {
    **CELLS,
    "keras rnn": lambda: keras.SimpleRNNCell(4, input_size=3),
    "keras lstm": lambda: keras.LSTMCell(4, input_size=3),
    "keras gru": lambda: keras.GRUCell(4, input_size=3),
    "own rnn": lambda: unpad.nn.RNNCell(3, 4),
    "own lstm": lambda: unpad.nn.LSTMCell(3, 4, proj_size=2),
    "own gru": lambda: unpad.nn.GRUCell(3, 4),
    "own norm": lambda: unpad.nn.LayerNormLSTMCell(3, 4),
    "own stack": lambda: unpad.nn.Stack([unpad.nn.LSTMCell(3, 4), unpad.nn.GRUCell(4, 2)]),
    "own dropout": lambda: unpad.nn.Dropout(unpad.nn.GRUCell(3, 4), input=0.3),
    "own zoneout": lambda: unpad.nn.Zoneout(unpad.nn.GRUCell(3, 4), 0.3),
    "keras stack": lambda: keras.StackedRNNCells(
        [keras.LSTMCell(4, input_size=3), keras.GRUCell(2)]
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_by_hand_is_checked_and_never_broadcast(name: str) -> None:
    cell, x = STEPS[name](), torch.randn(5, 3)
    state = cell.initial_state(5)
    output, _ = cell(x, state)
    assert output.shape[0] == 5
    one = cell.initial_state(1)
    bare = torch.zeros(5, 9)
    for argument, given, before in (
        ("state", x, one), ("state", x[:1], state), ("state", x, None), ("state", x, bare),
        ("state", x, map_leaves(Tensor.double, state)), ("x", x[:, None], state),
        ("x", x[0], state), ("x", x[0, 0], state), ("x", x[:, :2], state),
        ("x", x.double(), state), ("x", x.long(), state),
    ):  # fmt: skip
        with pytest.raises(REFUSED, match=f"`{argument}`"):
            cell(given, before)
    with pytest.raises(REFUSED, match=r"`(x|inputs)`"):
        cell(None, state)
    with pytest.raises(REFUSED, match="`state`"):
        cell(x, state=one)
    with pytest.raises(REFUSED, match="`x`"):
        cell(x=x[:, :2], state=state)
    again, _ = cell.eval()(x, state)
    torch.testing.assert_close(
        again, cell(x, list(state) if isinstance(state, tuple) else state)[0]
    )


@pytest.mark.parametrize("name", [n for n in STEPS if n != "dropout"])
def test_a_step_goes_through_torchs_own_transforms(name: str) -> None:
    cell, x = STEPS[name]().eval(), torch.randn(5, 3)
    state = cell.initial_state(5)
    output, _ = cell(x, state)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: cell(x, state)[0], backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), output)
    several = torch.func.vmap(lambda x: cell(x, state)[0])(torch.stack([x, 2 * x]))
    torch.testing.assert_close(several[0], output)
    weights = {k: torch.zeros_like(v) for k, v in cell.named_parameters()}
    other, _ = torch.func.functional_call(cell, weights, (x, state))
    assert not torch.equal(other, output)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cell(x.bfloat16(), state)[0].shape == output.shape


@pytest.mark.parametrize("name", [n for n in CELLS if n != "norm"])
def test_a_first_step_of_another_rank_makes_no_weights(name: str) -> None:
    cell = CELLS[name]()
    with pytest.raises(ArgumentError, match=r"`x`.*one step"):
        cell(torch.randn(2, 5, 3), cell.initial_state(2))
    assert cell.input_size is None
    with pytest.raises(ArgumentTypeError, match=r"`x`.*nn.Embedding"):
        cell(torch.ones(2, 3, dtype=torch.int64), cell.initial_state(2))
    assert cell.input_size is None


@pytest.mark.parametrize("name", LAYERS)
def test_a_keras_layer_is_built_for_a_width_or_a_shape(name: str) -> None:
    for given in (3, (None, 5, 3), [None, None, 3], torch.Size([2, 5, 3])):
        layer = LAYERS[name]()
        layer.build(given)
        assert not any(is_lazy(p) for p in layer.parameters())
        assert layer(torch.zeros(2, 5, 3)).shape[0] == 2
    for wrong in (-1, 0, "4", 2.0, [4], None, (None, 5, None), (5, -3), True):
        layer = LAYERS[name]()
        with pytest.raises(REFUSED, match="`input_size`"):
            layer.build(wrong)
        assert any(is_lazy(p) for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 5, 3), np.float32), None, "abc", [[1.0, 2.0]], torch.tensor(1.0),
              torch.zeros(3), 5, [np.zeros((2, 3))], [torch.zeros(3)]]
)  # fmt: skip
def test_an_input_that_is_none_is_refused_as_the_input_built_or_not(name: str, wrong: Any) -> None:
    layer = LAYERS[name]()
    with pytest.raises(REFUSED, match="`inputs"):
        layer(wrong)
    layer.build(3)
    with pytest.raises(REFUSED, match="`inputs"):
        layer(wrong)


class OwnStep(keras.GRUCell):
    """A Keras cell with a forward of its user's."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(2 * x, state)


@pytest.mark.parametrize("make", [lambda: keras.GRUCell(4), lambda: OwnStep(4)])
def test_a_step_of_a_keras_cell_without_a_kernel_says_what_to_call(make: Any) -> None:
    cell = make()
    with pytest.raises(ArgumentError, match=r"without input_size.*build\(input_size\)"):
        cell(torch.randn(2, 3), torch.zeros(2, 4))
    cell.build(3)
    assert cell(torch.randn(2, 3), torch.zeros(2, 4))[0].shape == (2, 4)
    assert keras.RNN(make())(torch.randn(2, 5, 3)).shape == (2, 4)
