"""Writes tensor bundles as TensorFlow does, and as nobody should, with checksums of its own."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch

NUMBERS = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8,
    "int64": 9, "bool": 10, "bfloat16": 14, "uint16": 17, "complex128": 18, "float16": 19,
    "uint32": 22, "uint64": 23, "float8_e5m2": 24, "float8_e4m3fn": 25,
}  # fmt: skip
TABLE = [0] * 256
for _octet in range(256):
    _crc = _octet
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    TABLE[_octet] = _crc


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for octet in data:
        crc = TABLE[(crc ^ octet) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def fixed(field: int, value: int) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<I", value)


def shape_of(shape: tuple[int, ...]) -> bytes:
    return b"".join(message(2, number(1, size)) for size in shape)


def entry(dtype: int, shape, *, shard=0, offset=0, size=0, crc=0, slices=()) -> bytes:
    return (
        number(1, dtype) + message(2, shape_of(shape)) + number(3, shard) + number(4, offset)
        + number(5, size) + fixed(6, crc) + b"".join(message(7, part) for part in slices)
    )  # fmt: skip


def slice_of(extents) -> bytes:
    return b"".join(
        message(1, number(1, start) + (number(2, length) if length >= 0 else b""))
        for start, length in extents
    )


def header(shards: int = 1, endianness: int = 0) -> bytes:
    return number(1, shards) + number(2, endianness) + message(3, number(1, 1))


def block(entries: list[tuple[bytes, bytes]], *, share: bool = True, restarts: int = 1) -> bytes:
    out, last = b"", b""
    for key, value in entries:
        shared = 0
        while share and shared < min(len(last), len(key)) and last[shared] == key[shared]:
            shared += 1
        out += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        last = key
    return out + struct.pack("<I", 0) * restarts + struct.pack("<I", restarts)


def signed(data: bytes, kind: int = 0) -> bytes:
    return data + bytes([kind]) + struct.pack("<I", masked(data + bytes([kind])))


def table(entries: list[tuple[bytes, bytes]], *, per_block: int = 7, kind: int = 0) -> bytes:
    """A table of blocks of a few entries each."""
    out, handles = b"", []
    for start in range(0, max(1, len(entries)), per_block):
        part = entries[start : start + per_block]
        data = block(part)
        handles.append((part[-1][0] if part else b"", varint(len(out)) + varint(len(data))))
        out += signed(data, kind)
    return finish(out, block(handles, share=False))


def finish(out: bytes, index: bytes) -> bytes:
    """The metaindex, the index and the footer behind the blocks."""
    meta = block([])
    handles = varint(len(out)) + varint(len(meta))
    out += signed(meta)
    handles += varint(len(out)) + varint(len(index))
    out += signed(index)
    return out + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def octets(value: np.ndarray, dtype: str) -> bytes:
    if not value.size:
        return b""
    if dtype == "bfloat16" or dtype.startswith("float8"):
        tensor = torch.from_numpy(np.array(value, np.float32)).to(getattr(torch, dtype))
        return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.asarray(value, np.dtype(dtype).newbyteorder("<")).tobytes()


def strings(items: list[bytes]) -> tuple[bytes, int]:
    """TensorFlow's bytes of a string tensor, and their checksum."""
    lengths = b"".join(struct.pack("<I", len(item)) for item in items)
    check = struct.pack("<I", masked(lengths))
    data = b"".join(varint(len(item)) for item in items) + check + b"".join(items)
    return data, masked(lengths + check + b"".join(items))


def write(prefix: Path, tensors: dict[str, tuple[np.ndarray, str]], *, shards: int = 1) -> None:
    """Whole tensors, dealt out to the shards in turn."""
    data, entries = [b""] * shards, [(b"", header(shards))]
    for turn, name in enumerate(sorted(tensors, key=str.encode)):
        value, dtype = tensors[name]
        shard = turn % shards
        if dtype == "string":
            part, crc = strings(list(value.reshape(-1)))
            what = 7
        else:
            part, what = octets(value, dtype), NUMBERS[dtype]
            crc = masked(part)
        place = {"shard": shard, "offset": len(data[shard]), "size": len(part), "crc": crc}
        entries.append((name.encode(), entry(what, value.shape, **place)))
        data[shard] += part
    save(prefix, entries, data)


def save(prefix: Path, entries: list[tuple[bytes, bytes]], data: list[bytes]) -> None:
    prefix.with_name(prefix.name + ".index").write_bytes(table(sorted(entries)))
    for shard, part in enumerate(data):
        name = f"{prefix.name}.data-{shard:05d}-of-{len(data):05d}"
        prefix.with_name(name).write_bytes(part)
