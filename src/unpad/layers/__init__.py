"""Layers: cells run over whole sequences."""

from unpad.layers.gru import GRU
from unpad.layers.lstm import LSTM
from unpad.layers.recurrent import Directions, Recurrent
from unpad.layers.rnn import RNN

__all__ = ["GRU", "LSTM", "RNN", "Directions", "Recurrent"]
