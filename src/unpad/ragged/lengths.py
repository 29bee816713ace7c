"""Lengths and offsets: what is accepted, and the index arithmetic that everything else is built on.

Lengths and offsets are small and drive Python-side decisions, so they live on the CPU as int64,
wherever the values are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError

_MASK = "count what a mask keeps (mask.sum(1)), or use Ragged.from_mask"
Integers: TypeAlias = "list[int] | tuple[int, ...] | npt.NDArray[Any] | Tensor"


def as_lengths(
    lengths: Integers,
    *,
    batch_size: int | None = None,
    max_length: int | None = None,
    argument: str = "lengths",
) -> Tensor:
    """Check lengths and return them as an int64 CPU tensor [B].

    Args:
        lengths: one non-negative integer a sequence: a list, tuple, NumPy array or tensor of any
            integer dtype on any device. 0 is a length.
        batch_size: how many lengths there must be; None accepts any number.
        max_length: the longest allowed length; None sets no limit.
        argument: the name that an error calls the argument by.

    Returns:
        int64 CPU tensor [B].

    Raises:
        ArgumentTypeError: floats, bools, or anything that is not a row of integers.
        ArgumentError: a negative length, one over `max_length`, a wrong count or rank.

    >>> as_lengths([2, 0, 3], batch_size=3)
    tensor([2, 0, 3])
    """
    checked = as_integers(lengths, argument=argument)
    if batch_size is not None and len(checked) != batch_size:
        raise ArgumentError(
            argument,
            f"{len(checked)} lengths",
            f"one length for each of the {batch_size} sequences of the batch",
            "pass as many lengths as the batch has rows (check batch_first or time_major)",
        )
    _check_range(checked, lengths, max_length, argument)
    return checked


def as_integers(numbers: Integers, *, argument: str) -> Tensor:
    """Return a list, tuple, array or tensor of integers as an int64 CPU tensor [N].

    Raises ArgumentTypeError for floats and bools, ArgumentError for a rank other than one. An
    empty one of any dtype is accepted: it holds no number that could be wrong.

    >>> as_integers((1, 2), argument="index")
    tensor([1, 2])
    """
    found = _as_tensor(numbers, argument)
    if found.is_meta:
        raise ArgumentError(
            argument,
            numbers,
            "integers that are there: the meta device has shapes alone",
            "make them on the CPU, or pass a list",
        )
    if found.layout is not torch.strided:
        raise ArgumentTypeError(argument, numbers, "dense integers", f"use {argument}.to_dense()")
    if found.dim() != 1:
        raise ArgumentError(
            argument, numbers, "one dimension", "pass a flat list of integers, one a sequence"
        )
    if found.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise ArgumentTypeError(argument, numbers, "integers", _whole(numbers, found, argument))
    return found.detach().to(device="cpu", dtype=torch.int64)


def _whole(numbers: object, found: Tensor, argument: str) -> str:
    """What to do about numbers that are no integers."""
    if found.dtype == torch.bool:
        return _MASK
    if isinstance(numbers, Tensor):
        return f"convert them: {argument}.to(torch.int64)"
    if isinstance(numbers, np.ndarray):
        return f"convert them: {argument}.astype('int64')"
    return f"convert them: [int(n) for n in {argument}]"


def _as_tensor(numbers: object, argument: str) -> Tensor:
    if isinstance(numbers, Tensor):
        return numbers
    if isinstance(numbers, np.ndarray):
        return _from_array(numbers, argument)
    if isinstance(numbers, (list, tuple, range)):
        # NumPy's bool and int are told apart by numpy itself; a Python list of mixed bools and
        # ints would be silently promoted, so bools are looked for first.
        if any(isinstance(number, (bool, np.bool_)) for number in numbers):
            raise ArgumentTypeError(argument, numbers, "integers", _MASK)
        return _from_list(numbers, argument)
    raise ArgumentTypeError(
        argument,
        numbers,
        "a list, tuple, NumPy array or tensor of integers",
        "wrap a single sequence's number in a list",
    )


def _from_list(numbers: list[Any] | tuple[Any, ...] | range, argument: str) -> Tensor:
    entries: list[Any] = list(numbers)
    plain = [entry.item() if _is_scalar(entry) else entry for entry in entries]
    if any(isinstance(number, (list, tuple, Tensor, np.ndarray)) for number in plain):
        raise ArgumentError(
            argument, numbers, "one dimension", "pass a flat list of integers, one a sequence"
        )
    return _from_array(np.asarray(plain), argument)


def _is_scalar(number: object) -> bool:
    return isinstance(number, (Tensor, np.ndarray)) and number.ndim == 0


def refuse_masked(array: object, argument: str) -> None:
    """Raise ArgumentError for an array of which entries are masked: torch takes no mask along.

    >>> refuse_masked(np.ma.masked_array([1, 2], mask=False), "x")
    """
    if np.ma.is_masked(array):
        raise ArgumentError(
            argument, array, "an array of which nothing is masked", "fill it: array.filled(value)"
        )


def _from_array(array: npt.NDArray[Any], argument: str) -> Tensor:
    refuse_masked(array, argument)
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "u" and _overflows(array)):
        shown = array if array.size > 16 else array.tolist()
        raise ArgumentTypeError(
            argument, shown, "integers that fit in 64 bits", "pass a flat list of integers"
        )
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    # A copy: the caller may go on changing the array, and torch warns of read-only ones.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _overflows(array: npt.NDArray[Any]) -> bool:
    return array.size > 0 and int(array.max()) > np.iinfo(np.int64).max


def _check_range(checked: Tensor, given: object, max_length: int | None, argument: str) -> None:
    if checked.numel() == 0:
        return
    shortest, longest = (int(bound) for bound in checked.aminmax())
    if shortest < 0:
        raise ArgumentError(argument, given, "lengths >= 0", "use 0 for an empty sequence")
    if max_length is not None and longest > max_length:
        row = int(checked.argmax())
        raise ArgumentError(
            argument,
            f"{longest} for row {row}",
            f"0 to {max_length}, as many as the padded rows have room for",
            "shorten the length, or pad the rows to more (check batch_first or time_major)",
        )


def as_offsets(offsets: Integers, num_tokens: int) -> Tensor:
    """Check offsets [B+1] against the number of tokens and return them as int64 on the CPU.

    >>> as_offsets([0, 2, 2, 5], num_tokens=5)
    tensor([0, 2, 2, 5])
    """
    checked = as_integers(offsets, argument="offsets")
    if len(checked) == 0 or int(checked[0]) != 0 or int(checked[-1]) != num_tokens:
        raise ArgumentError(
            "offsets",
            offsets,
            f"B + 1 integers from 0 to {num_tokens}, the number of tokens in `values`",
            "start with 0 and end with values.shape[0], or use Ragged.from_lengths",
        )
    if bool((checked.diff() < 0).any()):
        raise ArgumentError(
            "offsets", offsets, "integers that never decrease", "use Ragged.from_lengths"
        )
    return checked


def offsets_of(lengths: Tensor) -> Tensor:
    """Return the offsets [B+1] of lengths [B].

    >>> offsets_of(torch.tensor([2, 0, 3]))
    tensor([0, 2, 2, 5])
    """
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(lengths, 0, out=offsets[1:])
    if int(offsets.min()) < 0:  # the first sum that is too large wraps around to a negative one
        raise ArgumentError("lengths", lengths, "fewer than 2**63 tokens", "look at the lengths")
    return offsets


def spread(per_row: Tensor, offsets: Tensor) -> Tensor:
    """Repeat an entry a row [B] for every token of the row: [T].

    >>> spread(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3]))
    tensor([7, 7, 9])
    """
    counts = offsets.diff()
    # torch trusts the output size, and would write past it: offsets may have been changed in place.
    if len(counts) and (int(offsets[0]) != 0 or int(counts.min()) < 0):
        raise ArgumentError(
            "offsets",
            offsets,
            "integers from 0 on that never decrease",
            "make a new Ragged instead of changing the offsets of one in place",
        )
    return torch.repeat_interleave(per_row, counts, output_size=int(offsets[-1]))


def rows_of(offsets: Tensor) -> Tensor:
    """Return the row [T] that each token belongs to.

    >>> rows_of(torch.tensor([0, 2, 2, 3]))
    tensor([0, 0, 2])
    """
    return spread(torch.arange(len(offsets) - 1, device="cpu"), offsets)


def ranges(begins: Tensor, offsets: Tensor) -> Tensor:
    """Return begin, begin + 1, ... for every row, as many as the row has tokens: [T].

    >>> ranges(torch.tensor([10, 20]), torch.tensor([0, 3, 5]))
    tensor([10, 11, 12, 20, 21])
    """
    return torch.arange(int(offsets[-1]), device="cpu") + spread(begins - offsets[:-1], offsets)


def padded_positions(offsets: Tensor, steps: int, *, batch_first: bool) -> Tensor:
    """Return where each token [T] lies in a padded batch [B, S] (or [S, B]), flattened.

    >>> padded_positions(torch.tensor([0, 2, 3]), 4, batch_first=True)
    tensor([0, 1, 4])
    >>> padded_positions(torch.tensor([0, 2, 3]), 4, batch_first=False)
    tensor([0, 2, 1])
    """
    rows = torch.arange(len(offsets) - 1, device="cpu")
    if batch_first:
        return ranges(rows * steps, offsets)
    tokens = torch.arange(int(offsets[-1]), device="cpu")
    return tokens * len(rows) + spread(rows - offsets[:-1] * len(rows), offsets)
