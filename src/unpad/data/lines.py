"""Files of lines: numbered lines in pieces, and the reader of plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

import pyarrow as pa

from unpad.data.errors import DataError, good_first
from unpad.data.table import SequenceTable, Source, make_table

Lines = list[tuple[int, bytes]]
"""Lines with their numbers, counted from 1."""
BLOCK_BYTES = 1 << 16
"""The most that is taken from a pipe at once."""


def pieces(file: IO[bytes], size: int) -> Iterator[Lines]:
    """The lines of a file, ``size`` at a time."""
    numbered = enumerate(file, start=1)
    while piece := list(islice(numbered, size)):
        yield piece


def arriving(pipe: IO[bytes]) -> Iterator[Lines]:
    r"""The lines of a pipe as they come: a piece is whatever whole lines are there.

    >>> import io
    >>> list(arriving(io.BytesIO(b"one\ntwo")))
    [[(1, b'one')], [(2, b'two')]]
    """
    number, parts = 1, [b""]  # parts: what has come of the line to be
    while block := pipe.read1(BLOCK_BYTES):  # pyright: ignore[reportAttributeAccessIssue]
        first, *others = block.split(b"\n")
        parts.append(first)
        lines: Lines = []
        for begin in others:
            lines.append((number, b"".join(parts)))
            number, parts = number + 1, [begin]
        if lines:
            yield lines
    if last := b"".join(parts):
        yield [(number, last)]


def read_text(pieces: Iterable[Lines], path: str) -> Iterator[SequenceTable]:
    """One text a line, no labels."""
    for piece in pieces:
        places = [number for number, _ in piece]
        yield from good_first(places, lambda n, piece=piece: _texts(piece[:n], path))


def _texts(lines: Lines, path: str) -> SequenceTable:
    texts = [_decode(line, number, path) for number, line in lines]
    places = [number for number, _ in lines]
    column = pa.array(texts, pa.string())
    return make_table("text", column, Source(path, "line", "text"), places=places)


def _decode(line: bytes, number: int, path: str) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            path, f"no UTF-8 ({error})", "convert it to UTF-8", place=f"line {number}"
        ) from None
