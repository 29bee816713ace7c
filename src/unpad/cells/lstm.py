"""The long short-term memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unpad.cells.arguments import check_flag, check_number, check_size
from unpad.cells.gated import GatedCell
from unpad.cells.initialize import Init, check_forget_bias, set_forget_bias
from unpad.errors import ArgumentError


class LSTMCell(GatedCell):
    """The long short-term memory::

        i = sigmoid(W_ii x + b_ii + W_hi h + b_hi [+ w_ci * c])
        f = sigmoid(W_if x + b_if + W_hf h + b_hf [+ w_cf * c])
        g = tanh(W_ig x + b_ig + W_hg h + b_hg)
        c' = clip(f * c + i * g, cell_clip)
        o = sigmoid(W_io x + b_io + W_ho h + b_ho [+ w_co * c'])
        h' = o * tanh(c')  [h' = clip(W_hr h', proj_clip)]

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of c.
        bias: whether it has the two biases.
        forget_bias: what both biases of the forget gate add up to at the start, exactly: one is set
            to it, the other to 0. None leaves both to ``init``.
        peepholes: gates look at c through the vectors ``weight_ci``, ``weight_cf``, ``weight_co``.
        proj_size: P, features of h after a projection by ``weight_hr`` [P, H]; 0: none, h has H.
        cell_clip: c' is held within [-cell_clip, cell_clip]; None: free.
        proj_clip: likewise for the projected h'; needs ``proj_size``.
        init: ``"torch"``, ``"xavier"``, ``"orthogonal"`` or a function(name, parameter).

    The state is (h, c) and h is the output. Parameters are named and shaped as in torch.nn, gates
    in the order i, f, g, o.

    Source: Hochreiter and Schmidhuber (1997); forget gate, peepholes: Gers et al. (2000, 2002);
    projection and clipping: Sak et al., arXiv:1402.1128.

    >>> cell = LSTMCell(3, 4, forget_bias=1.0)
    >>> output, (h, c) = cell(torch.zeros(2, 3), cell.initial_state(2))
    >>> output.shape, c.shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    weight_hr: Tensor
    weight_ci: Tensor
    weight_cf: Tensor
    weight_co: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        forget_bias: float | None = None,
        peepholes: bool = False,
        proj_size: int = 0,
        cell_clip: float | None = None,
        proj_clip: float | None = None,
        init: Init = "torch",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        proj_size = check_size("proj_size", proj_size, least=0)
        super().__init__(
            input_size,
            hidden_size,
            4,
            recurrent_size=proj_size or hidden_size,
            bias=bias,
            init=init,
            device=device,
            dtype=dtype,
        )
        self.forget_bias = check_forget_bias(forget_bias, bias)
        self.peepholes = check_flag("peepholes", peepholes)
        self.proj_size = proj_size
        self.cell_clip = _check_clip("cell_clip", cell_clip)
        self.proj_clip = _check_clip("proj_clip", proj_clip)
        if proj_clip is not None and not proj_size:
            raise ArgumentError(
                "proj_clip", proj_clip, "None without proj_size", "use cell_clip, or set proj_size"
            )
        self.state_size = (proj_size or self.hidden_size, self.hidden_size)
        if proj_size:
            self._add("weight_hr", proj_size, hidden_size, device=device, dtype=dtype)
        for name in ("weight_ci", "weight_cf", "weight_co") if peepholes else ():
            self._add(name, hidden_size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start afresh, by ``init`` and ``forget_bias``."""
        super().reset_parameters()
        if self.forget_bias is not None and self.bias_ih is not None and self.bias_hh is not None:
            set_forget_bias(self.forget_bias, self.bias_ih, self.bias_hh, self.hidden_size)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Take x [rows, I] and (h, c) [rows, P or H], [rows, H]; give the output and new state."""
        h, c = state
        total = functional.linear(x, self.weight_ih, self.bias_ih) + functional.linear(
            h, self.weight_hh, self.bias_hh
        )
        i, f, g, o = total.chunk(4, dim=1)
        if self.peepholes:
            i = i + self.weight_ci * c
            f = f + self.weight_cf * c
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        c = _clip(c, self.cell_clip)
        if self.peepholes:
            o = o + self.weight_co * c
        h = torch.sigmoid(o) * torch.tanh(c)
        if self.proj_size:
            h = _clip(functional.linear(h, self.weight_hr), self.proj_clip)
        return h, (h, c)

    def extra_repr(self) -> str:
        """Give the sizes and what is not the default."""
        options = ("forget_bias", "peepholes", "proj_size", "cell_clip", "proj_clip")
        chosen = [f", {name}={getattr(self, name)}" for name in options if getattr(self, name)]
        return super().extra_repr() + "".join(chosen)


def _clip(value: Tensor, limit: float | None) -> Tensor:
    return value if limit is None else value.clamp(-limit, limit)


def _check_clip(argument: str, limit: float | None) -> float | None:
    if limit is None:
        return None
    return check_number(argument, limit, "a number above 0, or None", lambda number: number > 0)
