"""Activations by their TensorFlow names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from unpad.errors import ArgumentError, ArgumentTypeError, quoted

Activation = Callable[[Tensor], Tensor]

NAMED: dict[str, Activation] = {
    "elu": functional.elu,
    "exponential": torch.exp,
    "linear": lambda x: x,
    "relu": torch.relu,
    "relu6": lambda x: x.clamp(0.0, 6.0),
    "selu": functional.selu,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "softsign": lambda x: x / (1.0 + x.abs()),
    "tanh": torch.tanh,
}


def activation_of(argument: str, given: Any, default: Activation) -> Activation:
    """Return an activation: a function of a tensor, a name of `NAMED`, or None for the default.

    >>> activation_of("activation", "relu", torch.tanh) is torch.relu
    True
    """
    if given is None:
        return default
    if isinstance(given, str):
        if given not in NAMED:
            raise ArgumentError(
                argument, quoted(given), f"one of {', '.join(NAMED)}", "or give a function"
            )
        return NAMED[given]
    if not callable(given):
        raise ArgumentTypeError(
            argument, given, "a function of a tensor, or its name", "such as torch.tanh or 'tanh'"
        )
    return cast("Activation", given)
