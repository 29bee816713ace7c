"""Keras's plain recurrent cell and layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unpad.tf1.keras.cell import KerasCell
from unpad.tf1.keras.layer import RNN, layer_options


class SimpleRNNCell(KerasCell):
    """The plain recurrent cell::

        h' = activation(x kernel + h recurrent_kernel + bias)

    Args:
        units: H, features of h, which is the output too.
        activation: a name of Keras 2's, a function, or None for linear.
        use_bias: whether it has a bias.
        options: ``kernel_initializer``, ``recurrent_initializer``, ``bias_initializer`` (a name of
            Keras's, or a function that fills a tensor in place), ``input_size``, ``name``,
            ``device``, ``dtype``; ``dropout`` and ``recurrent_dropout``, below; ``input_shape``,
            ``batch_input_shape``, ``input_dim``, ``trainable``, ``weights`` as in Keras;
            regularizers and constraints are refused unless None.

    In training mode (``module.train()``) a share ``dropout`` of the numbers of x and a share
    ``recurrent_dropout`` of those of h, as the product reads it, are 0, and the others divided by
    what is kept. A mask holds for all steps of a sequence in one call. With ``recurrent_dropout``,
    or ``implementation=1``, each gate has masks of its own. A cell that is called by itself draws
    masks at every call.

    Weights in order: ``kernel`` [I, H], ``recurrent_kernel`` [H, H], ``bias`` [H].

    Source: Keras 2, ``keras.layers.SimpleRNNCell``.

    >>> import torch
    >>> cell = SimpleRNNCell(4, input_size=3)
    >>> output, h = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> output.shape
    torch.Size([2, 4])
    """

    def __init__(
        self, units: int, activation: Any = "tanh", use_bias: bool = True, **options: Any
    ) -> None:
        super().__init__(units, 1, activation=activation, use_bias=use_bias, **options)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and h [rows, H]; give the output and new state, both [rows, H]."""
        h = self.activation(self.from_input(x) + self.state_product(state))
        return h, h


class SimpleRNN(RNN):
    """A layer of `SimpleRNNCell`; arguments of the cell, and those of `RNN` by keyword.

    >>> import torch
    >>> SimpleRNN(4)(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, units: int, activation: Any = "tanh", use_bias: bool = True, **options: Any
    ) -> None:
        layer = layer_options(options)
        super().__init__(SimpleRNNCell(units, activation, use_bias, **options), **layer)
