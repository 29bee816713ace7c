"""Keras's long short-term memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unpad.cells.arguments import check_flag
from unpad.tf1.activations import activation_of
from unpad.tf1.keras.cell import KerasCell
from unpad.tf1.keras.layer import RNN, layer_options

State = tuple[Tensor, Tensor]


class LSTMCell(KerasCell):
    """The long short-term memory, gates in Keras's order::

        i, f, g, o = split(x kernel + h recurrent_kernel + bias)
        c' = recurrent_activation(f) * c + recurrent_activation(i) * activation(g)
        h' = recurrent_activation(o) * activation(c')

    Args:
        units: H, features of h and c; the output is h.
        activation, recurrent_activation: names of Keras 2's, functions, or None for linear.
        use_bias: whether it has a bias.
        unit_forget_bias: the bias of the forget gate starts at 1. Nothing is added at run time.
        options: as for `SimpleRNNCell`.

    The state is (h, c). Weights in order: ``kernel`` [I, 4H], ``recurrent_kernel`` [H, 4H],
    ``bias`` [4H].

    Source: Keras 2, ``keras.layers.LSTMCell``.

    >>> cell = LSTMCell(4, input_size=3)
    >>> output, (h, c) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> output.shape, cell.bias.tolist()[4:8]
    (torch.Size([2, 4]), [1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        *,
        unit_forget_bias: bool = True,
        **options: Any,
    ) -> None:
        self.unit_forget_bias = check_flag("unit_forget_bias", unit_forget_bias)
        super().__init__(units, 4, activation=activation, use_bias=use_bias, **options)
        self.recurrent_activation = activation_of("recurrent_activation", recurrent_activation)
        self.state_size = (self.units, self.units)

    @torch.no_grad()
    def _start(self, name: str, parameter: Tensor) -> None:
        super()._start(name, parameter)
        if name == "bias" and self.unit_forget_bias:
            parameter[self.units : 2 * self.units] = 1.0

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Take x [rows, I] and (h, c), each [rows, H]; give the output and new state, alike."""
        h, c = state
        total = self.from_input(x) + self.state_product(h)
        c, o = self._carry(total, c)
        h = self.recurrent_activation(o) * self.activation(c)
        return h, (h, c)

    def _carry(self, total: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Give the new c, and the output gate before its activation, from all gates' sums."""
        i, f, g, o = total.chunk(4, dim=1)
        i, f = self.recurrent_activation(i), self.recurrent_activation(f)
        return f * c + i * self.activation(g), o


class LSTM(RNN):
    """A layer of `LSTMCell`; arguments of the cell, and those of `RNN` by keyword.

    With ``return_state`` it gives [output, h, c].

    >>> output, h, c = LSTM(4, return_state=True)(torch.zeros(2, 5, 3))
    >>> output.shape, c.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        **options: Any,
    ) -> None:
        layer = layer_options(options)
        cell = LSTMCell(units, activation, recurrent_activation, use_bias, **options)
        super().__init__(cell, **layer)
