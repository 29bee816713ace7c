"""What the tests of users' reports share (test_user_reports_*.py)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unpad import Cell
from unpad.nn import GRU, LSTM, RNN

each_layer = pytest.mark.parametrize(
    ("ours", "theirs"),
    [(RNN, nn.RNN), (GRU, nn.GRU), (LSTM, nn.LSTM)],
    ids=["RNN", "GRU", "LSTM"],
)
each_engine = pytest.mark.parametrize("engine", ["auto", "torch", "eager"])
UNSORTED = [2, 5, 1, 4]


class HandGRU(Cell):
    """A GRU as a user writes it: four Linears."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.state_size = input_size, hidden_size
        self.x_gates = nn.Linear(input_size, 2 * hidden_size)
        self.h_gates = nn.Linear(hidden_size, 2 * hidden_size)
        self.x_new = nn.Linear(input_size, hidden_size)
        self.h_new = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, h):
        r, z = torch.sigmoid(self.x_gates(x) + self.h_gates(h)).chunk(2, dim=-1)
        n = torch.tanh(self.x_new(x) + r * self.h_new(h))
        h = (1 - z) * n + z * h
        return h, h
