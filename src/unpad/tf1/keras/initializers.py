"""How weights start, by the names that Keras gives it; arrays are [input, output]."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from unpad.errors import ArgumentError, ArgumentTypeError, quoted

Initializer: TypeAlias = Callable[[Tensor], Any]
"""Fills a tensor in place."""

# A normal distribution cut at two deviations has 0.88 of the deviation of the whole one.
_TRUNCATED = 0.87962566103423978


def _scaled(weight: Tensor, *, scale: float, mode: str, normal: bool) -> None:
    """Fill by variance ``scale / fan``: Keras's VarianceScaling; fans are [input, output]."""
    rows, columns = weight.shape[0], weight.shape[-1]
    fan = {"in": rows, "mean": (rows + columns) / 2}[mode]
    variance = scale / max(1.0, fan)
    if normal:
        deviation = math.sqrt(variance) / _TRUNCATED
        nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    else:
        limit = math.sqrt(3.0 * variance)
        nn.init.uniform_(weight, -limit, limit)


NAMED: dict[str, Initializer] = {
    "glorot_normal": partial(_scaled, scale=1.0, mode="mean", normal=True),
    "glorot_uniform": partial(_scaled, scale=1.0, mode="mean", normal=False),
    "he_normal": partial(_scaled, scale=2.0, mode="in", normal=True),
    "he_uniform": partial(_scaled, scale=2.0, mode="in", normal=False),
    "identity": nn.init.eye_,
    "lecun_normal": partial(_scaled, scale=1.0, mode="in", normal=True),
    "lecun_uniform": partial(_scaled, scale=1.0, mode="in", normal=False),
    "ones": nn.init.ones_,
    "orthogonal": nn.init.orthogonal_,
    "random_normal": partial(nn.init.normal_, std=0.05),
    "random_uniform": partial(nn.init.uniform_, a=-0.05, b=0.05),
    "zeros": nn.init.zeros_,
}


def initializer_of(argument: str, given: Any) -> Initializer:
    """Return what a name stands for, or a function that fills a tensor in place, as it is.

    Raises:
        ArgumentError: an unknown name.
        ArgumentTypeError: neither a name nor a function.

    >>> initializer_of("bias_initializer", "zeros") is nn.init.zeros_
    True
    """
    if callable(given):
        return cast("Initializer", given)
    allowed = f"a function that fills a tensor in place, or one of {', '.join(NAMED)}"
    if not isinstance(given, str):
        raise ArgumentTypeError(argument, given, allowed, "such as torch.nn.init.orthogonal_")
    if given not in NAMED:
        raise ArgumentError(argument, quoted(given), allowed, "choose one of them")
    return NAMED[given]
