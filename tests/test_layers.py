"""RNN, GRU and LSTM against torch.nn's: numbers, gradients, every form of input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import oracle
import unpad.nn as un
from torch_pairs import KINDS, differentiate, flat, pair, start
from unpad.ragged import Ragged


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_padded_input_gives_torchs_numbers_and_gradients(kind, num_layers, bidirectional):
    layer, peer = pair(
        kind, 3, 4, num_layers=num_layers, bidirectional=bidirectional, batch_first=True
    )
    x = torch.randn(5, 6, 3, dtype=torch.float64, requires_grad=True)
    hx = start(layer, 5)
    found = []
    for module in (layer, peer):
        output, final = module(x, hx)
        results = [output, *flat(final)]
        found.append(results + list(differentiate(results, [x, *flat(hx), *module.parameters()])))
    for a, b in zip(*found, strict=True):
        oracle.assert_close(a, b, 1e-10)


@pytest.mark.parametrize("options", [{"bias": False}, {"batch_first": True}, {"num_layers": 2}])
def test_packed_input_gives_torchs_numbers_gradients_and_order(kind, options):
    layer, peer = pair(kind, 3, 4, bidirectional=True, **options)
    rows = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 5, 1, 4)]
    hx = start(layer, 4)
    found = []
    for module in (layer, peer):
        packed = pack_sequence(rows, enforce_sorted=False)
        output, final = module(packed, hx)
        assert torch.equal(output.batch_sizes, packed.batch_sizes)
        assert torch.equal(output.sorted_indices, packed.sorted_indices)
        assert torch.equal(output.unsorted_indices, packed.unsorted_indices)
        results = [output.data, *flat(final)]
        found.append(
            results + list(differentiate(results, [*rows, *flat(hx), *module.parameters()]))
        )
    for a, b in zip(*found, strict=True):
        oracle.assert_close(a, b, 1e-10)


def test_packed_input_that_was_sorted_stays_as_it_is(kind):
    layer, peer = pair(kind, 3, 4)
    packed = pack_padded_sequence(torch.randn(5, 2, 3, dtype=torch.float64), [5, 2])
    output, _ = layer(packed)
    assert output.sorted_indices is None
    oracle.assert_close(output.data, peer(packed)[0].data, 1e-10)


def test_float32_is_within_1e_5_of_torch(kind):
    ours, theirs, options = kind
    layer, peer = ours(7, 16, 2, **options), theirs(7, 16, 2, **options).double()
    peer.load_state_dict(layer.state_dict())
    x = torch.randn(20, 8, 7)
    output, final = layer(x)
    wanted, wanted_final = peer(x.double())
    for a, b in zip([output, *flat(final)], [wanted, *flat(wanted_final)], strict=True):
        assert a.dtype == torch.float32
        oracle.assert_close(a, b, 1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_one_sequence_without_a_batch_axis_works_as_in_torch(kind, batch_first):
    layer, peer = pair(kind, 3, 4, num_layers=2, batch_first=batch_first)
    x = torch.randn(6, 3, dtype=torch.float64)
    hx = [leaf[:, 0] for leaf in flat(start(layer, 1))]
    hx = tuple(hx) if len(hx) == 2 else hx[0]
    for arguments in ((x,), (x, hx)):
        output, final = layer(*arguments)
        wanted, wanted_final = peer(*arguments)
        for a, b in zip([output, *flat(final)], [wanted, *flat(wanted_final)], strict=True):
            oracle.assert_close(a, b, 1e-10)


@pytest.mark.parametrize("batch_first", [False, True])
def test_equal_lengths_and_no_lengths_are_the_same(kind, batch_first):
    layer, _ = pair(kind, 3, 4, bidirectional=True, batch_first=batch_first)
    x = torch.randn(5, 5, 3, dtype=torch.float64)
    output, final = layer(x)
    given, given_final = layer(x, lengths=[5] * 5)
    for a, b in zip([output, *flat(final)], [given, *flat(given_final)], strict=True):
        assert torch.equal(a, b)


# Sequences of unequal length -------------------------------------------------------------------


@given(
    lengths=oracle.lengths(max_batch=4, max_length=5),
    bidirectional=st.booleans(),
    num_layers=st.integers(1, 2),
    name=st.sampled_from(sorted(KINDS)),
)
def test_each_row_is_what_torch_gives_for_that_row_alone(lengths, bidirectional, num_layers, name):
    layer, peer = pair(KINDS[name], 3, 4, num_layers=num_layers, bidirectional=bidirectional)
    rows = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in lengths]
    hx = start(layer, len(lengths))
    outputs, final = layer(rows, hx)
    assert isinstance(outputs, list)
    assert [len(output) for output in outputs] == lengths
    alone = [[], [], []]
    for place, row in enumerate(rows):
        state = tuple(leaf[:, place].contiguous() for leaf in flat(hx))
        output, last = row.new_zeros(0, outputs[place].shape[1]), state
        if len(row):
            output, last = peer(row, state if len(state) == 2 else state[0])
        alone[0].append(output)
        for found, leaf in zip(alone[1:], flat(last), strict=False):
            found.append(leaf)
    wanted = alone[0] + [torch.stack(leaves, 1) for leaves in alone[1:] if leaves]
    results = [*outputs, *flat(final)] if lengths else []
    for a, b in zip(results, wanted, strict=True):
        oracle.assert_close(a, b, 1e-10)
    if sum(lengths):
        found = [
            torch.autograd.grad(
                oracle.random_loss(leaves, 0),
                [*rows, *flat(hx), *module.parameters()],
                allow_unused=True,
                materialize_grads=True,
            )
            for leaves, module in ((results, layer), (wanted, peer))
        ]
        for a, b in zip(*found, strict=True):
            oracle.assert_close(a, b, 1e-10)


@pytest.mark.parametrize("batch_first", [False, True])
def test_pads_of_nan_change_nothing_and_outputs_past_the_end_are_zero(kind, batch_first):
    layer, _ = pair(kind, 3, 4, num_layers=2, bidirectional=True, batch_first=batch_first)
    lengths = [2, 0, 5, 1]
    rows = [torch.randn(n, 3, dtype=torch.float64) for n in lengths]
    found = []
    for pad in (0.0, float("nan")):
        layer.zero_grad()
        ragged = Ragged.from_list(rows)
        x = ragged.to_padded(total_length=7, value=pad, batch_first=batch_first).requires_grad_()
        output, final = layer(x, lengths=lengths)
        assert output.shape[:2] == x.shape[:2]
        for place, length in enumerate(lengths):
            row = output[place] if batch_first else output[:, place]
            assert not row[length:].any()
        oracle.random_loss([output, *flat(final)], 0).backward()
        assert x.grad.isfinite().all()
        found.append([output, *flat(final), x.grad, *[p.grad for p in layer.parameters()]])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
def test_every_form_of_input_gives_back_its_own_form_and_the_same_numbers(kind):
    layer, _ = pair(kind, 3, 4, bidirectional=True, batch_first=True)
    rows = [torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 1)]
    ragged = Ragged.from_list(rows)
    wanted, wanted_final = layer(ragged)
    assert isinstance(wanted, Ragged)
    assert torch.equal(wanted.offsets, ragged.offsets)
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    forms = {
        "list": (rows, torch.cat),
        "tuple": (tuple(rows), torch.cat),
        "packed": (
            pack_sequence(rows, enforce_sorted=False),
            lambda out: Ragged.from_packed(out).values,
        ),
        "jagged": (jagged, lambda out: out.values()),
        "strided": (
            torch.nested.nested_tensor(rows, layout=torch.strided),
            lambda out: torch.cat(out.unbind()),
        ),
    }
    for name, (sequences, values) in forms.items():
        output, final = layer(sequences)
        assert type(output) is (list if name == "tuple" else type(sequences)), name
        assert torch.equal(values(output), wanted.values), name
        for a, b in zip(flat(final), flat(wanted_final), strict=True):
            assert torch.equal(a, b), name
    padded, lengths = ragged.to_padded(), ragged.lengths
    for given_lengths in (
        lengths,
        lengths.tolist(),
        tuple(lengths.tolist()),
        lengths.numpy(),
        lengths.int(),
        np.array([2, 5, 1], dtype=np.int32),
    ):
        output, _ = layer(padded, lengths=given_lengths)
        assert torch.equal(Ragged.from_padded(output, lengths).values, wanted.values)


def test_a_jagged_output_may_be_combined_with_its_input():
    layer = un.GRU(3, 3)
    jagged = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    output, _ = layer(jagged)
    total = jagged + output
    assert torch.equal(total.values(), jagged.values() + output.values())
    total.values().sum().backward()
    assert layer.weight_ih_l0.grad.any()


def test_rows_shuffled_give_results_shuffled(kind):
    layer, _ = pair(kind, 3, 4, num_layers=2, bidirectional=True)
    rows = [torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 1, 4, 0)]
    order = [3, 0, 4, 1, 2]
    outputs, final = layer(rows)
    shuffled, shuffled_final = layer([rows[place] for place in order])
    for place, row in zip(order, shuffled, strict=True):
        oracle.assert_close(row, outputs[place], 1e-12)
    for a, b in zip(flat(final), flat(shuffled_final), strict=True):
        oracle.assert_close(b, a[:, order], 1e-12)


def test_a_rows_state_depends_on_that_row_alone(kind):
    layer, _ = pair(kind, 3, 4, bidirectional=True)
    rows = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 5, 1)]
    _, final = layer(rows)
    for place in range(3):
        gradients = torch.autograd.grad(
            flat(final)[0][:, place].sum(), rows, retain_graph=True, allow_unused=True
        )
        for other, gradient in enumerate(gradients):
            assert (gradient is not None and bool(gradient.any())) == (other == place)


def test_length_0_gives_the_initial_state_and_no_clamped_step(kind):
    layer, _ = pair(kind, 3, 4, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(4, 3, 3, dtype=torch.float64)
    hx = start(layer, 4)
    _, final = layer(x, hx, lengths=[0, 3, 0, 2])
    _, clamped = layer(x, hx, lengths=[1, 3, 1, 2])
    weights = [torch.randn_like(leaf) for leaf in flat(final)]
    for a, b, other in zip(flat(final), flat(hx), flat(clamped), strict=True):
        assert torch.equal(a[:, [0, 2]], b[:, [0, 2]])
        assert not torch.equal(a[:, 0], other[:, 0])
    loss = sum((leaf * weight).sum() for leaf, weight in zip(flat(final), weights, strict=True))
    for gradient, weight in zip(torch.autograd.grad(loss, flat(hx)), weights, strict=True):
        assert torch.equal(gradient[:, [0, 2]], weight[:, [0, 2]])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize(
    "empty",
    [
        lambda: (torch.zeros(2, 0, 3), None),
        lambda: (torch.zeros(2, 4, 3), [0, 0]),
        lambda: (torch.zeros(0, 4, 3), None),
        lambda: (torch.zeros(0, 4, 3), []),
        lambda: ([], None),
        lambda: ([torch.zeros(0, 3), torch.zeros(0, 3)], None),
    ],
)
def test_nothing_in_gives_nothing_out_and_training_goes_on(kind, empty, num_layers, bidirectional):
    ours, _, options = kind
    layer = ours(
        3, 4, num_layers=num_layers, bidirectional=bidirectional, batch_first=True, **options
    )
    optimizer = torch.optim.Adam(layer.parameters())
    x, lengths = empty()
    output, final = layer(x, lengths=lengths)
    if isinstance(x, torch.Tensor):
        width = (layer.proj_size or 4) * (2 if bidirectional else 1)
        assert output.shape == (*x.shape[:2], width)
        assert not output.any()
        (output.sum() + flat(final)[0].sum()).backward()
        optimizer.step()
    assert flat(final)[0].shape[1] == len(x)
    assert all(parameter.isfinite().all() for parameter in layer.parameters())


def test_backward_reads_from_the_true_end_even_beside_a_longer_row():
    layer = un.RNN(1, 1, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(layer, f"{name}_l0_reverse").copy_(getattr(layer, f"{name}_l0"))
    x = torch.tensor([[2.0, 4, 2, 9, 9], [1, 2, 3, 4, 5]], dtype=torch.float64).unsqueeze(2)
    output, h_n = layer(x, lengths=[3, 5])
    oracle.assert_close(output[0, :3, 0], output[0, :3, 1].flip(0), 1e-12)
    oracle.assert_close(h_n[0, 0], h_n[1, 0], 1e-12)


def test_torchs_padded_output_equals_ours(kind):
    layer, peer = pair(kind, 3, 4, batch_first=True)
    x, lengths = torch.randn(3, 6, 3, dtype=torch.float64), [2, 6, 4]
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    wanted, _ = pad_packed_sequence(peer(packed)[0], batch_first=True)
    oracle.assert_close(layer(x, lengths=lengths)[0], wanted, 1e-10)


def test_autocast_runs_with_a_float32_state_and_input(kind):
    ours, _, options = kind
    layer = ours(3, 4, **options)
    x, h = torch.randn(5, 2, 3), torch.zeros(1, 2, layer.proj_size or 4)
    hx = (h, torch.zeros(1, 2, 4)) if layer.mode == "LSTM" else h
    wanted, _ = layer(x, hx)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x, hx)
    oracle.assert_close(output, wanted, 0.03)


def test_another_default_device_changes_nothing(kind):
    layer, _ = pair(kind, 3, 4, bidirectional=True)
    ragged = Ragged.from_list([torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 1)])
    wanted, _ = layer(ragged)
    with torch.device("meta"):
        output, _ = layer(ragged)
    assert torch.equal(output.values, wanted.values)


def test_per_sample_gradients_by_vmap_are_those_of_a_loop(kind):
    layer, _ = pair(kind, 3, 4, batch_first=True)
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    named = dict(layer.named_parameters())

    def loss(named, x):
        output, _ = torch.func.functional_call(layer, named, (x,))
        return output.square().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(named, x)
    for sample in range(4):
        alone = torch.autograd.grad(loss(named, x[sample]), list(named.values()))
        for name, gradient in zip(named, alone, strict=True):
            oracle.assert_close(together[name][sample], gradient, 1e-10, name)
    layer(x)  # the weights of the transform must not stay behind


# Dynamo itself looks at .grad of what goes from one graph to the next.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", ["LSTM", "Recurrent"])
def test_compiled_around_it_a_layer_is_one_break(kind: str) -> None:
    """Nothing of the layer's own is followed: a graph before it, a graph after it."""
    from torch._dynamo.testing import CompileCounter

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = torch.nn.Linear(3, 3), torch.nn.Linear(4, 2)
            cell = un.LSTMCell(3, 4)
            self.layer = un.LSTM(3, 4) if kind == "LSTM" else un.Recurrent(cell)

        def forward(self, x, lengths):
            return self.after(self.layer(self.before(x), lengths=lengths)[0])

    model, counter = Model(), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for lengths in ([5, 3], [2, 4], [1, 5]):
        x, steps = torch.randn((5, 2, 3) if kind == "LSTM" else (2, 5, 3)), torch.tensor(lengths)
        found, wanted = compiled(x, steps), model(x, steps)
        torch.testing.assert_close(found, wanted)
        pulled = [torch.autograd.grad(y.sum(), [*model.parameters()]) for y in (found, wanted)]
        torch.testing.assert_close(*pulled)
    assert counter.frame_count == 2
