"""TensorFlow's numbers for dtypes, and arrays from their bytes.

Source: tensorflow/core/framework/types.proto.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from unpad.importers.artefact import Array
from unpad.importers.crc32c import crc32c, mask
from unpad.importers.errors import MalformedError
from unpad.importers.wire import varint

STRING = 7
_NUMPY = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32",
    23: "uint64",
}  # fmt: skip
# NumPy has no such types; torch has, and widens them exactly.
_TORCH = {14: "bfloat16", 24: "float8_e5m2", 25: "float8_e4m3fn"}
_OTHERS = {
    STRING: "string", 11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16",
    20: "resource", 21: "variant", 29: "int4", 30: "uint4",
}  # fmt: skip
_SIZES = {"bfloat16": 2, "float8_e5m2": 1, "float8_e4m3fn": 1}


def name_of(number: int) -> str:
    """A dtype's name.

    >>> name_of(14), name_of(99)
    ('bfloat16', 'dtype 99')
    """
    return _NUMPY.get(number) or _TORCH.get(number) or _OTHERS.get(number) or f"dtype {number}"


def is_readable(number: int) -> bool:
    """Whether arrays of this dtype can be made from bytes."""
    return number in _NUMPY or number in _TORCH or number == STRING


def item_size(number: int) -> int:
    """Bytes of one number of a readable dtype other than strings."""
    name = name_of(number)
    return _SIZES.get(name) or np.dtype(name).itemsize


def numbers(data: bytearray, number: int, shape: tuple[int, ...]) -> Array:
    """The array of little-endian bytes, which are as many as the shape wants."""
    if number in _TORCH:
        return widen(np.frombuffer(data, np.uint8), name_of(number)).reshape(shape)
    dtype = np.dtype(name_of(number)).newbyteorder("<")
    found = np.frombuffer(data, np.uint8) != 0 if number == 10 else np.frombuffer(data, dtype)
    return found.reshape(shape)


def widen(octets: Array, dtype: str) -> Array:
    """The float32 values of bytes that hold a type which NumPy lacks; exact.

    >>> widen(np.array([0x80, 0x3F, 0xC0, 0xBF], np.uint8), "bfloat16")
    array([ 1. , -1.5], dtype=float32)
    """
    if octets.size == 0:
        return np.zeros(0, np.float32)
    return torch.from_numpy(octets.copy()).view(getattr(torch, dtype)).float().numpy()


def strings(data: bytearray, shape: tuple[int, ...]) -> tuple[Array, int]:
    """The array of byte strings, and the checksum of them all before masking.

    The lengths stand first, then the checksum of the lengths (each as 4 bytes, or as 8 where it
    needs them), then the strings end to end.

    Source: WriteStringTensor in tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
    """
    count, at = math.prod(shape), 0
    if count > len(data):
        raise MalformedError(f"{count} strings cannot lie in {len(data)} bytes")
    lengths, summed = list[int](), bytearray()
    for _ in range(count):
        length, at = varint(data, at)
        lengths.append(length)
        summed += length.to_bytes(4 if length < 1 << 32 else 8, "little")
    crc = crc32c(summed)
    stored = bytes(data[at : at + 4])
    if mask(crc) != int.from_bytes(stored, "little") or len(stored) != 4:
        raise MalformedError("the checksum of its strings' lengths is wrong")
    at += 4
    if at + sum(lengths) != len(data):
        raise MalformedError("its strings are not as long as their bytes")
    found = np.empty(count, object)
    crc = crc32c(data[at:], crc32c(stored, crc))
    for place, length in enumerate(lengths):
        found[place] = bytes(data[at : at + length])
        at += length
    return found.reshape(shape), crc
