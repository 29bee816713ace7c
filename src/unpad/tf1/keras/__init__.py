"""Keras 2's recurrent layers and cells, and those of tensorflow_addons, without TensorFlow."""

from unpad.tf1.keras.addons import LayerNormLSTMCell, LayerNormSimpleRNNCell, PeepholeLSTMCell
from unpad.tf1.keras.bidirectional import Bidirectional
from unpad.tf1.keras.gru import GRU, GRUCell
from unpad.tf1.keras.layer import RNN
from unpad.tf1.keras.lstm import LSTM, LSTMCell
from unpad.tf1.keras.simple_rnn import SimpleRNN, SimpleRNNCell
from unpad.tf1.keras.stack import StackedRNNCells

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Bidirectional",
    "GRUCell",
    "LSTMCell",
    "LayerNormLSTMCell",
    "LayerNormSimpleRNNCell",
    "PeepholeLSTMCell",
    "SimpleRNN",
    "SimpleRNNCell",
    "StackedRNNCells",
]
