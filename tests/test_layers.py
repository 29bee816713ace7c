"""RNN, GRU and LSTM against torch.nn's: numbers, gradients, names, forms of input, misuse."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import oracle
import unpad.nn as un
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged

KINDS = {
    "LSTM": (un.LSTM, nn.LSTM, {}),
    "LSTM with projection": (un.LSTM, nn.LSTM, {"proj_size": 2}),
    "GRU": (un.GRU, nn.GRU, {}),
    "RNN": (un.RNN, nn.RNN, {}),
    "RNN with relu": (un.RNN, nn.RNN, {"nonlinearity": "relu"}),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def pair(kind, *sizes, **options):
    """Our layer and torch's in float64 with the same weights."""
    ours, theirs, more = kind
    layer = ours(*sizes, **more, **options).double()
    peer = theirs(*sizes, **more, **options).double()
    layer.load_state_dict(peer.state_dict())
    return layer, peer


def start(layer, batch):
    """Random initial states for a layer, in torch's form."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    h = torch.randn(rows, batch, layer.proj_size or layer.hidden_size, dtype=torch.float64)
    if layer.mode != "LSTM":
        return h.requires_grad_()
    c = torch.randn(rows, batch, layer.hidden_size, dtype=torch.float64)
    return h.requires_grad_(), c.requires_grad_()


def flat(nest):
    return list(nest) if isinstance(nest, tuple) else [nest]


def differentiate(outputs, inputs, seed=0):
    loss = oracle.random_loss(outputs, seed)
    return torch.autograd.grad(loss, inputs)


# torch.nn's numbers ----------------------------------------------------------------------------


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


# Parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_parameters_are_named_shaped_ordered_and_started_as_torchs(kind, bidirectional, bias):
    ours, theirs, options = kind
    built = []
    for make in (ours, theirs):
        torch.manual_seed(7)
        built.append(make(3, 4, 2, bidirectional=bidirectional, bias=bias, **options))
    layer, peer = built
    for (name, a), (wanted, b) in zip(
        layer.named_parameters(), peer.named_parameters(), strict=True
    ):
        assert name == wanted
        assert torch.equal(a, b), name
    assert list(layer.state_dict()) == list(peer.state_dict())
    assert [[p.shape for p in row] for row in layer.all_weights] == [
        [p.shape for p in row] for row in peer.all_weights
    ]
    peer.load_state_dict(
        ours(3, 4, 2, bidirectional=bidirectional, bias=bias, **options).state_dict()
    )
    for name in ("mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first",
                 "dropout", "bidirectional", "proj_size"):  # fmt: skip
        assert getattr(layer, name) == getattr(peer, name)
    assert repr(layer) == repr(peer)
    layer.flatten_parameters()


def test_positional_arguments_are_torchs():
    assert un.RNN(3, 4, 2, "relu", False, True, 0.5, True).nonlinearity == "relu"
    assert un.GRU(3, 4, 2, False, True, 0.5, True).bidirectional
    assert un.LSTM(3, 4, 2, False, True, 0.5, True, 2).proj_size == 2


def test_copies_of_a_layer_are_layers_of_their_own(kind):
    layer, _ = pair(kind, 3, 4, num_layers=2, bidirectional=True)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    wanted = layer(x)[0]
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    copies = {
        "deepcopy": copy.deepcopy(layer),
        "pickle": pickle.loads(pickle.dumps(layer)),
        "torch.save": torch.load(file, weights_only=False),
    }
    for name, copied in copies.items():
        oracle.assert_close(copied(x)[0], wanted, 1e-12, name)
        with torch.no_grad():
            copied.weight_hh_l1.zero_()
        assert not torch.equal(copied(x)[0], wanted), name
        assert len(copied.state_dict()) == len(layer.state_dict()), name
    oracle.assert_close(layer(x)[0], wanted, 1e-12)


def test_weights_may_be_swapped_loaded_and_cast(kind):
    layer, peer = pair(kind, 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    layer(x)
    layer.weight_hh_l0 = nn.Parameter(torch.randn_like(layer.weight_hh_l0))
    peer.load_state_dict(layer.state_dict())
    oracle.assert_close(layer(x)[0], peer(x)[0], 1e-10)
    other, _ = pair(kind, 3, 4)
    layer.load_state_dict(other.state_dict(), assign=True)
    oracle.assert_close(layer(x)[0], other(x)[0], 1e-12)
    assert layer.float()(x.float())[0].dtype == torch.float32
    named = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
    assert not torch.func.functional_call(layer, named, (x.float(),))[0].any()


def test_frozen_weights_get_no_gradient_and_the_input_does(kind):
    layer, peer = pair(kind, 3, 4, num_layers=2)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    gradients = []
    for module in (layer, peer):
        module.requires_grad_(False)
        module.weight_hh_l1.requires_grad_(True)
        loss = oracle.random_loss([module(x)[0]], 0)
        gradients.append(torch.autograd.grad(loss, [x, module.weight_hh_l1]))
        assert module.weight_ih_l0.grad is None
    for a, b in zip(*gradients, strict=True):
        oracle.assert_close(a, b, 1e-10)


def test_backward_twice_and_two_forwards_before_one_backward(kind):
    layer, peer = pair(kind, 3, 4)
    x, y = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    found = []
    for module in (layer, peer):
        loss = oracle.random_loss([module(x)[0], module(y)[0]], 0)
        loss.backward(retain_graph=True)
        loss.backward()
        found.append([p.grad for p in module.parameters()])
    for a, b in zip(*found, strict=True):
        oracle.assert_close(a, b, 1e-10)


def test_second_derivatives_train_a_gradient_penalty(kind):
    layer, _ = pair(kind, 2, 3)
    rows = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 1)]

    def run(*rows):
        outputs, final = layer(list(rows))
        return (*outputs, *flat(final))

    assert torch.autograd.gradgradcheck(run, rows)
    gradients = torch.autograd.grad(sum(o.sum() for o in run(*rows)), rows, create_graph=True)
    sum((g.norm() - 1) ** 2 for g in gradients).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    assert layer.weight_hh_l0.grad.any()


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated.*:FutureWarning")
@pytest.mark.parametrize(
    "trick",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
    ],
)
def test_weight_tricks_work_on_a_layers_weights(trick):
    layer = trick(un.LSTM(3, 4), "weight_hh_l0")
    x = torch.randn(5, 2, 3)
    before = [p.detach().clone() for p in layer.parameters()]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = layer(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for old, new in zip(before, layer.parameters(), strict=True):
        assert not torch.equal(old, new)
    layer.eval()
    plain = nn.LSTM(3, 4)
    with torch.no_grad():
        output, _ = layer(x)
        for name, parameter in plain.named_parameters():
            parameter.copy_(getattr(layer, name))
        oracle.assert_close(output, plain(x)[0], 1e-5)


def test_a_parametrized_layer_may_be_copied_after_a_call():
    layer = nn.utils.parametrizations.weight_norm(un.GRU(3, 4), "weight_hh_l0")
    x = torch.randn(5, 2, 3)
    wanted, _ = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x)[0], wanted)


def test_forget_bias_and_init_reach_every_layer_and_direction():
    layer = un.LSTM(3, 4, 2, bidirectional=True, forget_bias=1.0, init="orthogonal")
    for weight_ih, weight_hh, bias_ih, bias_hh in layer.all_weights:
        assert torch.equal((bias_ih + bias_hh)[4:8], torch.ones(4))
        assert not bias_ih[:4].any()
        for gate in weight_hh.detach().split(4):
            oracle.assert_close(gate @ gate.T, torch.eye(4), 1e-5)
        assert weight_ih.any()


# Dropout ---------------------------------------------------------------------------------------


def test_dropout_acts_between_layers_in_training_alone():
    layer = un.GRU(3, 64, 2, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    torch.manual_seed(1)
    first = layer(x)[0]
    torch.manual_seed(1)
    assert torch.equal(layer(x)[0], first)
    layer.eval()
    plain = nn.GRU(3, 64, 2, batch_first=True)
    plain.load_state_dict(layer.state_dict())
    oracle.assert_close(layer(x)[0], plain(x)[0], 1e-5)


def test_dropout_of_1_leaves_the_second_layer_without_input():
    layer = un.RNN(3, 4, 2, dropout=1.0)
    output, _ = layer(torch.randn(5, 2, 3))
    oracle.assert_close(output, layer(torch.randn(5, 2, 3))[0], 1e-6)


def test_dropout_with_one_layer_warns_as_torch_does():
    with pytest.warns(UserWarning, match=r"dropout=0.5 does nothing with num_layers=1") as caught:
        un.LSTM(3, 4, dropout=0.5)
    assert caught[0].filename == __file__


# Errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        ([1, -1], ValueError),
        ([1, 6], ValueError),
        ([1.0, 2.0], TypeError),
        ([True, False], TypeError),
        ([1, 2, 3], ValueError),
        ([[1], [2]], ValueError),
        (torch.tensor(2), ValueError),
        (torch.ones(2, 5, dtype=torch.bool), (TypeError, ValueError)),
        ("12", TypeError),
    ],
)
def test_bad_lengths_are_refused_before_any_work(kind, lengths, error):
    ours, _, options = kind
    layer = ours(3, 4, batch_first=True, **options)
    with pytest.raises(error, match="argument `lengths`") as caught:
        layer(torch.randn(2, 5, 3), lengths=lengths)
    assert isinstance(caught.value, (ArgumentError, ArgumentTypeError))


def test_lengths_are_refused_where_the_input_knows_its_own():
    layer = un.GRU(3, 4)
    rows = [torch.randn(2, 3)]
    for x in (rows, Ragged.from_list(rows), pack_sequence(rows), torch.randn(2, 3)):
        with pytest.raises(ArgumentError, match="lengths"):
            layer(x, lengths=[2])


def test_bad_input_is_refused_by_name():
    layer = un.LSTM(3, 4, batch_first=True)
    refused = [
        (ArgumentError, "tokens of 5 features.*tokens of 3 features", torch.randn(2, 5, 5)),
        (ArgumentError, r"shape \[2, 3, 4, 3\]", torch.randn(2, 3, 4, 3)),
        (ArgumentError, r"shape \[3\]", torch.randn(3)),
        (ArgumentError, "float64.*float32", torch.randn(2, 5, 3).double()),
        (ArgumentError, "int64", torch.ones(2, 5, 3, dtype=torch.int64)),
        (ArgumentTypeError, "ndarray", np.zeros((2, 5, 3))),
        (ArgumentTypeError, "NoneType", None),
        (ArgumentError, "meta", torch.empty(2, 5, 3, device="meta")),
    ]
    for error, message, x in refused:
        with pytest.raises(error, match=message):
            layer(x)


def test_a_kept_state_that_no_longer_fits_is_refused_with_the_remedy():
    layer = un.LSTM(3, 4, 2, batch_first=True)
    _, (h, c) = layer(torch.randn(4, 5, 3))
    with pytest.raises(ArgumentError, match=r"hx\[0\].*\[2, 4, 4\].*\[2, 3, 4\].*hx\[:, :n\]"):
        layer(torch.randn(3, 5, 3), (h, c))
    layer(torch.randn(3, 5, 3), (h[:, :3], c[:, :3]))
    with pytest.raises(ArgumentError, match=r"hx\[1\]"):
        layer(torch.randn(4, 5, 3), (h, c[:1]))
    with pytest.raises(ArgumentTypeError, match="pair"):
        layer(torch.randn(4, 5, 3), h)
    with pytest.raises(ArgumentError, match="float64"):
        layer(torch.randn(4, 5, 3), (h.double(), c))
    with pytest.raises(ArgumentTypeError, match="hx"):
        un.GRU(3, 4)(torch.randn(5, 4, 3), (h, c))
    with pytest.raises(ArgumentError, match=r"\[2, 4\]: layers \* directions, features"):
        layer(torch.randn(5, 3), (h, c))


def test_bad_arguments_are_refused_by_name():
    refused = [
        (ValueError, "input_size", lambda: un.LSTM(0, 4)),
        (TypeError, "hidden_size", lambda: un.LSTM(3, 4.0)),
        (ValueError, "num_layers", lambda: un.GRU(3, 4, 0)),
        (TypeError, "bias", lambda: un.GRU(3, 4, 1, 0.5)),
        (TypeError, "batch_first", lambda: un.GRU(3, 4, batch_first=1)),
        (ValueError, "dropout", lambda: un.GRU(3, 4, 2, dropout=1.5)),
        (ValueError, "proj_size", lambda: un.LSTM(3, 4, proj_size=4)),
        (ValueError, "proj_size", lambda: un.LSTM(3, 4, proj_size=-1)),
        (ValueError, "nonlinearity", lambda: un.RNN(3, 4, nonlinearity="gelu")),
        (ValueError, "init", lambda: un.RNN(3, 4, init="zeros")),
        (ValueError, "forget_bias", lambda: un.LSTM(3, 4, bias=False, forget_bias=1.0)),
    ]
    for error, message, build in refused:
        with pytest.raises(error, match=f"argument `{message}`"):
            build()


def test_no_call_leaves_a_warning_behind(kind):
    layer, _ = pair(kind, 3, 4, num_layers=2, dropout=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs, _ = layer([torch.randn(2, 3, dtype=torch.float64)])
        outputs[0][-1].sum().backward()


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
