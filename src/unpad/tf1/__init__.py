"""TensorFlow 1's recurrent cells and functions under their own names, with their own numbers."""

from unpad.tf1.bidirectional import (
    bidirectional_dynamic_rnn,
    stack_bidirectional_dynamic_rnn,
    static_bidirectional_rnn,
)
from unpad.tf1.cell import RNNCell
from unpad.tf1.cells import BasicLSTMCell, BasicRNNCell, GRUCell, LSTMCell
from unpad.tf1.layer_norm import LayerNormBasicLSTMCell
from unpad.tf1.raw import TensorArray, raw_rnn
from unpad.tf1.rnn import dynamic_rnn, static_rnn
from unpad.tf1.state import LSTMStateTuple
from unpad.tf1.wrappers import DropoutWrapper, MultiRNNCell, ResidualWrapper

__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "LayerNormBasicLSTMCell",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
    "TensorArray",
    "bidirectional_dynamic_rnn",
    "dynamic_rnn",
    "raw_rnn",
    "stack_bidirectional_dynamic_rnn",
    "static_bidirectional_rnn",
    "static_rnn",
]
