"""How a cell's parameters start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_number
from unpad.errors import ArgumentError, quoted

Init: TypeAlias = str | Callable[[str, Tensor], object]
"""``"torch"``, ``"xavier"``, ``"orthogonal"``, or a function of a parameter's name and its tensor,
which it fills in place."""

SCHEMES = ("torch", "xavier", "orthogonal")


def check_init(init: Init) -> None:
    """Refuse an unknown scheme."""
    if not callable(init) and init not in SCHEMES:
        raise ArgumentError(
            "init",
            quoted(init),
            f"{', '.join(map(repr, SCHEMES))} or a function(name, parameter)",
            "use 'torch' for torch.nn's numbers",
        )


def check_forget_bias(value: float | None, bias: bool) -> float | None:
    """Refuse a start of the forget gate's bias where there is none, and what is no number."""
    if value is None:
        return None
    if not bias:
        raise ArgumentError("forget_bias", value, "None where bias=False", "leave bias=True")
    return check_number("forget_bias", value, "a finite number, or None")


@torch.no_grad()
def initialize(name: str, parameter: Tensor, hidden_size: int, init: Init) -> None:
    """Fill one parameter of a cell in place.

    ``"torch"`` draws everything from U(-1/sqrt(H), 1/sqrt(H)), as torch.nn's recurrent layers do.
    ``"xavier"`` and ``"orthogonal"`` draw input matrices by Glorot and Bengio (2010) and set biases
    to 0; ``"orthogonal"`` makes each gate's recurrent matrix orthogonal (Saxe et al. 2014).
    Vectors that are no bias (peepholes) start as in torch's scheme.
    """
    if callable(init):
        init(name, parameter)
        return
    if init != "torch" and name.startswith("bias"):
        nn.init.zeros_(parameter)
    elif init == "torch" or parameter.dim() < 2:
        bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
        nn.init.uniform_(parameter, -bound, bound)
    else:
        for gate in _gates(name, parameter, hidden_size):
            _fill_matrix(name, gate, init)


def _gates(name: str, parameter: Tensor, hidden_size: int) -> tuple[Tensor, ...]:
    """The matrices of the gates, which lie above each other."""
    return (parameter,) if name.startswith("weight_hr") else parameter.split(hidden_size)


def _fill_matrix(name: str, matrix: Tensor, init: str) -> None:
    if init == "orthogonal" and not name.startswith("weight_ih"):
        nn.init.orthogonal_(matrix)
    else:
        nn.init.xavier_uniform_(matrix)


@torch.no_grad()
def set_forget_bias(value: float, bias: Tensor, other_bias: Tensor, hidden_size: int) -> None:
    """Make the sum of both biases of the forget gate (the second of the four) exactly ``value``."""
    gate = slice(hidden_size, 2 * hidden_size)
    bias[gate] = value
    other_bias[gate] = 0.0
