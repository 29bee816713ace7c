"""Partitioned variables: the slices' keys in the index, and the variable put together."""

from __future__ import annotations

import math

import numpy as np

from unpad.importers.artefact import Array
from unpad.importers.errors import MalformedError
from unpad.importers.wire import fields, messages, signed

Extents = tuple[tuple[int, int], ...]  # start and length of each dimension; length -1: all of it


def extents_in(message: memoryview, dimensions: int) -> Extents:
    """The extents of a TensorSliceProto, one for each dimension of the variable."""
    found = list[tuple[int, int]]()
    for extent in messages(message, 1):
        start, length = 0, -1
        for number, _, value in fields(extent):
            if not isinstance(value, int):
                raise MalformedError("an extent of a slice holds no number")
            if number == 1:
                start = signed(value)
            elif number == 2:
                length = signed(value)
        found.append((start, length))
    if len(found) != dimensions:
        raise MalformedError(f"a slice of {len(found)} dimensions is of a tensor of {dimensions}")
    if any(start < 0 or length < -1 or (length == -1 and start) for start, length in found):
        raise MalformedError(f"a slice has the impossible extents {found}")
    return tuple(found)


def fill(shape: tuple[int, ...], parts: list[tuple[Extents, Array]], name: str) -> Array:
    """The variable of its slices, which must cover each element once.

    >>> half = np.ones((1, 2), np.float32)
    >>> fill((2, 2), [(((0, 1), (0, -1)), half), (((1, 1), (0, -1)), 2 * half)], "v").tolist()
    [[1.0, 1.0], [2.0, 2.0]]
    """
    # As many elements as were read: what was claimed alone gets no memory.
    if math.prod(shape) != sum(part.size for _, part in parts):
        raise MalformedError(f"the slices of {name!r} are not as large as it is")
    whole, seen = np.empty(shape, parts[0][1].dtype), np.zeros(shape, bool)
    for extents, part in parts:
        sizes = zip(extents, shape, strict=True)
        lengths = tuple(size if length < 0 else length for (_, length), size in sizes)
        where = tuple(
            slice(start, start + length)
            for (start, _), length in zip(extents, lengths, strict=True)
        )
        if part.shape != lengths or whole[where].shape != lengths or seen[where].any():
            raise MalformedError(f"the slices of {name!r} overlap, or don't fit its shape")
        whole[where], seen[where] = part, True
    return whole


def slice_key(name: str, extents: Extents) -> bytes:
    """A slice's key in the index: numbers and strings whose bytes sort as they do.

    Source: EncodeTensorNameSlice in tensorflow/core/util/saved_tensor_slice_util.cc, OrderedCode in
    core/lib/strings/ordered_code.cc.

    >>> slice_key("v", ((14, 14), (0, -1))).hex()
    '0076000101028e8e807f'
    """
    escaped = name.encode().replace(b"\0", b"\0\xff")  # UTF-8 has no 0xff to be escaped
    key = b"\0" + escaped + b"\0\1" + _unsigned(len(extents))
    return key + b"".join(_signed(number) for extent in extents for number in extent)


def _unsigned(value: int) -> bytes:
    """The number of bytes, then the bytes, the largest first."""
    count = (value.bit_length() + 7) // 8
    return bytes([count]) + value.to_bytes(count, "big")


def _signed(value: int) -> bytes:
    """As many bytes as it takes; the first bits say how many, and flip for negative numbers."""
    magnitude = ~value if value < 0 else value
    count = magnitude.bit_length() // 7 + 1
    header = ((1 << count) - 1) << (16 - count)
    octets = bytearray(value.to_bytes(max(count, 2), "big", signed=True)[-count:])
    octets[0] ^= header >> 8
    if count > 1:
        octets[1] ^= header & 0xFF
    return bytes(octets)
