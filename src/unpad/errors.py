"""The errors for a user's mistake: argument, value, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch

_MOST_ELEMENTS = 16
_MOST_CHARACTERS = 120


class UnpadError(Exception):
    """Base of every error that Unpad raises on purpose.

    >>> from unpad.ragged import Ragged
    >>> try:
    ...     Ragged.from_list(5)
    ... except UnpadError as error:
    ...     print(type(error).__name__)
    ArgumentTypeError
    """


class _RefusalError(UnpadError):
    """An error made of the four things that a reader needs; survives pickling between workers."""

    def __init__(self, argument: str, value: object, allowed: str, remedy: str) -> None:
        super().__init__(argument, brief(value), allowed, remedy)

    def __str__(self) -> str:
        argument, value, allowed, remedy = self.args
        return f"argument `{argument}`: got {value}; allowed: {allowed}; remedy: {remedy}"


class ArgumentError(_RefusalError, ValueError):
    """An argument has a value that is not allowed.

    >>> print(ArgumentError("lengths", [3, -1], "lengths >= 0", "use 0 for an empty sequence"))
    argument `lengths`: got [3, -1]; allowed: lengths >= 0; remedy: use 0 for an empty sequence
    """


class ArgumentTypeError(_RefusalError, TypeError):
    """An argument has a type, or a dtype, that is not allowed.

    >>> print(ArgumentTypeError("lengths", [0.5], "integers", "round them to integers"))
    argument `lengths`: got [0.5]; allowed: integers; remedy: round them to integers
    """


class RowIndexError(_RefusalError, IndexError):
    """A row was asked for that the batch does not have.

    >>> print(RowIndexError("index", 4, "-3 to 2", "look at len(ragged)"))
    argument `index`: got 4; allowed: -3 to 2; remedy: look at len(ragged)
    """


@contextmanager
def renamed(argument: str, name: str) -> Generator[None]:
    """Have a refusal call an argument, or an entry of it, by the name that a caller knows.

    >>> with renamed("lengths", "sequence_length"):
    ...     raise ArgumentError("lengths", [3, -1], "lengths >= 0", "use 0")
    Traceback (most recent call last):
    unpad.errors.ArgumentError: argument `sequence_length`: got [3, -1]; allowed: lengths >= 0; ...
    """
    try:
        yield
    except _RefusalError as refused:
        found, *rest = refused.args
        if re.split(r"\W", found)[0] != argument:
            raise
        raise type(refused)(name + found[len(argument) :], *rest) from None


def brief(value: object) -> str:
    """Describe a value in a line: tensors and arrays by type and shape, a few integers in full.

    >>> brief(torch.tensor([1, -2]))
    'int64 tensor of shape [2]: [1, -2]'
    >>> brief(np.zeros((1, 2)))
    'float64 array of shape [1, 2]'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} tensor of shape {list(value.shape)}{_elements(value)}"
    if isinstance(value, np.ndarray):
        shown = f": {value.tolist()}" if value.dtype.kind in "iub" and _is_few(value.size) else ""
        return f"{value.dtype} array of shape {list(value.shape)}{shown}"
    if isinstance(value, (tuple, list)):
        return _shorten(_sequence(cast("Sequence[object]", value)))
    return _shorten(repr(value))


def quoted(value: object) -> object:
    """Put a value that is a string in quotes; a bare string in an error is a description.

    >>> print(ArgumentTypeError("size", quoted("3"), "an int", "give a whole number"))
    argument `size`: got '3'; allowed: an int; remedy: give a whole number
    """
    return repr(value) if isinstance(value, str) else value


def _sequence(values: Sequence[object]) -> str:
    """Return what `repr` does, but for tensors and arrays in it, which are described."""
    first = values[: _MOST_ELEMENTS + 1]
    if not [v for v in first if isinstance(v, (torch.Tensor, np.ndarray))]:
        return repr(values)
    inner = ", ".join(brief(v) if not isinstance(v, str) else repr(v) for v in first)
    return f"({inner})" if isinstance(values, tuple) else f"[{inner}]"


def _is_few(count: int) -> bool:
    return count <= _MOST_ELEMENTS


def _elements(tensor: torch.Tensor) -> str:
    """Return ': [..]' for a few integers. Real numbers tell a reader nothing, in many digits."""
    dense = tensor.layout == torch.strided and not tensor.is_meta
    if not dense or tensor.is_floating_point() or tensor.is_complex():
        return ""
    if not _is_few(tensor.numel()):
        return ""
    return f": {tensor.detach().cpu().tolist()}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
