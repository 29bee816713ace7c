"""What an argument may be: checked where it comes in, refused by its name."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unpad.compiler.trace import autocast_enabled
from unpad.engine.precision import PRECISIONS
from unpad.errors import ArgumentError, ArgumentTypeError, quoted


def is_number(value: Any, kind: type = numbers.Real) -> bool:
    """Whether this is a number, NumPy's included; a bool means that arguments were shifted."""
    return isinstance(value, kind) and not isinstance(value, bool)


def check_size(argument: str, value: Any, *, least: int = 1) -> int:
    """Return a number of features or layers."""
    allowed = f"an int of {least} or more"
    if not is_number(value, numbers.Integral):
        widths = argument == "hidden_size" and isinstance(value, (list, tuple))
        remedy = (
            "for a width each layer use Recurrent([cell, cell])"
            if widths
            else "give a whole number"
        )
        raise ArgumentTypeError(argument, quoted(value), allowed, remedy)
    if value < least:
        raise ArgumentError(argument, value, allowed, "give a larger number")
    return int(value)


def check_flag(argument: str, value: Any) -> bool:
    """Refuse what is not a bool: a number here means that arguments were shifted."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(argument, quoted(value), "True or False", "check the order")
    return value


def check_number(
    argument: str, value: Any, allowed: str, allows: Callable[[float], bool] = math.isfinite
) -> float:
    """Return a number that a condition allows; ``allowed`` is the condition in words."""
    if not is_number(value):
        raise ArgumentTypeError(argument, quoted(value), allowed, "give a number")
    if not allows(value):
        raise ArgumentError(argument, value, allowed, "give another number")
    return float(value)


def as_numbers(argument: str, given: Any) -> Tensor:
    """Return a tensor, without its gradient, or an array or list of numbers as a tensor."""
    if isinstance(given, Tensor):
        return given.detach()
    try:
        array = np.array(given)
    except ValueError as ragged:
        raise ArgumentError(
            argument, given, "an array, all its rows of one length", "pad or cut the rows"
        ) from ragged
    if array.dtype.kind not in "biufc":
        raise ArgumentTypeError(
            argument, quoted(given), "a tensor or array of numbers", "convert it"
        )
    return torch.as_tensor(array)


def check_rate(argument: str, rate: Any) -> float:
    """Return a rate within [0, 1] as a float."""
    if not is_number(rate):
        raise ArgumentTypeError(argument, quoted(rate), "a number from 0 to 1", "give a share")
    if not 0.0 <= rate <= 1.0:
        raise ArgumentError(argument, rate, "0 to 1", "give the share that is to be dropped")
    return float(rate)


def check_memory(value: Any) -> str | int:
    """Return how much a layer may keep for its backward pass: "fast", "lean" or bytes."""
    allowed = '"fast", "lean" or a number of bytes'
    if is_number(value, numbers.Integral):
        if value < 1:
            raise ArgumentError("memory", value, allowed, "give a number of bytes above 0")
        return int(value)
    if not isinstance(value, str):
        raise ArgumentTypeError("memory", value, allowed, "give whole bytes, such as 64 << 20")
    if value not in ("fast", "lean"):
        raise ArgumentError("memory", quoted(value), allowed, "choose one of them")
    return value


def check_precision(value: Any) -> str | None:
    """Return the precision of products, or None where the tensors and autocast say it."""
    if value is None or value in PRECISIONS:
        return value
    allowed = '"float32", "bfloat16" or None'
    if isinstance(value, torch.dtype):
        raise ArgumentTypeError("precision", value, allowed, "give the name as a string")
    raise ArgumentError("precision", quoted(value), allowed, "choose one of them")


def check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return one of a few words."""
    if value not in choices:
        raise ArgumentError(argument, quoted(value), " or ".join(map(repr, choices)), "choose one")
    return value


def check_dtype(dtype: Any) -> None:
    """Refuse what parameters and states cannot be made of."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ArgumentTypeError(
            "dtype", quoted(dtype), "a floating dtype, or None", "use torch.float32"
        )


def check_like(argument: str, given: Any, like: Tensor) -> None:
    """Refuse what cannot be multiplied with parameters, of which ``like`` is one."""
    if not isinstance(given, Tensor):
        raise ArgumentTypeError(
            argument, quoted(given), "a tensor", "convert it with torch.as_tensor"
        )
    if given.layout != torch.strided:
        raise ArgumentTypeError(argument, f"{given.layout}", "a dense tensor", "use .to_dense()")
    if given.dtype != like.dtype and not autocast_enabled(given.device.type):
        remedy = f"convert it: {argument}.to({like.dtype})"
        if given.is_floating_point():
            remedy += f", or the module: .to({given.dtype})"
        elif not given.is_complex() and argument.startswith("input"):
            remedy += "; numbers of words or classes go through nn.Embedding first"
        raise ArgumentError(
            argument, f"{given.dtype}", f"{like.dtype}, the dtype of the parameters", remedy
        )
    if given.device != like.device:
        raise ArgumentError(
            argument,
            f"a tensor on {given.device}",
            f"{like.device}, where the parameters are",
            f"move one of them: {argument}.to('{like.device}')",
        )
