"""Keras's gated recurrent unit, in both of its forms."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unpad.cells.arguments import check_flag
from unpad.tf1.activations import activation_of
from unpad.tf1.keras.cell import KerasCell
from unpad.tf1.keras.layer import RNN, layer_options


class GRUCell(KerasCell):
    """The gated recurrent unit, gates in Keras's order z, r, n::

        z = recurrent_activation(x_z + h_z)
        r = recurrent_activation(x_r + h_r)
        n = activation(x_n + r * h_n)                        reset_after=True
        n = activation(x_n + (r * h) recurrent_kernel_n)     reset_after=False
        h' = z * h + (1 - z) * n

    with ``x_ = x kernel + bias`` and ``h_ = h recurrent_kernel``; with ``reset_after`` ``bias`` has
    two rows, the second of which is added to ``h_``.

    Args:
        units: H, features of h, which is the output too.
        activation, recurrent_activation: names of Keras 2's, functions, or None for linear.
        use_bias: whether it has a bias.
        reset_after: True is Keras 2's default and cuDNN's form; False that of Keras 1.
        options: as for `SimpleRNNCell`.

    Weights in order: ``kernel`` [I, 3H], ``recurrent_kernel`` [H, 3H], ``bias`` [2, 3H] with
    ``reset_after``, else [3H].

    Source: Keras 2, ``keras.layers.GRUCell``.

    >>> import torch
    >>> cell = GRUCell(4, input_size=3)
    >>> output, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> output.shape, cell.bias.shape
    (torch.Size([2, 4]), torch.Size([2, 12]))
    """

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        use_bias: bool = True,
        *,
        reset_after: bool = True,
        **options: Any,
    ) -> None:
        self.reset_after = check_flag("reset_after", reset_after)
        rows = 2 if reset_after else None
        super().__init__(
            units, 3, activation=activation, use_bias=use_bias, bias_rows=rows, **options
        )
        self.recurrent_activation = activation_of("recurrent_activation", recurrent_activation)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and h [rows, H]; give the output and new state, both [rows, H]."""
        z, n = self._after(x, state) if self.reset_after else self._before(x, state)
        h = z * state + (1 - z) * n
        return h, h

    def _after(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        from_x, from_h = self.input_product(x), self.state_product(h)
        if self.bias is not None:
            from_x, from_h = from_x + self.bias[0], from_h + self.bias[1]
        x_z, x_r, x_n = from_x.chunk(3, dim=1)
        h_z, h_r, h_n = from_h.chunk(3, dim=1)
        z = self.recurrent_activation(x_z + h_z)
        r = self.recurrent_activation(x_r + h_r)
        return z, self.activation(x_n + r * h_n)

    def _before(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        gates, candidate = self.recurrent_kernel.split([2 * self.units, self.units], dim=1)
        x_z, x_r, x_n = self.from_input(x).chunk(3, dim=1)
        *read, last = self.dropped_states(h)
        h_z, h_r = self._product(read or [last], gates).chunk(2, dim=1)
        z = self.recurrent_activation(x_z + h_z)
        r = self.recurrent_activation(x_r + h_r)
        return z, self.activation(x_n + (r * last) @ candidate)


class GRU(RNN):
    """A layer of `GRUCell`; arguments of the cell, and those of `RNN` by keyword.

    >>> import torch
    >>> GRU(4, return_sequences=True)(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 4])
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
        cell = GRUCell(units, activation, recurrent_activation, use_bias, **options)
        super().__init__(cell, **layer)
