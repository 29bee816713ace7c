"""TensorFlow 1's recurrent cells and functions under their own names, with their own numbers."""

from unpad.tf1.bidirectional import (
    bidirectional_dynamic_rnn,
    stack_bidirectional_dynamic_rnn,
    static_bidirectional_rnn,
)
from unpad.tf1.cell import RNNCell
from unpad.tf1.cells import BasicLSTMCell, BasicRNNCell, GRUCell, LSTMCell
from unpad.tf1.clipping import clip_by_global_norm, global_norm
from unpad.tf1.ctc import (
    ctc_beam_search_decoder,
    ctc_beam_search_decoder_v2,
    ctc_greedy_decoder,
    ctc_loss,
    ctc_loss_v2,
)
from unpad.tf1.layer_norm import LayerNormBasicLSTMCell
from unpad.tf1.raw import TensorArray, raw_rnn
from unpad.tf1.rnn import dynamic_rnn, static_rnn
from unpad.tf1.sparse import IndexedSlices, SparseTensor
from unpad.tf1.state import LSTMStateTuple
from unpad.tf1.wrappers import DropoutWrapper, MultiRNNCell, ResidualWrapper

__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DropoutWrapper",
    "GRUCell",
    "IndexedSlices",
    "LSTMCell",
    "LSTMStateTuple",
    "LayerNormBasicLSTMCell",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
    "SparseTensor",
    "TensorArray",
    "bidirectional_dynamic_rnn",
    "clip_by_global_norm",
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_v2",
    "ctc_greedy_decoder",
    "ctc_loss",
    "ctc_loss_v2",
    "dynamic_rnn",
    "global_norm",
    "raw_rnn",
    "stack_bidirectional_dynamic_rnn",
    "static_bidirectional_rnn",
    "static_rnn",
]
