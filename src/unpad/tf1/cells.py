"""TensorFlow 1's cells: their argument lists, their weights' names and layouts, their numbers.

A kernel is one matrix [input + state, columns], rows of the input first. Every cell takes ``reuse``
and has no use for it: weights live in the module and are used again by construction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_flag, check_number, check_size
from unpad.errors import ArgumentError
from unpad.tf1.activations import activation_of
from unpad.tf1.cell import RNNCell, check_initializer, make_kernel, make_vector
from unpad.tf1.state import LSTMStateTuple

_PEEPHOLES = ("w_f_diag", "w_i_diag", "w_o_diag")


class BasicRNNCell(RNNCell):
    """The plain recurrent cell::

        h' = activation([x, h] kernel + bias)

    Args:
        num_units: H, features of h.
        activation: a function or its name; None: tanh.
        reuse, name, dtype: as in TensorFlow; ``dtype`` of the weights, None: the first input's.

    Parameters: ``kernel`` [I + H, H], ``bias`` [H]. The output is the state.

    Source: TensorFlow 1, ``tf.nn.rnn_cell.BasicRNNCell``.

    >>> cell = BasicRNNCell(4)
    >>> output, state = cell(torch.zeros(2, 3), cell.zero_state(2))
    >>> {name: list(value.shape) for name, value in cell.variables().items()}
    {'basic_rnn_cell/kernel': [7, 4], 'basic_rnn_cell/bias': [4]}
    """

    scope = "basic_rnn_cell"
    kernel: Tensor
    bias: Tensor

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_units = self.state_size = check_size("num_units", num_units, least=0)
        self.activation = activation_of("activation", "tanh" if activation is None else activation)
        self._declare("kernel", "bias")

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        make_kernel(self, "kernel", input_size + self.num_units, self.num_units, where)
        make_vector(self, "bias", self.num_units, where)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and h [rows, H]; give h' twice."""
        self._open(x, state)
        new = self.activation(joint(x, state, self.kernel, self.bias))
        return new, new


class GRUCell(RNNCell):
    """The gated recurrent unit, its reset gate before the product::

        r, u = sigmoid([x, h] gates_kernel + gates_bias)
        c = activation([x, r * h] candidate_kernel + candidate_bias)
        h' = u * h + (1 - u) * c

    Neither torch.nn.GRU nor Keras's default can hold these weights: both reset after the product.

    Args:
        num_units: H, features of h.
        activation: of the candidate; None: tanh.
        kernel_initializer, bias_initializer: functions that fill a tensor in place; None: Glorot's
            uniform distribution, and 1 for the gates' bias, 0 for the candidate's.
        reuse, name, dtype: as for `BasicRNNCell`.

    Parameters: ``gates_kernel`` [I + H, 2H], ``gates_bias`` [2H], ``candidate_kernel`` [I + H, H],
    ``candidate_bias`` [H]; columns in the order r, u. The output is the state.

    Source: Cho et al., arXiv:1406.1078; TensorFlow 1, ``tf.nn.rnn_cell.GRUCell``.

    >>> cell = GRUCell(4)
    >>> cell.build(3)
    >>> list(cell.variables())[:2]
    ['gru_cell/gates/kernel', 'gru_cell/gates/bias']
    """

    scope = "gru_cell"
    gates_kernel: Tensor
    gates_bias: Tensor
    candidate_kernel: Tensor
    candidate_bias: Tensor

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_units = self.state_size = check_size("num_units", num_units, least=0)
        self.activation = activation_of("activation", "tanh" if activation is None else activation)
        self.kernel_initializer = check_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = check_initializer("bias_initializer", bias_initializer)
        self._declare("gates_kernel", "gates_bias", "candidate_kernel", "candidate_bias")

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        rows, h = input_size + self.num_units, self.num_units
        make_kernel(self, "gates_kernel", rows, 2 * h, where, self.kernel_initializer)
        make_vector(self, "gates_bias", 2 * h, where, self.bias_initializer or nn.init.ones_)
        make_kernel(self, "candidate_kernel", rows, h, where, self.kernel_initializer)
        make_vector(self, "candidate_bias", h, where, self.bias_initializer)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take x [rows, I] and h [rows, H]; give h' twice."""
        self._open(x, state)
        gates = torch.sigmoid(joint(x, state, self.gates_kernel, self.gates_bias))
        r, u = gates.chunk(2, dim=1)
        c = self.activation(joint(x, r * state, self.candidate_kernel, self.candidate_bias))
        new = u * state + (1 - u) * c
        return new, new


class LSTMCell(RNNCell):
    """The long short-term memory with TensorFlow 1's options::

        i, j, f, o = [x, h] kernel + bias
        c' = sigmoid(f + forget_bias [+ w_f_diag * c]) * c
             + sigmoid(i [+ w_i_diag * c]) * activation(j)
        c' = clip(c', cell_clip)
        h' = sigmoid(o [+ w_o_diag * c']) * activation(c')
        h' = clip(h' projection_kernel, proj_clip)                       [with num_proj]

    Args:
        num_units: H, features of c.
        use_peepholes: gates look at c through the vectors ``w_f_diag``, ``w_i_diag``, ``w_o_diag``.
        cell_clip: c' is held within [-cell_clip, cell_clip]; None: free.
        initializer: fills every matrix and peephole in place; None: Glorot's uniform distribution,
            and for the vectors the uniform one within sqrt(3 / H), as TensorFlow has it.
        num_proj: P, features of h after the projection; None: none, h has H.
        proj_clip: likewise for the projected h'; without ``num_proj`` it has no effect.
        num_unit_shards, num_proj_shards: deprecated in TensorFlow; only None is taken.
        forget_bias: added at run time; it is not in the bias, nor in a checkpoint.
        state_is_tuple: False: one state [B, H + P], c then h.
        activation: of j and of c'; None: tanh. The gates' is always the sigmoid.
        reuse, name, dtype: as for `BasicRNNCell`.

    The state is `LSTMStateTuple` (c, h) and h is the output. Parameters: ``kernel``
    [I + (P or H), 4H], columns in the order i, j, f, o (j is the candidate); ``bias`` [4H];
    ``projection_kernel`` [H, P].

    Source: Sak et al., arXiv:1402.1128; TensorFlow 1, ``tf.nn.rnn_cell.LSTMCell``.

    >>> cell = LSTMCell(4, num_proj=2)
    >>> output, state = cell(torch.zeros(5, 3), cell.zero_state(5))
    >>> list(output.shape), list(state.c.shape)
    ([5, 2], [5, 4])
    """

    scope = "lstm_cell"
    kernel: Tensor
    bias: Tensor
    w_f_diag: Tensor
    w_i_diag: Tensor
    w_o_diag: Tensor
    projection_kernel: Tensor

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: None = None,
        num_proj_shards: None = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.num_units = check_size("num_units", num_units, least=0)
        self.use_peepholes = check_flag("use_peepholes", use_peepholes)
        self.cell_clip = _check_clip("cell_clip", cell_clip)
        self.initializer = check_initializer("initializer", initializer)
        self.num_proj = None if num_proj is None else check_size("num_proj", num_proj)
        self.proj_clip = _check_clip("proj_clip", proj_clip)
        for argument, shards in (
            ("num_unit_shards", num_unit_shards),
            ("num_proj_shards", num_proj_shards),
        ):
            if shards is not None:
                raise ArgumentError(
                    argument, shards, "None", "join the parts of a sharded kernel: import it"
                )
        self.forget_bias = check_number("forget_bias", forget_bias, "a number")
        self.state_is_tuple = check_flag("state_is_tuple", state_is_tuple)
        self.activation = activation_of("activation", "tanh" if activation is None else activation)
        self.output_size = self.num_proj or self.num_units
        sizes = LSTMStateTuple(self.num_units, self.output_size)
        self.state_size = sizes if state_is_tuple else sum(sizes)
        self._declare("kernel", "bias", *(_PEEPHOLES if use_peepholes else ()))
        if num_proj is not None:
            self._declare("projection_kernel")

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        h, init = self.num_units, self.initializer
        make_kernel(self, "kernel", input_size + self.output_size, 4 * h, where, init)
        make_vector(self, "bias", 4 * h, where)
        for name in _PEEPHOLES if self.use_peepholes else ():
            make_vector(self, name, h, where, init or _fill_diagonal)
        if self.num_proj is not None:
            make_kernel(self, "projection_kernel", h, self.num_proj, where, init)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Take x [rows, I] and the state; give h' and the new state."""
        self._open(x, state)
        c, h = state if self.state_is_tuple else split_state(state, self.num_units)
        i, j, f, o = joint(x, h, self.kernel, self.bias).chunk(4, dim=1)
        if self.use_peepholes:
            i = i + self.w_i_diag * c
            f = f + self.w_f_diag * c
        c = torch.sigmoid(f + self.forget_bias) * c + torch.sigmoid(i) * self.activation(j)
        c = _clip(c, self.cell_clip)
        if self.use_peepholes:
            o = o + self.w_o_diag * c
        h = torch.sigmoid(o) * self.activation(c)
        if self.num_proj is not None:
            h = _clip(h @ self.projection_kernel, self.proj_clip)
        return h, LSTMStateTuple(c, h) if self.state_is_tuple else torch.cat([c, h], 1)


class BasicLSTMCell(LSTMCell):
    """The long short-term memory without options; see `LSTMCell` for the formula.

    Args:
        num_units: H, features of c and h.
        forget_bias: added at run time; it is not in the bias, nor in a checkpoint.
        state_is_tuple: False: one state [B, 2H], c then h.
        activation, reuse, name, dtype: as for `LSTMCell`.

    Source: Zaremba et al., arXiv:1409.2329; TensorFlow 1, ``tf.nn.rnn_cell.BasicLSTMCell``.

    >>> BasicLSTMCell(4).state_size
    LSTMStateTuple(c=4, h=4)
    """

    scope = "basic_lstm_cell"

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_units,
            forget_bias=forget_bias,
            state_is_tuple=state_is_tuple,
            activation=activation,
            reuse=reuse,
            name=name,
            dtype=dtype,
        )


def joint(x: Tensor, h: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return [x, h] kernel + bias without joining them: the part of x need not stay in the loop."""
    product = x @ kernel[: x.shape[1]] + h @ kernel[x.shape[1] :]
    return product if bias is None else product + bias


def split_state(state: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the first ``size`` features and the others."""
    return state[:, :size], state[:, size:]


def _fill_diagonal(vector: Tensor) -> None:
    bound = (3.0 / max(len(vector), 1)) ** 0.5
    nn.init.uniform_(vector, -bound, bound)


def _clip(value: Tensor, limit: float | None) -> Tensor:
    return value if limit is None else value.clamp(-limit, limit)


def _check_clip(argument: str, limit: float | None) -> float | None:
    if limit is None:
        return None
    return check_number(argument, limit, "a number above 0, or None", lambda number: number > 0)
