"""Open a data file of any supported format, whole or as a stream."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np

from unpad.data.delimited import read_delimited
from unpad.data.errors import DataError
from unpad.data.jsonl import read_jsonl
from unpad.data.lines import Lines, arriving, pieces, read_text
from unpad.data.parquet import read_parquet
from unpad.data.roles import Roles
from unpad.data.table import (
    SequenceTable,
    concatenate,
    number_lists,
)

FORMATS = (".parquet", ".jsonl", ".csv", ".tsv", ".txt")
CHUNK = 1024
"""Sequences read at a time: a stream holds no more than this many."""


def read(path: str | Path, roles: Roles | None = None) -> SequenceTable:
    r"""All sequences of a Parquet, JSONL, CSV, TSV or text file (all but Parquet also ``.gz``).

    ``roles`` names columns; what it leaves open is found by the rules of `unpad.data.roles`.
    Raises `DataError` (file, place, column, remedy); an empty sequence is a row of length 0.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.jsonl"
    >>> _ = path.write_text('{"x": [1, 2, 3], "label": "up"}\n{"x": [], "label": "none"}\n')
    >>> table = read(path)
    >>> table.numbers()[1].tolist(), table.strings("label")
    ([0, 3, 3], ['up', 'none'])
    """
    tables = list(_tables(path, roles or Roles(), stream=False))
    if not any(len(t) for t in tables):
        raise DataError(path, "no sequence in the file", "write at least one row")
    return concatenate(_same_width(tables))


def stream(path: str | Path, roles: Roles | None = None) -> Iterator[SequenceTable]:
    """The sequences of a file in pieces of about `CHUNK`, in order, in constant memory.

    In files with one row a time step the steps of a sequence must stand together. The path "-" is
    standard input: JSONL where its first line starts with "{", else one text a line. There a piece
    is what has arrived, so that a program at the other end need not close the pipe to be answered.
    """
    if str(path) == "-":
        return _standard_input(roles or Roles())
    return _tables(path, roles or Roles(), stream=True)


def _standard_input(roles: Roles) -> Iterator[SequenceTable]:
    name, coming = "standard input", arriving(sys.stdin.buffer)
    held: list[Lines] = []
    start = b""
    while not start and (piece := next(coming, None)) is not None:
        held.append(piece)
        start = next((line.lstrip() for _, line in piece if line.strip()), b"")
    lines = chain(held, coming)
    return read_jsonl(lines, name, roles) if start.startswith(b"{") else read_text(lines, name)


def _tables(path: str | Path, roles: Roles, *, stream: bool) -> Iterator[SequenceTable]:
    name, kind = str(path), _format(path)
    if kind == ".parquet":
        yield from read_parquet(name, roles, CHUNK, stream=stream)
        return
    with _open(path) as file:
        try:
            if kind == ".jsonl":
                yield from read_jsonl(pieces(file, CHUNK), name, roles)
            elif kind == ".txt":
                yield from read_text(pieces(file, CHUNK), name)
            else:
                yield from read_delimited(file, name, roles, tab=kind == ".tsv", stream=stream)
        except (EOFError, gzip.BadGzipFile) as error:
            raise DataError(path, f"broken gzip file ({error})", "copy it again") from None


def _format(path: str | Path) -> str:
    suffixes = [s.lower() for s in Path(path).suffixes]
    compressed = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if compressed else suffixes)[-1:]
    found = {".json": ".jsonl", ".ndjson": ".jsonl"}.get(kind[0], kind[0]) if kind else ""
    if not Path(path).is_file():
        raise DataError(path, _no_file(Path(path)), "give the path of a data file")
    if found not in FORMATS or (compressed and found == ".parquet"):
        raise DataError(
            path,
            "unknown format",
            f"name it {', '.join(FORMATS)} (all but Parquet also with .gz)",
        )
    return found


def _no_file(path: Path) -> str:
    if path.is_dir():
        return "the file is a folder"
    return "it is a device or a pipe, no file" if path.exists() else "the file does not exist"


def _open(path: str | Path) -> IO[bytes]:
    if str(path).lower().endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"))  # pyright: ignore[reportArgumentType]
    return Path(path).open("rb")


def _same_width(tables: list[SequenceTable]) -> list[SequenceTable]:
    """Give pieces that hold only empty sequences the feature count of the others."""
    filled = [t for t in tables if t.kind == "numbers" and t.numbers()[1][-1] > 0]
    if not filled:
        return tables
    width = filled[0].feature_count
    return [t if t.feature_count == width else _widened(t, width) for t in tables]


def _widened(table: SequenceTable, width: int) -> SequenceTable:
    values, offsets = table.numbers()
    if len(values):
        raise DataError(
            table.source.path,
            f"{table.feature_count} features a step, before it was {width}",
            "every step needs the same number of features",
            place=table.place(int(np.flatnonzero(np.diff(offsets))[0])),
            column=table.source.column,
        )
    column = number_lists(np.zeros((0, width), np.float32), offsets)
    at = table.table.schema.get_field_index("sequence")
    return SequenceTable(table.kind, table.table.set_column(at, "sequence", column), table.source)
