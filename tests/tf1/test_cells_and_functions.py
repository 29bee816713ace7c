"""What `unpad.tf1` promises besides TensorFlow's numbers: weights made once, errors, the rest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import unpad
from engine.every_cell import TIERS
from unpad import tf1
from unpad.errors import ArgumentError, ArgumentTypeError

CELLS = {
    "basic rnn": lambda: tf1.BasicRNNCell(4),
    "basic lstm": lambda: tf1.BasicLSTMCell(4),
    "lstm": lambda: tf1.LSTMCell(4, use_peepholes=True, cell_clip=0.5, num_proj=3, proj_clip=0.4),
    "lstm, one state": lambda: tf1.LSTMCell(4, state_is_tuple=False, activation="relu"),
    "gru": lambda: tf1.GRUCell(4),
    "layer norm": lambda: tf1.LayerNormBasicLSTMCell(4),
    "no layer norm": lambda: tf1.LayerNormBasicLSTMCell(4, layer_norm=False),
    "multi": lambda: tf1.MultiRNNCell([tf1.GRUCell(4), tf1.ResidualWrapper(tf1.BasicLSTMCell(4))]),
    "dropout": lambda: tf1.DropoutWrapper(tf1.BasicLSTMCell(4), 0.9, 0.8, 0.7),
}
each_cell = pytest.mark.parametrize("name", CELLS)
LENGTHS = [5, 0, 2]


def batch(width=3, steps=5):
    return torch.randn(len(LENGTHS), steps, width)


@each_cell
def test_weights_are_made_once_and_a_trace_with_them(name):
    cell, x = CELLS[name](), batch()
    before = dict(cell.named_parameters())
    with pytest.raises(ArgumentError, match="build"):
        cell.variables()
    tf1.dynamic_rnn(cell, x, LENGTHS)
    assert all(before[name] is value for name, value in cell.named_parameters())
    parameters = {name: value.data_ptr() for name, value in cell.named_parameters()}
    traces = unpad.trace_count()
    assert len(cell.variables()) == len(parameters) > 0
    tf1.dynamic_rnn(cell, batch(steps=9), [9, 1, 3])
    tf1.static_rnn(cell, list(batch().unbind(1)), sequence_length=LENGTHS)
    tf1.dynamic_rnn(cell, x[:1])
    after = {name: value.data_ptr() for name, value in cell.named_parameters()}
    assert after == parameters
    assert unpad.trace_count() == traces


def test_a_cell_of_nests_is_traced_once_too():
    class Pair(tf1.RNNCell):
        scope = "pair"

        def __init__(self):
            super().__init__()
            self.state_size, self.output_size = (2,), (2, 3)

        def forward(self, x, state):
            a, b = x
            return (a, b + a.sum(1, keepdim=True)), (state[0] + a,)

    cell, inputs = Pair(), (torch.randn(3, 4, 2), torch.randn(3, 4, 3))
    (first, second), (total,) = tf1.dynamic_rnn(cell, inputs, [4, 0, 2])
    traces = unpad.trace_count()
    tf1.dynamic_rnn(cell, tuple(x[:, :3] for x in inputs))
    assert unpad.trace_count() == traces
    assert (first.shape, second.shape) == ((3, 4, 2), (3, 4, 3))
    torch.testing.assert_close(total[2], inputs[0][2, :2].sum(0))


@each_cell
def test_the_cell_called_step_by_step_gives_the_same(name):
    cell = CELLS[name]().double().eval()
    x = batch().double()
    outputs, final = tf1.dynamic_rnn(cell, x, LENGTHS)
    for row, length in enumerate(LENGTHS):
        state = cell.zero_state(1, torch.float64)
        for step in range(length):
            output, state = cell(x[row : row + 1, step], state)
            torch.testing.assert_close(outputs[row, step], output[0])
        assert not outputs[row, length:].any()
        wanted = torch.utils._pytree.tree_leaves(state)
        for leaf, one in zip(torch.utils._pytree.tree_leaves(final), wanted, strict=True):
            torch.testing.assert_close(leaf[row], one[0])


@pytest.mark.parametrize("name", [name for name in CELLS if name != "dropout"])
@pytest.mark.skipif(not TIERS, reason="no native engine was built")
def test_every_cell_runs_on_the_native_engine(name):
    cell = CELLS[name]()
    cell.build(3)
    assert ": native engine" in str(unpad.explain(cell)).splitlines()[0]


@each_cell
def test_nan_in_padding_reaches_nothing(name):
    cell, x = CELLS[name]().eval(), batch()
    clean = x.clone().requires_grad_()
    spoilt = x.clone()
    for row, length in enumerate(LENGTHS):
        spoilt[row, length:] = float("nan")
    spoilt.requires_grad_()
    results = []
    for given in (clean, spoilt):
        outputs, _ = tf1.dynamic_rnn(cell, given, LENGTHS)
        results.append(torch.autograd.grad(outputs.sum(), [given, *cell.parameters()]))
    for a, b in zip(*results, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_swap_memory_changes_no_gradient():
    cell = tf1.BasicLSTMCell(4)
    x = torch.randn(2, 300, 3, requires_grad=True)
    found = []
    for swap in (False, True):
        outputs, _ = tf1.dynamic_rnn(cell, x, [300, 211], swap_memory=swap)
        found.append(torch.autograd.grad(outputs.square().sum(), [x, *cell.parameters()]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def layer_norm_lstm(weights, x, forget_bias):
    """The cell of tf.contrib in NumPy, from its own source's words, one sequence [S, I]."""

    def norm(v, gate):
        scaled = (v - v.mean()) / np.sqrt(v.var() + 1e-12)
        return scaled * weights[f"{gate}/gamma"] + weights[f"{gate}/beta"]

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    size = weights["kernel"].shape[1] // 4
    c = h = np.zeros(size)
    outputs = []
    for x_t in x:
        i, j, f, o = np.split(np.concatenate([x_t, h]) @ weights["kernel"], 4)
        i, j = norm(i, "input"), norm(j, "transform")
        f, o = norm(f, "forget"), norm(o, "output")
        c = norm(c * sigmoid(f + forget_bias) + sigmoid(i) * np.tanh(j), "state")
        h = np.tanh(c) * sigmoid(o)
        outputs.append(h)
    return np.array(outputs), c


def test_layer_norm_basic_lstm_cell_by_an_independent_formula():
    cell = tf1.LayerNormBasicLSTMCell(6, forget_bias=0.5)
    cell.build(3, dtype=torch.float64)
    for parameter in cell.parameters():
        nn.init.normal_(parameter)
    scope = "layer_norm_basic_lstm_cell/"
    weights = {
        name.removeprefix(scope): value.detach().numpy() for name, value in cell.variables().items()
    }
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    outputs, state = tf1.dynamic_rnn(cell, x, [7, 4])
    for row, length in enumerate([7, 4]):
        wanted, c = layer_norm_lstm(weights, x[row, :length].numpy(), 0.5)
        np.testing.assert_allclose(outputs[row, :length].detach(), wanted, atol=1e-10)
        np.testing.assert_allclose(state.c[row].detach(), c, atol=1e-10)


def test_layer_norm_gradients():
    cell = tf1.LayerNormBasicLSTMCell(3)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    cell.build(2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: tf1.dynamic_rnn(cell, x, [3, 2])[0], x)


class TestDropoutWrapper:
    def run(self, **rates):
        """A cell that gives its input and counts: what dropout does shows in every number."""

        class Counting(tf1.RNNCell):
            scope = "counting"

            def __init__(self):
                super().__init__()
                self.state_size, self.output_size = tf1.LSTMStateTuple(500, 500), 500

            def forward(self, x, state):
                return x + 0.0, tf1.LSTMStateTuple(state.c * 0 + 1.0, state.h * 0 + 1.0)

        cell = tf1.DropoutWrapper(Counting(), **rates)
        return cell, tf1.dynamic_rnn(cell, torch.ones(2, 3, 500), [3, 2])

    def test_what_is_kept_is_divided_by_its_share(self):
        _, (outputs, state) = self.run(output_keep_prob=0.75)
        values = outputs[0].unique().tolist()
        assert values == pytest.approx([0.0, 1 / 0.75])
        assert (outputs[0] > 0).float().mean().item() == pytest.approx(0.75, abs=0.06)
        assert state.c.unique().tolist() == state.h.unique().tolist() == [1.0]

    def test_the_memory_is_left_alone(self):
        _, (_, state) = self.run(state_keep_prob=0.5)
        assert state.c.unique().tolist() == [1.0]
        assert state.h.unique().tolist() == [0.0, 2.0]

    def test_a_filter_chooses_the_states(self):
        everything = tf1.LSTMStateTuple(c=True, h=True)
        choose = lambda part: everything if isinstance(part, tuple) else True  # noqa: E731
        _, (_, state) = self.run(state_keep_prob=0.5, dropout_state_filter_visitor=choose)
        assert state.c.unique().tolist() == [0.0, 2.0]
        _, (_, state) = self.run(state_keep_prob=0.5, dropout_state_filter_visitor=lambda _: False)
        assert state.h.unique().tolist() == [1.0]

    def test_variational_masks_hold_for_all_steps_of_a_sequence(self):
        _, (outputs, _) = self.run(output_keep_prob=0.5, variational_recurrent=True)
        torch.testing.assert_close(outputs[0, 0], outputs[0, 2])
        assert not torch.equal(outputs[0, 0], outputs[1, 0])
        _, (outputs, _) = self.run(output_keep_prob=0.5)
        assert not torch.equal(outputs[0, 0], outputs[0, 2])

    def test_evaluation_keeps_everything(self):
        cell, _ = self.run(input_keep_prob=0.5, output_keep_prob=0.5, state_keep_prob=0.5)
        outputs, state = tf1.dynamic_rnn(cell.eval(), torch.ones(1, 3, 500))
        assert outputs.unique().tolist() == state.h.unique().tolist() == [1.0]

    @pytest.mark.parametrize("rate", [0.0, 1.1, -1, float("nan"), "half", None])
    def test_shares_are_checked(self, rate):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="input_keep_prob"):
            tf1.DropoutWrapper(tf1.GRUCell(2), input_keep_prob=rate)


def test_one_cell_twice_shares_its_weights():
    cell = tf1.GRUCell(3)
    both = tf1.MultiRNNCell([cell, cell])
    both.build(3)
    assert len(list(both.parameters())) == 4
    other = tf1.GRUCell(3)
    with pytest.raises(ArgumentError, match="features"):
        tf1.MultiRNNCell([other, other]).build(5)


def test_the_initial_weights_are_tensorflows():
    cell = tf1.GRUCell(32)
    cell.build(64)
    assert cell.gates_bias.unique().tolist() == [1.0]
    assert cell.candidate_bias.unique().tolist() == [0.0]
    limit = (6 / (96 + 64)) ** 0.5
    assert 0.97 * limit < cell.gates_kernel.abs().max() <= limit
    lstm = tf1.LSTMCell(48, use_peepholes=True, initializer=nn.init.ones_)
    lstm.build(2)
    assert lstm.kernel.unique().tolist() == lstm.w_o_diag.unique().tolist() == [1.0]
    assert not lstm.bias.any()


def test_a_ragged_batch_needs_no_lengths():
    cell = tf1.BasicLSTMCell(4)
    x = batch()
    outputs, state = tf1.dynamic_rnn(cell, unpad.Ragged.from_padded(x, LENGTHS))
    padded, same = tf1.dynamic_rnn(cell, x, LENGTHS)
    torch.testing.assert_close(outputs.to_padded(), padded)
    torch.testing.assert_close(state.c, same.c)


GRU = tf1.GRUCell(4)
LSTM = tf1.BasicLSTMCell(4)
X = torch.zeros(4, 6, 3)
GRU.build(3)
LSTM.build(3)
H = torch.zeros(4, 4)
# What TensorFlow says to each is in the porting page's table.
MISTAKES = {
    "3 lengths for 4": (GRU, X, {"sequence_length": [1, 2, 3]}, "sequence_length"),
    "lengths of rank 2": (GRU, X, {"sequence_length": [[1]] * 4}, "sequence_length"),
    "one length": (GRU, X, {"sequence_length": 3}, "sequence_length"),
    "float lengths": (GRU, X, {"sequence_length": [2.9, 0.5, 1.0, 3.0]}, "sequence_length"),
    "rank 1": (GRU, torch.zeros(3), {}, "inputs"),
    "rank 2": (GRU, torch.zeros(6, 3), {}, "inputs"),
    "rank 4": (GRU, torch.zeros(4, 6, 3, 2), {}, "inputs"),
    "integers": (tf1.GRUCell(4), torch.zeros(4, 6, 3, dtype=torch.int64), {}, "inputs"),
    "state of another batch": (GRU, X, {"initial_state": torch.zeros(5, 4)}, "initial_state"),
    "a state of one row": (GRU, X, {"initial_state": torch.zeros(1, 4)}, "initial_state"),
    "a state of another width": (GRU, X, {"initial_state": torch.zeros(4, 7)}, "initial_state"),
    "a float64 state": (GRU, X, {"initial_state": H.double()}, "initial_state"),
    "one tensor for (c, h)": (LSTM, X, {"initial_state": H}, "initial_state"),
    "a plain tuple": (LSTM, X, {"initial_state": (H, H)}, "LSTMStateTuple"),
    "no inputs": (GRU, None, {}, "inputs"),
    "an array": (GRU, X.numpy(), {}, "from_numpy"),
    "no cell": (4, X, {}, "cell"),
    "another width": (GRU, torch.zeros(4, 6, 5), {}, "features"),
    "unequal nests": (GRU, (X, X[:, :5]), {}, "inputs"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_in_words(mistake):
    cell, inputs, options, named = MISTAKES[mistake]
    with pytest.raises((ArgumentError, ArgumentTypeError), match=named):
        tf1.dynamic_rnn(cell, inputs, **options)


def test_lengths_outside_of_the_steps_count_as_tensorflow_counts_them():
    x = torch.randn(4, 6, 3)
    with pytest.warns(UserWarning, match=r"sequence_length\[1\] is 9.*counts as 6"):
        found, _ = tf1.dynamic_rnn(GRU, x, [6, 9, -2, 3])
    torch.testing.assert_close(found, tf1.dynamic_rnn(GRU, x, [6, 6, 0, 3])[0])
    with pytest.raises(ArgumentError, match="sequence_length"):
        tf1.bidirectional_dynamic_rnn(GRU, tf1.GRUCell(2), x, [6, 9, 0, 3])


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        (X, "list"),
        ([], "at least one"),
        ([X[:, 0], X[:3, 0]], r"inputs\[1\]"),
        ([X[:, 0], None], "inputs"),
    ],
)
def test_static_rnn_refuses_what_is_no_list_of_steps(steps, named):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=named):
        tf1.static_rnn(GRU, steps)


def test_cells_refuse_wrong_options():
    for make, named in [
        (lambda: tf1.LSTMCell(4, num_proj=0), "num_proj"),
        (lambda: tf1.LSTMCell(4, cell_clip=-1.0), "cell_clip"),
        (lambda: tf1.LSTMCell(4, num_unit_shards=2), "num_unit_shards"),
        (lambda: tf1.BasicRNNCell(4, activation="tanhh"), "activation"),
        (lambda: tf1.BasicRNNCell(4, activation=3), "activation"),
        (lambda: tf1.BasicRNNCell("4"), "num_units"),
        (lambda: tf1.MultiRNNCell([]), "cells"),
        (lambda: tf1.MultiRNNCell(GRU), "cells"),
        (lambda: tf1.MultiRNNCell([LSTM], state_is_tuple=False), "state_is_tuple"),
        (lambda: tf1.ResidualWrapper(tf1.GRUCell(4)).build(3), "inputs"),
        (lambda: tf1.DropoutWrapper(GRU, seed=3), "seed"),
        (lambda: tf1.BasicLSTMCell(4, name=""), "name"),
    ]:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=named):
            make()


def test_a_name_replaces_the_cells_part_of_its_variables_names():
    cell = tf1.LSTMCell(2, name="encoder", num_proj=1)
    cell.build(1)
    assert list(cell.variables()) == [
        "encoder/kernel",
        "encoder/bias",
        "encoder/projection/kernel",
    ]


def test_directions_are_each_their_own():
    x = torch.randn(2, 5, 3)
    fw, bw = tf1.GRUCell(4), tf1.GRUCell(4)
    (_, backward), (_, state) = tf1.bidirectional_dynamic_rnn(fw, bw, x, [5, 3])
    for row, length in enumerate([5, 3]):
        turned = x[row, :length].flip(0)[None]
        outputs, final = tf1.dynamic_rnn(bw, turned)
        torch.testing.assert_close(backward[row, :length], outputs[0].flip(0))
        torch.testing.assert_close(state[row], final[0])
    for row, step in itertools.product([1], [3, 4]):
        assert not backward[row, step].any()


def test_no_steps_at_all_have_a_gradient():
    x = torch.zeros(3, 0, 3, requires_grad=True)
    state = torch.randn(3, 4, requires_grad=True)
    outputs, final = tf1.dynamic_rnn(GRU, x, initial_state=state)
    assert outputs.shape == (3, 0, 4)
    found = torch.autograd.grad(final.sum() + outputs.sum(), [x, state], materialize_grads=True)
    assert found[0].shape == x.shape
    torch.testing.assert_close(found[1], torch.ones(3, 4))


def test_second_derivatives():
    cell = tf1.LSTMCell(2, use_peepholes=True)
    cell.build(2, dtype=torch.float64)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: tf1.dynamic_rnn(cell, x, [3, 1])[0], x)


def test_a_projection_clip_without_a_projection_has_no_effect():
    cell = tf1.LSTMCell(4, proj_clip=1e-6)
    outputs, _ = tf1.dynamic_rnn(cell, torch.randn(2, 5, 3))
    assert outputs.abs().max() > 1e-3


@each_cell
def test_a_state_dict_makes_the_weights(name):
    cell, other, x = CELLS[name]().eval(), CELLS[name]().eval(), batch()
    wanted, _ = tf1.dynamic_rnn(cell, x, LENGTHS)
    other.load_state_dict(cell.state_dict())
    found, _ = tf1.dynamic_rnn(other, x, LENGTHS)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@each_cell
def test_an_optimizer_made_before_the_first_call_trains_every_weight(name):
    cell, x = CELLS[name](), batch()
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    outputs, _ = tf1.dynamic_rnn(cell, x)
    before = [value.detach().clone() for value in cell.parameters()]
    outputs.square().sum().backward()
    optimizer.step()
    assert before
    assert all(not torch.equal(a, b) for a, b in zip(before, cell.parameters(), strict=True))


@pytest.mark.parametrize(
    "lengths",
    [np.array([1, 2, 3, 4], np.uint64), [1, None, 2, 3], "1234", iter([1, 2, 3, 4]), [1j] * 4],
    ids=["uint64", "None", "text", "iterator", "complex"],
)
def test_odd_lengths_are_taken_or_refused_in_words(lengths):
    if isinstance(lengths, np.ndarray):
        tf1.dynamic_rnn(GRU, X, lengths)
        return
    with pytest.raises((ArgumentError, ArgumentTypeError), match="sequence_length"):
        tf1.dynamic_rnn(GRU, X, lengths)


def test_a_cell_without_weights_yet_refuses_arrays_in_the_same_words():
    for run in (
        lambda: tf1.dynamic_rnn(tf1.GRUCell(4), X.numpy()),
        lambda: tf1.bidirectional_dynamic_rnn(tf1.GRUCell(4), tf1.GRUCell(4), X.numpy()),
    ):
        with pytest.raises(ArgumentTypeError, match="from_numpy"):
            run()


def test_a_zero_state_of_another_dtype_is_refused():
    with pytest.raises(ArgumentError, match="dtype"):
        tf1.dynamic_rnn(tf1.LSTMCell(4), X, dtype=torch.float64)
    with pytest.raises(ArgumentTypeError, match="dtype"):
        GRU.zero_state(2, "float32")


def test_a_cell_of_ones_own_may_have_a_call():
    class Sum(tf1.RNNCell):
        state_size = 3

        def call(self, inputs, state):
            return inputs + state, inputs + state

    x = torch.randn(2, 4, 3)
    outputs, state = tf1.dynamic_rnn(Sum(), x)
    torch.testing.assert_close(outputs, x.cumsum(1))
    torch.testing.assert_close(state, x.sum(1))


def test_a_packed_batch_makes_the_weights_too():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(1, 2)])
    outputs, _ = tf1.dynamic_rnn(tf1.GRUCell(4), packed)
    assert outputs.data.shape == (4, 4)


@pytest.mark.parametrize("run", [tf1.dynamic_rnn, tf1.static_rnn])
def test_the_warning_of_a_length_out_of_range_names_the_callers_line(run):
    x = X if run is tf1.dynamic_rnn else list(X.unbind(1))
    with pytest.warns(UserWarning, match="sequence_length") as caught:
        run(GRU, x, sequence_length=[99, 1, 1, 1])
    assert caught[0].filename == __file__


def test_one_cell_twice_for_two_widths_says_what_to_write():
    one, other = tf1.GRUCell(4), tf1.GRUCell(4)
    for cells in ([one] * 3, [tf1.BasicRNNCell(5), other, other]):
        with pytest.raises(ArgumentError, match=r"one GRUCell object.*GRUCell\(\.\.\.\) for _ in"):
            tf1.dynamic_rnn(tf1.MultiRNNCell(cells), X)
    twice = tf1.GRUCell(3)
    outputs, _ = tf1.dynamic_rnn(tf1.MultiRNNCell([twice, twice]), X)
    assert outputs.shape == (*X.shape[:2], 3)


@pytest.mark.parametrize("lengths", [[99, 1, 1, 1], [1, 1, 1]])
def test_lengths_of_two_directions_are_refused_in_the_functions_own_words(lengths):
    steps = X.transpose(0, 1)
    for run in (
        lambda: tf1.bidirectional_dynamic_rnn(GRU, GRU, steps, lengths, time_major=True),
        lambda: tf1.static_bidirectional_rnn(GRU, GRU, list(steps), sequence_length=lengths),
    ):
        with pytest.raises(ArgumentError, match=r"sequence_length.*time_major"):
            run()
