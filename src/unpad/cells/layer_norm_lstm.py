"""The LSTM with layer normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unpad.cells.arguments import check_dtype, check_flag, check_number, check_size
from unpad.cells.initialize import (
    Init,
    check_forget_bias,
    check_init,
    initialize,
    set_forget_bias,
)
from unpad.cells.step import CheckedCell


class LayerNormLSTMCell(CheckedCell):
    """The LSTM with layer normalisation of the two products and of the cell state::

        i, f, g, o = LN(W_ih x) + LN(W_hh h)
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(LN(c'))

    LN(v) = (v - mean(v)) / sqrt(var(v) + eps) * weight + bias, over all features of v: the four
    gates of a product are normalised together. The c' that is carried on is not normalised.

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of h and c.
        bias: whether the normalisations add a bias; it stands for the gates' biases too.
        forget_bias: what the forget gate's two biases add up to at the start, exactly; None: 0.
        eps: added to the variance.
        init: of the two matrices; ``"torch"``, ``"xavier"``, ``"orthogonal"`` or a function(name,
            parameter). The normalisations start as the identity.

    The state is (h, c) and h is the output. Parameters: ``weight_ih`` [4H, I], ``weight_hh``
    [4H, H], gates in the order i, f, g, o; ``norm_ih``, ``norm_hh``, ``norm_c``.

    Source: Ba, Kiros and Hinton, arXiv:1607.06450, equations 20 to 22.

    >>> cell = LayerNormLSTMCell(3, 4)
    >>> output, (h, c) = cell(torch.ones(2, 3), cell.initial_state(2))
    >>> output.shape, c.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        forget_bias: float | None = None,
        eps: float = 1e-5,
        init: Init = "torch",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size = check_size("input_size", input_size)
        self.hidden_size = hidden_size = check_size("hidden_size", hidden_size)
        check_init(init)
        check_dtype(dtype)
        check_number("eps", eps, "a number of 0 or more", lambda number: number >= 0)
        self.bias = check_flag("bias", bias)
        self.init = init
        self.forget_bias = check_forget_bias(forget_bias, bias)
        self.state_size = (hidden_size, hidden_size)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        gates = 4 * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates, input_size, **where))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden_size, **where))
        self.norm_ih = nn.LayerNorm(gates, eps, bias=bias, **where)
        self.norm_hh = nn.LayerNorm(gates, eps, bias=bias, **where)
        self.norm_c = nn.LayerNorm(hidden_size, eps, bias=bias, **where)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start afresh, by ``init`` and ``forget_bias``."""
        for name, parameter in self.named_parameters(recurse=False):
            initialize(name, parameter, self.hidden_size, self.init)
        for norm in (self.norm_ih, self.norm_hh, self.norm_c):
            norm.reset_parameters()
        if self.forget_bias is not None:
            set_forget_bias(
                self.forget_bias, self.norm_ih.bias, self.norm_hh.bias, self.hidden_size
            )

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Take x [rows, I] and (h, c), each [rows, H]; give the output and new state, alike."""
        h, c = state
        from_x = self.norm_ih(functional.linear(x, self.weight_ih))
        from_h = self.norm_hh(functional.linear(h, self.weight_hh))
        i, f, g, o = (from_x + from_h).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c))
        return h, (h, c)

    def extra_repr(self) -> str:
        """Give the sizes."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
