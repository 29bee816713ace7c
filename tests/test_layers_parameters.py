"""The parameters of RNN, GRU and LSTM: torch.nn's names, copies, tricks, derivatives, dropout."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import oracle
import unpad.nn as un
from torch_pairs import KINDS, flat, pair


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


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


def replica(module):
    """What torch.nn.DataParallel makes on each GPU: plain tensors in place of parameters."""
    made = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(made, name, None if parameter is None else parameter * 1)
    for name, child in module._modules.items():
        made._modules[name] = replica(child)
    return made


@pytest.mark.parametrize("make", [un.GRU, un.LSTM, lambda i, h: un.Recurrent(un.GRUCell(i, h))])
def test_a_replica_of_data_parallel_runs_and_gives_gradients_to_the_original(make):
    layer, x = make(3, 4), torch.randn(5, 2, 3)
    output, _ = replica(layer)(x)
    wanted, _ = layer(x)
    assert torch.equal(output, wanted)
    parameters = list(layer.parameters())
    pairs = [torch.autograd.grad(o.square().sum(), parameters) for o in (output, wanted)]
    for a, b in zip(*pairs, strict=True):
        assert torch.equal(a, b)


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


def write_through_data(weight):
    weight.data.mul_(0.5)


def replace_data(weight):
    weight.data = weight.data * 0.5


def write_through_numpy(weight):
    weight.detach().numpy()[:] *= 0.5


def step_of_an_optimizer(weight):
    weight.grad = 0.5 * weight.detach()
    torch.optim.SGD([weight], lr=1.0).step()


@pytest.mark.parametrize(
    "change", [write_through_data, replace_data, write_through_numpy, step_of_an_optimizer]
)
def test_inference_sees_weights_however_they_were_changed(kind, change):
    ours, _, options = kind
    layer, x = ours(3, 33, **options), torch.randn(5, 2, 3)
    for name, weight in list(layer.named_parameters()):
        with torch.no_grad():
            before = layer(x)[0]
            change(weight)
            fresh = ours(3, 33, **options)
            fresh.load_state_dict(layer.state_dict())
            after = layer(x)[0]
            assert not torch.equal(after, before), name
            assert torch.equal(after, fresh(x)[0]), name


def test_two_biases_have_gradients_of_their_own():
    layer = un.RNN(3, 4)
    layer(torch.randn(5, 2, 3))[0].sum().backward()
    wanted = layer.bias_ih_l0.grad.clone()
    layer.bias_hh_l0.grad.zero_()
    assert torch.equal(layer.bias_ih_l0.grad, wanted)


@pytest.mark.parametrize("frozen", ["bias_ih_l0", "bias_hh_l0"])
def test_one_of_two_biases_may_be_frozen(frozen):
    layer, peer = un.RNN(3, 4), nn.RNN(3, 4)
    peer.load_state_dict(layer.state_dict())
    x = torch.randn(5, 2, 3)
    for each in (layer, peer):
        getattr(each, frozen).requires_grad_(False)
        each(x)[0].square().sum().backward()
    for (name, a), b in zip(layer.named_parameters(), peer.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None) == (name == frozen)
        if name != frozen:
            oracle.assert_close(a.grad, b.grad, 1e-5)


def test_a_bias_may_be_a_view_of_every_second_number():
    layer = un.RNN(3, 4)
    spread = torch.randn(8)
    dense = copy.deepcopy(layer)
    layer.bias_hh_l0.data = spread[::2]
    dense.bias_hh_l0.data = spread[::2].clone()
    x = torch.randn(5, 2, 3)
    assert torch.equal(layer(x)[0], dense(x)[0])
