"""The sorted table that a bundle's index is: LevelDB's format, every block's checksum verified.

Blocks of (key, value) entries, an index block that says where they lie, a footer that says where
the index block lies. Whatever the bytes claim, the work stays linear in their number.

Source: LevelDB, doc/table_format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from unpad.importers.crc32c import crc32c, mask
from unpad.importers.errors import MalformedError
from unpad.importers.wire import varint

_FOOTER = 48
_TRAILER = 5  # kind of compression, checksum
_MAGIC = 0xDB4775248B80FB57
_KINDS = {1: "snappy", 2: "zstd", 4: "zlib"}
# Keys share prefixes, so that a few bytes can stand for a long key: this bounds their sum.
_KEY_BYTES_PER_BYTE = 16


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Every key with its value, in the order of the keys, which rises."""
    if len(data) < _FOOTER:
        raise MalformedError(f"it has {len(data)} bytes, and an index has {_FOOTER} or more")
    if int.from_bytes(data[-8:], "little") != _MAGIC:
        raise MalformedError("it does not end as an index does (its magic number is wrong)")
    footer = data[-_FOOTER:]
    _, at = _handle(footer, 0)
    (start, size), _ = _handle(footer, at)
    table: dict[bytes, bytes] = {}
    end, last, budget = 0, None, _KEY_BYTES_PER_BYTE * len(data) + (1 << 20)
    for _, value in _entries(_block(data, start, size), budget):
        (start, size), _ = _handle(value, 0)
        if start < end:
            raise MalformedError("two of its blocks overlap")
        end = start + size + _TRAILER
        for key, value in _entries(_block(data, start, size), budget):
            if last is not None and key <= last:
                raise MalformedError("its keys are not in order")
            budget -= len(key)
            table[key], last = value, key
    return table


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Where a block lies: offset and size."""
    start, at = varint(data, at)
    size, at = varint(data, at)
    return (start, size), at


def _block(data: bytes, start: int, size: int) -> bytes:
    """A block's bytes, with its checksum verified."""
    end = start + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise MalformedError(f"a block at byte {start} of {size} bytes does not lie in it")
    if mask(crc32c(data[start : end + 1])) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise MalformedError(f"the checksum of its block at byte {start} is wrong")
    if data[end]:
        kind = _KINDS.get(data[end], f"kind {data[end]}")
        raise MalformedError(
            f"its block at byte {start} is compressed ({kind})",
            "save the checkpoint again with TensorFlow, which writes indices uncompressed",
        )
    return data[start:end]


def _entries(block: bytes, budget: int) -> Iterator[tuple[bytes, bytes]]:
    """A block's keys and values; each key is a part of the one before it and an end of its own."""
    if len(block) < 4:
        raise MalformedError("one of its blocks is too short")
    restarts = struct.unpack("<I", block[-4:])[0]
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise MalformedError(f"one of its blocks claims {restarts} restart points")
    key, at = b"", 0
    while at < end:
        shared, at = varint(block, at)
        unshared, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + unshared + length > end:
            raise MalformedError("an entry of it goes beyond its block")
        key = key[:shared] + block[at : at + unshared]
        budget -= len(key)
        if budget < 0:
            raise MalformedError("its keys are longer than a file of this size can mean")
        at += unshared
        yield key, block[at : at + length]
        at += length
