"""Protocol buffers' wire format, as far as TensorFlow's files need it: no message definitions.

Source: "Encoding", Protocol Buffers documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from unpad.importers.errors import MalformedError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}

Value = int | memoryview


def varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    r"""A number of up to 64 bits at a place, and the place after it.

    >>> varint(b"\xac\x02", 0)
    (300, 2)
    """
    value = 0
    for place in range(10):
        if at + place >= len(data):
            raise MalformedError("it ends within a number")
        octet = data[at + place]
        value |= (octet & 127) << 7 * place
        if octet < 128:
            if value >> 64:
                break
            return value, at + place + 1
    raise MalformedError("a number has more than 64 bits")


def signed(value: int) -> int:
    """An int64 as the wire has it, in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(message: bytes | memoryview) -> Iterator[tuple[int, int, Value]]:
    r"""The fields of a message: number, wire type and value; nothing is copied.

    >>> [(n, k, v if k == VARINT else bytes(v)) for n, k, v in fields(b"\x08\x05\x12\x01a")]
    [(1, 0, 5), (2, 2, b'a')]
    """
    data, at = memoryview(message), 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0 or kind not in (VARINT, FIXED64, BYTES, FIXED32):
            raise MalformedError(f"a field has the unknown wire type {kind} or the number 0")
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = varint(data, at)
        else:
            size = _SIZES[kind]
        if size > len(data) - at:
            raise MalformedError(f"a field of {size} bytes goes beyond the end of its message")
        part = data[at : at + size]
        at += size
        yield number, kind, part if kind == BYTES else int.from_bytes(part, "little")


def messages(message: bytes | memoryview, number: int) -> Iterator[memoryview]:
    """The messages or strings in a repeated field."""
    for found, _, value in fields(message):
        if found == number:
            if not isinstance(value, memoryview):
                raise MalformedError(f"field {number} holds a number where a message is due")
            yield value


def message_in(message: bytes | memoryview, number: int) -> memoryview:
    """The message in a field; the last one counts, an absent one is empty."""
    return ([memoryview(b""), *messages(message, number)])[-1]


def number_in(message: bytes | memoryview, number: int) -> int:
    """The number in a field; the last one counts, an absent one is 0."""
    last = 0
    for found, _, value in fields(message):
        if found == number:
            if not isinstance(value, int):
                raise MalformedError(f"field {number} holds bytes where a number is due")
            last = value
    return last


def text(value: memoryview | bytes) -> str:
    """UTF-8."""
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise MalformedError("a name in it is not UTF-8") from error


def text_in(message: bytes | memoryview, number: int) -> str:
    """The string in a field."""
    return text(message_in(message, number))
