"""`unpad.tf1.keras` on random masks with holes, against Keras's equations step by step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unpad
from engine.every_cell import TIERS
from tf1 import keras_loop
from unpad.tf1 import keras

ENGINES = ["torch", *(["native"] if TIERS else [])]
WIDTH = 3


def stack():
    return keras.StackedRNNCells([keras.LSTMCell(5, input_size=WIDTH), keras.GRUCell(4)])


KINDS = {
    "simple_rnn": lambda: keras.SimpleRNNCell(4, input_size=WIDTH),
    "lstm": lambda: keras.LSTMCell(4, input_size=WIDTH),
    "gru_after": lambda: keras.GRUCell(4, input_size=WIDTH),
    "gru_before": lambda: keras.GRUCell(4, reset_after=False, input_size=WIDTH),
    "peephole_lstm": lambda: keras.PeepholeLSTMCell(4, input_size=WIDTH),
    "layer_norm_lstm": lambda: keras.LayerNormLSTMCell(4, input_size=WIDTH),
    "layer_norm_simple_rnn": lambda: keras.LayerNormSimpleRNNCell(4, input_size=WIDTH),
    "stacked": stack,
}


def cell_of(kind):
    cell = KINDS[kind]().double()
    with torch.no_grad():
        for parameter in cell.parameters():  # also those that start at 0 or 1
            parameter.add_(0.5 * torch.randn_like(parameter))
    return cell


def step_of(kind):
    return getattr(keras_loop, {"peephole_lstm": "lstm"}.get(kind, kind))


def weights_of(module):
    return dict(module.named_parameters())


@st.composite
def masks(draw):
    batch, steps = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    flags = st.lists(st.booleans(), min_size=steps, max_size=steps)
    rows = draw(st.lists(flags, min_size=batch, max_size=batch))
    return torch.tensor(rows, dtype=torch.bool).reshape(batch, steps)


def leaves_for(cell, mask):
    """Random inputs, their masked steps NaN, and random states."""
    x = torch.randn(*mask.shape, WIDTH, dtype=torch.float64)
    x[~mask] = torch.nan
    sizes = torch.utils._pytree.tree_leaves(cell.state_size)
    states = [torch.randn(len(mask), size, dtype=torch.float64) for size in sizes]
    return x.requires_grad_(), [state.requires_grad_() for state in states]


def gradients(results, leaves, seed):
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64)
    for result in results:
        weights = torch.randn(result.shape, generator=generator, dtype=torch.float64)
        loss = loss + (result * weights).sum()
    if not loss.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def assert_same(found, wanted, leaves):
    """Results, and the gradients of one random loss, agree to the last digits of float64."""
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for ours, theirs in zip(gradients(found, leaves, 1), gradients(wanted, leaves, 1), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_layer_is_keras_step_by_step(kind, engine, seed):
    cell = cell_of(kind)

    @settings(max_examples=20)
    @given(masks(), st.tuples(*[st.booleans()] * 4))
    def check(mask, options):
        torch.manual_seed(seed)
        return_sequences, go_backwards, zero_output, time_major = options
        layer = keras.RNN(
            cell,
            return_sequences,
            return_state=True,
            go_backwards=go_backwards,
            time_major=time_major,
            zero_output_for_mask=zero_output,
        )
        x, states = leaves_for(cell, mask)
        turn = (lambda t: t.transpose(0, 1)) if time_major else (lambda t: t)
        with unpad.engine(engine):
            output, *final = layer(turn(x), states, mask=turn(mask))
        found = [turn(output) if return_sequences else output]
        found += torch.utils._pytree.tree_leaves(final)
        parameters = weights_of(cell)
        sequences, last, finals = keras_loop.layer(
            step_of(kind),
            parameters,
            x,
            mask,
            states,
            go_backwards=go_backwards,
            zero_output=zero_output,
            units=4,
        )
        wanted = [sequences if return_sequences else last, *finals]
        assert_same(found, wanted, [x, *states, *parameters.values()])

    check()


MERGED = {
    "concat": lambda f, b: [torch.cat([f, b], -1)],
    "sum": lambda f, b: [f + b],
    "ave": lambda f, b: [0.5 * f + 0.5 * b],
    "mul": lambda f, b: [f * b],
    None: lambda f, b: [f, b],
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("merge_mode", MERGED)
@pytest.mark.parametrize("turned", [False, True])
def test_both_directions_are_keras_step_by_step(merge_mode, turned, engine, seed):
    cells = cell_of("lstm"), cell_of("gru_before")

    @settings(max_examples=10)
    @given(masks().filter(len), st.booleans())
    def check(mask, return_sequences):
        torch.manual_seed(seed)
        one, other = (
            keras.RNN(cell, return_sequences, return_state=True, go_backwards=backwards)
            for cell, backwards in zip(cells, (turned, not turned), strict=True)
        )
        layer = keras.Bidirectional(one, merge_mode, backward_layer=other)
        x, first = leaves_for(cells[0], mask)
        second = leaves_for(cells[1], mask)[1]
        with unpad.engine(engine):
            found = layer(x, [first, second], mask=mask)
        found = torch.utils._pytree.tree_leaves(found)
        wanted, finals = [], []
        for kind, part, cell, states, backwards in (
            ("lstm", one, cells[0], first, turned),
            ("gru_before", other, cells[1], second, not turned),
        ):
            assert part.go_backwards == backwards
            sequences, last, final = keras_loop.layer(
                step_of(kind),
                weights_of(cell),
                x,
                mask,
                states,
                go_backwards=backwards,
                zero_output=return_sequences,
                units=4,
            )
            wanted.append(sequences if return_sequences else last)
            finals += final
        if return_sequences:
            wanted[1] = wanted[1].flip(1)
        wanted = MERGED[merge_mode](*wanted)
        parameters = [p for cell in cells for p in cell.parameters()]
        assert_same(found, [*wanted, *finals], [x, *first, *second, *parameters])

    check()


@pytest.mark.skipif(not TIERS, reason="torch's products may differ in the last bit")
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_equals_the_row_in_a_crowd_bit_for_bit(kind):
    cell = KINDS[kind]()
    layer = keras.RNN(cell, return_sequences=True, return_state=True)
    x, mask = torch.randn(9, 12, WIDTH), torch.rand(9, 12) < 0.6
    together = torch.utils._pytree.tree_leaves(layer(x, mask=mask))
    for row in range(9):
        alone = layer(x[row : row + 1], mask=mask[row : row + 1])
        for one, all_rows in zip(torch.utils._pytree.tree_leaves(alone), together, strict=True):
            assert torch.equal(one[0], all_rows[row])


@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_a_ragged_batch_is_the_batch_of_its_unmasked_steps(go_backwards, return_sequences):
    layer = keras.LSTM(
        4, return_sequences=return_sequences, return_state=True, go_backwards=go_backwards
    )
    x, mask = torch.randn(5, 8, WIDTH), torch.rand(5, 8) < 0.5
    mask[2] = False
    ragged = unpad.Ragged.from_mask(x, mask)
    output, *states = layer(ragged)
    padded, *wanted = layer(x, mask=mask)
    assert all(map(torch.equal, states, wanted))
    if return_sequences:
        kept = mask.flip(1) if go_backwards else mask
        padded, output = padded[kept], output.values
    assert torch.equal(output, padded)


def test_lists_packed_and_nested_batches_come_back_in_their_form():
    layer = keras.GRU(4, return_sequences=True)
    rows = [torch.randn(n, WIDTH) for n in (3, 1, 5)]
    wanted = layer(unpad.Ragged.from_list(rows)).to_list()
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    found = layer(packed)
    assert isinstance(found, torch.nn.utils.rnn.PackedSequence)
    assert all(map(torch.equal, torch.nn.utils.rnn.unpack_sequence(found), wanted))
    assert all(map(torch.equal, layer(nested).unbind(), wanted))
    assert all(map(torch.equal, layer(rows), wanted))


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int32, torch.float32])
def test_a_mask_of_zeros_and_ones_is_a_mask(mask_dtype):
    layer = keras.GRU(4, return_sequences=True)
    x, mask = torch.randn(3, 6, WIDTH), torch.rand(3, 6) < 0.5
    wanted = layer(x, mask=mask)
    assert torch.equal(layer(x, mask=mask.to(mask_dtype)), wanted)
    assert torch.equal(layer(x, mask=mask.numpy()), wanted)
    assert torch.equal(layer(x, mask=mask.tolist()), wanted)
