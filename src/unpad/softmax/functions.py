"""The full softmax's loss as a function, for weights that live elsewhere."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unpad.cells.arguments import check_choice, check_like, check_precision
from unpad.compiler.trace import without_autocast
from unpad.engine.choose import rounds
from unpad.engine.precision import autocast_rounds
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.jit import opaque
from unpad.softmax import loss
from unpad.softmax.arguments import (
    REDUCTIONS,
    check_index,
    check_smoothing,
    check_temperature,
    open_hidden,
    open_target,
)
from unpad.softmax.reference import Head


@opaque
def linear_cross_entropy(
    hidden: Any,
    target: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    temperature: float = 1.0,
    precision: str | None = None,
) -> Any:
    """Return the cross entropy of a linear layer's logits, which are never kept.

    ``-log softmax((W h + b) / temperature)[target]`` for each token.

    Args:
        hidden: [..., H] of the weights' dtype, or a Ragged of tokens [H].
        target: integers [...], or a Ragged of the same lengths; ``ignore_index`` is none.
        weight: [V, H], a row a word.
        bias: [V], or None.
        ignore_index, reduction, label_smoothing: as in ``torch.nn.functional.cross_entropy``, but
            that the mean over no token is 0.
        temperature: what the logits are divided by.
        precision: "bfloat16" rounds the operands of products; None: as the tensors and autocast
            say.

    Returns:
        A scalar; for "none" the losses in the form of ``target``, 0 for ignored tokens.

    Raises:
        ArgumentError, ArgumentTypeError: shapes, dtypes and targets that do not fit.

    Gradients flow to hidden, weight and bias, any number of times. `unpad.nn.LinearCrossEntropy` is
    the module.

    >>> import torch
    >>> hidden, weight = torch.randn(5, 8), torch.randn(100, 8)
    >>> target = torch.randint(100, (5,))
    >>> wanted = torch.nn.functional.cross_entropy(hidden @ weight.t(), target)
    >>> torch.allclose(linear_cross_entropy(hidden, target, weight), wanted)
    True
    """
    if not isinstance(weight, Tensor) or weight.dim() != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError("weight", weight, "a tensor [V, H]", "give a Linear's weight")
    if bias is not None:
        check_like("bias", bias, weight)
        if bias.shape != weight.shape[:1]:
            raise ArgumentError(
                "bias", f"shape {list(bias.shape)}", f"[{len(weight)}], a number a word", "reshape"
            )
    rows = open_hidden(hidden, weight)
    words = open_target(target, rows, len(weight), check_index(ignore_index))
    check_choice("reduction", reduction, REDUCTIONS)
    head = Head(
        weight,
        bias,
        temperature=check_temperature(temperature),
        label_smoothing=check_smoothing(label_smoothing),
        rounds=rounds(rows.values, check_precision(precision)),
    )
    narrow = autocast_rounds(rows.values.device.type)
    values = rows.values.to(weight.dtype) if narrow else rows.values
    with without_autocast(values.device.type):
        found = loss.reduced(
            values, words, head, ignore_index=ignore_index, reduction=reduction, importance=None
        )
    return rows.close(found) if reduction == "none" else found
