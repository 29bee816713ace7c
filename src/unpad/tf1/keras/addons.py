"""The cells of tensorflow_addons, for `RNN`: peepholes, and layer normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unpad.cells.arguments import check_number
from unpad.tf1.keras.initializers import Initializer, initializer_of
from unpad.tf1.keras.lstm import LSTMCell, State
from unpad.tf1.keras.simple_rnn import SimpleRNNCell


class PeepholeLSTMCell(LSTMCell):
    """`LSTMCell` whose gates look at c::

        i = recurrent_activation(i + w_i * c)
        f = recurrent_activation(f + w_f * c)
        o = recurrent_activation(o + w_o * c')

    Args:
        units, options: as for `LSTMCell`; the vectors start by ``kernel_initializer``.

    Weights in order: the three of `LSTMCell`, ``input_gate_peephole_weights``,
    ``forget_gate_peephole_weights``, ``output_gate_peephole_weights``, [H] each.

    Source: tensorflow_addons, ``tfa.rnn.PeepholeLSTMCell``; Gers et al. (2002).

    >>> cell = PeepholeLSTMCell(4, input_size=3)
    >>> [list(array.shape) for array in cell.get_weights()][3:]
    [[4], [4], [4]]
    """

    input_gate_peephole_weights: Tensor
    forget_gate_peephole_weights: Tensor
    output_gate_peephole_weights: Tensor

    def __init__(self, units: int, *arguments: Any, **options: Any) -> None:
        super().__init__(units, *arguments, **options)
        for gate in ("input", "forget", "output"):
            name = f"{gate}_gate_peephole_weights"
            self.initializers[name] = self.initializers["kernel"]
            self.register_parameter(name, self._empty(self.units))
            self._start(name, getattr(self, name))

    def _carry(self, total: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = total.chunk(4, dim=1)
        i = self.recurrent_activation(i + self.input_gate_peephole_weights * c)
        f = self.recurrent_activation(f + self.forget_gate_peephole_weights * c)
        c = f * c + i * self.activation(g)
        return c, o + self.output_gate_peephole_weights * c


class LayerNormalization(nn.Module):
    """Layer normalization over the features: ``(x - mean) / sqrt(var + eps) * gamma + beta``.

    Args:
        features: of x.
        epsilon: added to the variance.
        gamma_initializer, beta_initializer: how both vectors [features] start.

    >>> norm = LayerNormalization(2, 0.0)
    >>> norm(torch.tensor([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """

    gamma: Tensor
    beta: Tensor

    def __init__(
        self,
        features: int,
        epsilon: float,
        gamma_initializer: Any = "ones",
        beta_initializer: Any = "zeros",
        **where: Any,
    ) -> None:
        super().__init__()
        self.epsilon = _check_epsilon("epsilon", epsilon)
        self.initializers: dict[str, Initializer] = {
            "gamma": initializer_of("gamma_initializer", gamma_initializer),
            "beta": initializer_of("beta_initializer", beta_initializer),
        }
        for name in self.initializers:
            self.register_parameter(name, nn.Parameter(torch.empty(features, **where)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start afresh, by the initializers."""
        for name, parameter in self.named_parameters(recurse=False):
            self.initializers[name](parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Take and give [rows, features]."""
        return functional.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.epsilon)


class LayerNormLSTMCell(LSTMCell):
    """`LSTMCell` with layer normalization of both products and of c::

        i, f, g, o = split(norm(x kernel) + norm(h recurrent_kernel) + bias)
        c' = norm(recurrent_activation(f) * c + recurrent_activation(i) * activation(g))
        h' = recurrent_activation(o) * activation(c')

    All 4H columns are normalized together, and the normalized c is the one that is carried on.

    Args:
        units, options: as for `LSTMCell`.
        norm_gamma_initializer, norm_beta_initializer: how the norms' vectors start.
        norm_epsilon: added to the variances.

    Weights in order: the three of `LSTMCell`, then gamma and beta of ``kernel_norm`` [4H],
    ``recurrent_norm`` [4H] and ``state_norm`` [H].

    Source: tensorflow_addons, ``tfa.rnn.LayerNormLSTMCell``; Ba et al., arXiv:1607.06450.

    >>> cell = LayerNormLSTMCell(4, input_size=3)
    >>> output, (h, c) = cell(torch.ones(2, 3), cell.initial_state(2))
    >>> output.shape, abs(float(c.mean().detach())) < 1e-6
    (torch.Size([2, 4]), True)
    """

    def __init__(
        self,
        units: int,
        *arguments: Any,
        norm_gamma_initializer: Any = "ones",
        norm_beta_initializer: Any = "zeros",
        norm_epsilon: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(units, *arguments, **options)
        start = norm_epsilon, norm_gamma_initializer, norm_beta_initializer
        self.kernel_norm = LayerNormalization(self.columns, *start, **self._where)
        self.recurrent_norm = LayerNormalization(self.columns, *start, **self._where)
        self.state_norm = LayerNormalization(self.units, *start, **self._where)
        for parameter in self.parameters():
            parameter.requires_grad = self.trainable

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Take x [rows, I] and (h, c), each [rows, H]; give the output and new state, alike."""
        h, c = state
        (read,) = self._dropped(h, self.recurrent_dropout, False)
        (given,) = self._dropped(x, self.dropout, False)
        total = self.kernel_norm(given @ self.kernel)
        total = total + self.recurrent_norm(read @ self.recurrent_kernel)
        if self.bias is not None:
            total = total + self.bias
        c, o = self._carry(total, c)
        c = self.state_norm(c)
        h = self.recurrent_activation(o) * self.activation(c)
        return h, (h, c)


class LayerNormSimpleRNNCell(SimpleRNNCell):
    """`SimpleRNNCell` with layer normalization::

        h' = activation(norm(x kernel + h recurrent_kernel) * gamma + bias)

    Args:
        units, activation, use_bias, options: as for `SimpleRNNCell`.
        layernorm_epsilon: added to the variance.
        gamma_initializer: how gamma starts.

    Weights in order: the three of `SimpleRNNCell`, ``gamma`` [H].

    Source: tensorflow_addons, ``tfa.rnn.LayerNormSimpleRNNCell``; Ba et al., arXiv:1607.06450.

    >>> cell = LayerNormSimpleRNNCell(4, input_size=3)
    >>> cell(torch.ones(2, 3), cell.initial_state(2))[0].shape
    torch.Size([2, 4])
    """

    gamma: Tensor

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        layernorm_epsilon: float = 1e-5,
        *,
        gamma_initializer: Any = "ones",
        **options: Any,
    ) -> None:
        super().__init__(units, activation, use_bias, **options)
        self.layernorm_epsilon = _check_epsilon("layernorm_epsilon", layernorm_epsilon)
        self.initializers["gamma"] = initializer_of("gamma_initializer", gamma_initializer)
        self.register_parameter("gamma", self._empty(self.units))
        self._start("gamma", self.gamma)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and h [rows, H]; give the output and new state, both [rows, H]."""
        total = self.input_product(x) + self.state_product(state)
        h = functional.layer_norm(
            total, (self.units,), self.gamma, self.bias, self.layernorm_epsilon
        )
        h = self.activation(h)
        return h, h


def _check_epsilon(argument: str, value: Any) -> float:
    return check_number(argument, value, "a number of 0 or more", lambda number: number >= 0)
