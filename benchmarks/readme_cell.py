"""The README's cell, which stands for one that somebody writes, and its loop improved by hand."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import unpad


class MinimalGRU(unpad.Cell):
    """One gate: h' = (1 - z) * h + z * tanh(W [x, z * h])."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.state_size = input_size, hidden_size
        self.gate = torch.nn.Linear(input_size + hidden_size, hidden_size)
        self.candidate = torch.nn.Linear(input_size + hidden_size, hidden_size)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        z = torch.sigmoid(self.gate(torch.cat([x, h], dim=1)))
        h = (1 - z) * h + z * torch.tanh(self.candidate(torch.cat([x, z * h], dim=1)))
        return h, h


def by_hand(cell: MinimalGRU, x: Tensor) -> Tensor:
    """The loop with one product with the input, for both layers and all steps, before it."""
    weight = torch.cat([cell.gate.weight, cell.candidate.weight])
    bias = torch.cat([cell.gate.bias, cell.candidate.bias])
    features = x.shape[2]
    gate, candidate = weight[:, features:].chunk(2)
    h, outputs = cell.initial_state(x.shape[1], dtype=x.dtype), []
    for from_x in functional.linear(x, weight[:, :features], bias):
        for_gate, for_candidate = from_x.chunk(2, dim=1)
        z = torch.sigmoid(for_gate + functional.linear(h, gate))
        h = torch.lerp(h, torch.tanh(for_candidate + functional.linear(z * h, candidate)), z)
        outputs.append(h)
    return torch.stack(outputs)
