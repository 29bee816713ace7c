"""The LSTM with layer normalisation of tf.contrib."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_flag, check_number, check_size
from unpad.errors import ArgumentError
from unpad.noise import keep_mask
from unpad.tf1.activations import activation_of
from unpad.tf1.cell import RNNCell, make_kernel, make_vector
from unpad.tf1.cells import joint
from unpad.tf1.state import LSTMStateTuple

_EPSILON = 1e-12  # of contrib's layer_norm
_GATES = ("input", "transform", "forget", "output", "state")


class LayerNormBasicLSTMCell(RNNCell):
    """The LSTM whose four gates and memory are each normalised by itself::

        i, j, f, o = [x, h] kernel;  each = LN(each)
        c' = LN(sigmoid(f + forget_bias) * c + sigmoid(i) * dropout(activation(j)))
        h' = sigmoid(o) * activation(c')

    LN(v) = (v - mean(v)) / sqrt(var(v) + 1e-12) * gamma + beta, over the features of v. The
    normalised c' is what is carried on.

    Args:
        num_units: H, features of c and h.
        forget_bias: added at run time.
        input_size: deprecated in TensorFlow; only None is taken.
        activation: of j and of c'; a function or its name.
        layer_norm: False: no normalisation, and a ``bias`` in its place.
        norm_gain, norm_shift: what gamma and beta start from.
        dropout_keep_prob: share of the candidate that is kept, in training mode alone.
        dropout_prob_seed: only None: masks follow ``torch.manual_seed``.
        reuse: no use; weights live in the module.

    Parameters: ``kernel`` [I + H, 4H], no bias; ``input_gamma``, ``input_beta`` [H], and so on for
    transform, forget, output and state.

    Source: Ba, Kiros and Hinton, arXiv:1607.06450; dropout: Semeniuta et al., arXiv:1603.05118;
    tf.contrib.rnn.LayerNormBasicLSTMCell.

    >>> cell = LayerNormBasicLSTMCell(4)
    >>> output, state = cell(torch.zeros(2, 3), cell.zero_state(2))
    >>> sorted(cell.variables())[0]
    'layer_norm_basic_lstm_cell/forget/beta'
    """

    scope = "layer_norm_basic_lstm_cell"
    kernel: Tensor
    bias: Tensor

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: None = None,
        activation: Any = None,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: float = 1.0,
        dropout_prob_seed: None = None,
        reuse: Any = None,
    ) -> None:
        super().__init__()
        for argument, value in (
            ("input_size", input_size),
            ("dropout_prob_seed", dropout_prob_seed),
        ):
            if value is not None:
                raise ArgumentError(argument, value, "None", "leave it out; see torch.manual_seed")
        self.num_units = check_size("num_units", num_units)
        self.forget_bias = check_number("forget_bias", forget_bias, "a number")
        self.activation = activation_of("activation", "tanh" if activation is None else activation)
        self.layer_norm = check_flag("layer_norm", layer_norm)
        self.norm_gain = check_number("norm_gain", norm_gain, "a number")
        self.norm_shift = check_number("norm_shift", norm_shift, "a number")
        self.dropout_keep_prob = check_keep("dropout_keep_prob", dropout_keep_prob)
        self.state_size = LSTMStateTuple(self.num_units, self.num_units)
        self.output_size = self.num_units
        norms = [f"{gate}_{name}" for gate in _GATES for name in ("gamma", "beta")]
        self._declare("kernel", *(norms if layer_norm else ["bias"]))

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        h = self.num_units
        make_kernel(self, "kernel", input_size + h, 4 * h, where)
        if not self.layer_norm:
            make_vector(self, "bias", 4 * h, where)
            return
        for gate in _GATES:
            make_vector(self, f"{gate}_gamma", h, where, lambda v: v.fill_(self.norm_gain))
            make_vector(self, f"{gate}_beta", h, where, lambda v: v.fill_(self.norm_shift))

    def variables(self) -> dict[str, nn.Parameter]:
        """Give the parameters by their TensorFlow names; see `RNNCell.variables`."""
        self._check_built()
        return {
            f"{self.scope}/{name.replace('_', '/')}": value
            for name, value in self.named_parameters()
        }

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, LSTMStateTuple]:
        """Take x [rows, I] and (c, h) [rows, H] each; give h' and the new state."""
        self._open(x, state)
        c, h = state
        total = joint(x, h, self.kernel, None if self.layer_norm else self.bias)
        i, j, f, o = total.chunk(4, dim=1)
        i, j = self._norm(i, "input"), self._norm(j, "transform")
        f, o = self._norm(f, "forget"), self._norm(o, "output")
        g = self.activation(j)
        if self.training and self.dropout_keep_prob < 1.0:
            g = drop(g, self.dropout_keep_prob)
        c = c * torch.sigmoid(f + self.forget_bias) + torch.sigmoid(i) * g
        c = self._norm(c, "state")
        h = self.activation(c) * torch.sigmoid(o)
        return h, LSTMStateTuple(c, h)

    def _norm(self, value: Tensor, gate: str) -> Tensor:
        if not self.layer_norm:
            return value
        gamma, beta = getattr(self, f"{gate}_gamma"), getattr(self, f"{gate}_beta")
        return nn.functional.layer_norm(value, (self.num_units,), gamma, beta, _EPSILON)


def check_keep(argument: str, value: Any) -> float:
    """Return a share to keep within (0, 1] as a float."""
    return check_number(
        argument, value, "a number above 0, up to 1", lambda number: 0.0 < number <= 1.0
    )


def drop(value: Tensor, keep: float, *, per_sequence: bool = False) -> Tensor:
    """Keep a share of the numbers, divided by it, and make the others 0."""
    return value * (keep_mask(value, 1.0 - keep, per_sequence=per_sequence) * (1.0 / keep))
