"""What the cells with torch.nn's parameters share: their names, shapes and start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_dtype, check_flag, check_size
from unpad.cells.initialize import Init, check_init, initialize
from unpad.cells.step import CheckedCell


class GatedCell(CheckedCell):
    """A cell with ``weight_ih`` [G*H, I], ``weight_hh`` [G*H, R] and two biases [G*H].

    The biases are ``bias_ih`` and ``bias_hh``, both None without bias. G is the number of gates, H
    the hidden size, R the width of the recurrent output (H, or the size of a projection).
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gates: int,
        *,
        recurrent_size: int,
        bias: bool,
        init: Init,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        check_init(init)
        check_dtype(dtype)
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.bias = check_flag("bias", bias)
        self.init = init
        rows = gates * self.hidden_size
        self._add("weight_ih", rows, self.input_size, device=device, dtype=dtype)
        self._add("weight_hh", rows, recurrent_size, device=device, dtype=dtype)
        for name in ("bias_ih", "bias_hh"):
            if bias:
                self._add(name, rows, device=device, dtype=dtype)
            else:
                self.register_parameter(name, None)

    def _add(self, name: str, *shape: int, device: Any, dtype: Any) -> None:
        self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Start afresh, by the scheme that ``init`` names."""
        for name, parameter in self.named_parameters(recurse=False):
            initialize(name, parameter, self.hidden_size, self.init)

    def extra_repr(self) -> str:
        """Give the sizes and what is not the default."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
