"""What products are rounded to: "float32", or "bfloat16" operands with float32 sums.

In bfloat16 both operands of every product (a weight and a row; for a weight's gradient two rows)
are rounded to bfloat16, to the nearest, ties to even. Products are exact in float32 then, and sums,
states, saved values and everything between products stay float32. Rounding has the derivative 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unpad.compiler.trace import autocast_enabled

PRECISIONS = ("float32", "bfloat16")


def autocast_rounds(device: str) -> bool:
    """Whether ``torch.autocast(dtype=torch.bfloat16)`` is at work on the CPU.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_rounds("cpu"), autocast_rounds("cuda")
    (True, False)
    """
    inside = device == "cpu" and autocast_enabled(device)
    return inside and torch.get_autocast_dtype(device) is torch.bfloat16


def rounded(value: Tensor) -> Tensor:
    """Return the nearest numbers of bfloat16, in the tensor's own dtype.

    >>> rounded(torch.tensor([1.0, 1.01]))
    tensor([1.0000, 1.0078])
    """
    return value.to(torch.bfloat16).to(value.dtype)


class _Product(torch.autograd.Function):
    """left · right of rounded operands, in the derivatives of every order too."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return rounded(left) @ rounded(right)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return product(grads[0], right.t(), "bfloat16"), product(left.t(), grads[0], "bfloat16")


def product(left: Tensor, right: Tensor, precision: str) -> Tensor:
    """left [T, K] · right [K, N] in a precision, differentiable any number of times."""
    if precision == "float32":
        return left @ right
    result: Any = _Product.apply(left, right)  # type: ignore[no-untyped-call]
    return result
