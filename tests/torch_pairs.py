"""Pairs of our layer and torch.nn's with the same weights, for the tests of the layers."""

from __future__ import annotations

import torch
from torch import nn

import oracle
import unpad.nn as un

KINDS = {
    "LSTM": (un.LSTM, nn.LSTM, {}),
    "LSTM with projection": (un.LSTM, nn.LSTM, {"proj_size": 2}),
    "GRU": (un.GRU, nn.GRU, {}),
    "RNN": (un.RNN, nn.RNN, {}),
    "RNN with relu": (un.RNN, nn.RNN, {"nonlinearity": "relu"}),
}


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
