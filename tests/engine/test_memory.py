"""What the native code is given: tensors that are not what their memory holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import unpad
from unpad.engine import native_engine

pytestmark = pytest.mark.skipif(not native_engine.available(), reason="no native engine")


def negative(*shape: int) -> Tensor:
    """The negative of its memory, which lies row by row as any other tensor's."""
    tensor = torch._neg_view(torch.randn(*shape, dtype=torch.float64))
    assert tensor.is_neg()
    return tensor


class Weighted(unpad.Cell):
    """A cell whose weight and bias are buffers: any tensor."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.input_size = self.state_size = 3
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x, h):
        h = torch.tanh(x + h @ self.weight + self.bias)
        return h, h


@pytest.mark.parametrize("memory", ["fast", "lean"])
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_negated_views_are_read_as_what_they_are(engine: str, memory: str) -> None:
    x, h, pull, last = negative(9, 3), negative(3, 3), negative(9, 3), negative(3, 3)
    weight, bias = negative(3, 3), negative(3)
    found = []
    for plain in (False, True):
        values = [t.resolve_neg() if plain else t for t in (x, h, pull, last, weight, bias)]
        x_, h_ = values[0].detach().requires_grad_(), values[1].detach().requires_grad_()
        layer = unpad.nn.Recurrent(Weighted(*values[4:]), memory=memory)
        with unpad.engine(engine):
            output, final = layer(unpad.Ragged(x_, torch.tensor([0, 4, 4, 9])), h_)
            roots = (output.values, nest_leaf(final))
            grads = torch.autograd.grad(roots, (x_, h_), (values[2], values[3]))
        found.append([*roots, *grads])
    for actual, wanted in zip(*found, strict=True):
        assert torch.equal(actual, wanted)


def nest_leaf(final: object) -> Tensor:
    while not isinstance(final, Tensor):
        (final,) = final
    return final


def test_a_softmax_reads_negated_views_as_what_they_are() -> None:
    head = unpad.nn.HierarchicalSoftmax(4, 7).double()
    hidden, target = negative(5, 4), torch.tensor([0, 6, 3, 3, 1])
    found = []
    for h in (hidden, hidden.resolve_neg()):
        h = h.detach().requires_grad_()
        loss = head(h, target)
        found.append([loss, *torch.autograd.grad(loss, [h, *head.parameters()])])
    for actual, wanted in zip(*found, strict=True):
        assert torch.equal(actual, wanted)


def test_a_stream_of_one_channel_out_of_complex_numbers() -> None:
    signal = torch.randn(7, 1, dtype=torch.complex64).conj().imag
    assert signal.is_neg()
    layer = unpad.nn.LSTM(1, 4)
    offsets = torch.tensor([0, 3, 7])
    output, _ = layer(unpad.Ragged(signal, offsets))
    wanted, _ = nn.LSTM.forward(layer_of_torch(layer), signal[:3].resolve_neg().clone())
    torch.testing.assert_close(output[0], wanted)


def layer_of_torch(layer: nn.Module) -> nn.LSTM:
    twin = nn.LSTM(1, 4)
    twin.load_state_dict(layer.state_dict())
    return twin
