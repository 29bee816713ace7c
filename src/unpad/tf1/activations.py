"""Activations by the names that TensorFlow 1 and Keras 2 give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn import functional

from unpad.errors import ArgumentError, ArgumentTypeError, quoted

Activation: TypeAlias = Callable[[Tensor], Tensor]


def linear(x: Tensor) -> Tensor:
    """Give x itself."""
    return x


def hard_sigmoid(x: Tensor) -> Tensor:
    """Keras 2's ``clip(0.2 x + 0.5, 0, 1)``; torch's and Keras 3's is ``relu6(x + 3) / 6``.

    >>> hard_sigmoid(torch.tensor([-3.0, 0.0, 1.0])).tolist()
    [0.0, 0.5, 0.699999988079071]
    """
    return (0.2 * x + 0.5).clamp(0.0, 1.0)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the features."""
    return torch.softmax(x, dim=-1)


NAMED: dict[str, Activation] = {
    "elu": functional.elu,
    "exponential": torch.exp,
    "gelu": functional.gelu,
    "hard_sigmoid": hard_sigmoid,
    "linear": linear,
    "mish": functional.mish,
    "relu": torch.relu,
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "softmax": softmax,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "swish": functional.silu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


def activation_of(argument: str, given: Any) -> Activation:
    """Return the function that a name, None (linear) or a function stands for.

    Raises:
        ArgumentError: a name that Keras 2 does not know.
        ArgumentTypeError: neither a name nor a function.

    >>> activation_of("activation", "tanh") is torch.tanh
    True
    """
    if given is None:
        return linear
    if callable(given):
        return cast("Activation", given)
    remedy = "choose one of them, or give a function of a tensor"
    allowed = f"None, a function, or one of {', '.join(NAMED)}"
    if not isinstance(given, str):
        raise ArgumentTypeError(argument, given, allowed, remedy)
    if given not in NAMED:
        raise ArgumentError(argument, quoted(given), allowed, remedy)
    return NAMED[given]
