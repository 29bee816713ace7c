"""The state of TensorFlow 1's LSTM cells."""

from __future__ import annotations

from typing import Any, NamedTuple


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM, memory first: (c, h), where PyTorch and Keras say (h, c).

    Attributes:
        c: the memory [B, num_units]; in a ``state_size`` its number of features.
        h: the output [B, num_units or num_proj].

    Source: TensorFlow 1, ``tf.nn.rnn_cell.LSTMStateTuple``.

    >>> import torch
    >>> LSTMStateTuple(c=torch.zeros(2, 3), h=torch.ones(2, 3)).h.sum().item()
    6.0
    """

    c: Any
    h: Any
