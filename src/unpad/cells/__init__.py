"""Cells: one step of a recurrent network, in plain PyTorch."""

from unpad.cells.cell import Cell
from unpad.cells.compose import Residual, Stack
from unpad.cells.elman import RNNCell
from unpad.cells.gru import GRUCell
from unpad.cells.layer_norm_lstm import LayerNormLSTMCell
from unpad.cells.lstm import LSTMCell
from unpad.cells.regularize import Dropout, Zoneout

__all__ = [
    "Cell",
    "Dropout",
    "GRUCell",
    "LSTMCell",
    "LayerNormLSTMCell",
    "RNNCell",
    "Residual",
    "Stack",
    "Zoneout",
]
