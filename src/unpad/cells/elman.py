"""The simple recurrent cell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unpad.cells.arguments import check_choice
from unpad.cells.gated import GatedCell
from unpad.cells.initialize import Init


class RNNCell(GatedCell):
    """The simple recurrent cell of Elman: ``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)``.

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of the state, which is the output too.
        bias: whether it has the two biases.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        init: ``"torch"``, ``"xavier"``, ``"orthogonal"`` or a function(name, parameter).

    Parameters are named and shaped as in ``torch.nn.RNNCell``.

    Source: Elman, Finding Structure in Time (1990); ReLU: Le et al., arXiv:1504.00941.

    >>> cell = RNNCell(3, 4)
    >>> output, state = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> output.shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        *,
        init: Init = "torch",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            1,
            recurrent_size=hidden_size,
            bias=bias,
            init=init,
            device=device,
            dtype=dtype,
        )
        self.nonlinearity = check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        self.state_size = self.hidden_size
        self.reset_parameters()

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and state [rows, H]; give the output and new state, both [rows, H]."""
        total = functional.linear(x, self.weight_ih, self.bias_ih) + functional.linear(
            state, self.weight_hh, self.bias_hh
        )
        h = torch.tanh(total) if self.nonlinearity == "tanh" else torch.relu(total)
        return h, h
