"""The gated recurrent unit, in both of its forms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unpad.cells.arguments import check_flag
from unpad.cells.gated import GatedCell
from unpad.cells.initialize import Init


class GRUCell(GatedCell):
    """The gated recurrent unit::

        r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
        z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
        n = tanh(W_in x + b_in + r * (W_hn h + b_hn))      reset_after=True
        n = tanh(W_in x + b_in + W_hn (r * h) + b_hn)      reset_after=False
        h' = (1 - z) * n + z * h

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of the state, which is the output too.
        bias: whether it has the two biases.
        reset_after: True is torch's, cuDNN's and Keras 2's form; False that of the first paper and
            of TensorFlow 1. Weights trained in one form are wrong in the other.
        init: ``"torch"``, ``"xavier"``, ``"orthogonal"`` or a function(name, parameter).

    Parameters are named and shaped as in ``torch.nn.GRUCell``, gates in the order r, z, n.

    Source: Cho et al., arXiv:1406.1078v1 (reset before; v3 and cuDNN: after).

    >>> cell = GRUCell(3, 4, reset_after=False)
    >>> output, state = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> output.shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        reset_after: bool = True,
        init: Init = "torch",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            3,
            recurrent_size=hidden_size,
            bias=bias,
            init=init,
            device=device,
            dtype=dtype,
        )
        self.reset_after = check_flag("reset_after", reset_after)
        self.state_size = self.hidden_size
        self.reset_parameters()

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and state [rows, H]; give the output and new state, both [rows, H]."""
        h = self._after(x, state) if self.reset_after else self._before(x, state)
        return h, h

    def _after(self, x: Tensor, h: Tensor) -> Tensor:
        x_r, x_z, x_n = functional.linear(x, self.weight_ih, self.bias_ih).chunk(3, dim=1)
        h_r, h_z, h_n = functional.linear(h, self.weight_hh, self.bias_hh).chunk(3, dim=1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return (1 - z) * n + z * h

    def _before(self, x: Tensor, h: Tensor) -> Tensor:
        gates = 2 * self.hidden_size
        bias = self.bias_hh
        gate_bias, candidate_bias = (None, None) if bias is None else (bias[:gates], bias[gates:])
        x_r, x_z, x_n = functional.linear(x, self.weight_ih, self.bias_ih).chunk(3, dim=1)
        h_r, h_z = functional.linear(h, self.weight_hh[:gates], gate_bias).chunk(2, dim=1)
        r = torch.sigmoid(x_r + h_r)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + functional.linear(r * h, self.weight_hh[gates:], candidate_bias))
        return (1 - z) * n + z * h

    def extra_repr(self) -> str:
        """Give the sizes and what is not the default."""
        return super().extra_repr() + ("" if self.reset_after else ", reset_after=False")
