"""Cells and layers under one name, as in torch.nn."""

from unpad.cells import (
    Cell,
    Dropout,
    GRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    Residual,
    RNNCell,
    Stack,
    Zoneout,
)
from unpad.layers import GRU, LSTM, RNN, Directions, Recurrent
from unpad.softmax import HierarchicalSoftmax, LinearCrossEntropy

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Cell",
    "Directions",
    "Dropout",
    "GRUCell",
    "HierarchicalSoftmax",
    "LSTMCell",
    "LayerNormLSTMCell",
    "LinearCrossEntropy",
    "RNNCell",
    "Recurrent",
    "Residual",
    "Stack",
    "Zoneout",
]
