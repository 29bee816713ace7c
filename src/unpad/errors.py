"""The errors for a user's mistake: argument, value, what is allowed, what to do."""

from __future__ import annotations

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


def brief(value: object) -> str:
    """Describe a value in a line: small ones in full, large ones by type, shape and first elements.

    >>> brief(torch.tensor([1, -2]))
    'int64 tensor of shape [2]: [1, -2]'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} tensor of shape {list(value.shape)}{_elements(value)}"
    if isinstance(value, np.ndarray):
        return _shorten(f"{value.dtype} array of shape {list(value.shape)}: {value.tolist()!r}")
    return _shorten(repr(value))


def quoted(value: object) -> object:
    """Put a value that is a string in quotes; a bare string in an error is a description.

    >>> print(ArgumentTypeError("size", quoted("3"), "an int", "give a whole number"))
    argument `size`: got '3'; allowed: an int; remedy: give a whole number
    """
    return repr(value) if isinstance(value, str) else value


def _elements(tensor: torch.Tensor) -> str:
    """Return ': [..]' for a small dense tensor, nothing for one that is large or has no data."""
    if tensor.numel() > _MOST_ELEMENTS or tensor.layout != torch.strided or tensor.is_meta:
        return ""
    return f": {tensor.detach().cpu().tolist()}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
