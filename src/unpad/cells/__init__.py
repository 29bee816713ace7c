"""Cells: one step of a recurrent network, in plain PyTorch."""

from unpad.cells.cell import Cell
from unpad.cells.elman import RNNCell
from unpad.cells.gru import GRUCell
from unpad.cells.lstm import LSTMCell

__all__ = ["Cell", "GRUCell", "LSTMCell", "RNNCell"]
