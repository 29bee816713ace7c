"""CSV and TSV: one row a time step (long), or one row a text.

Cells are read as text and converted here, so that a bad cell is reported with its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.csv as arrow_csv

from unpad.data.errors import DataError, good_first
from unpad.data.roles import NAMES, Form, Roles, detect
from unpad.data.steps import Steps, group_steps, stream_steps
from unpad.data.table import SequenceTable, Source, make_table

BLOCK_BYTES = 1 << 22
"""Bytes of one read: what a streaming pass over a file of any size holds in memory."""


def read_delimited(
    file: IO[bytes], path: str, asked: Roles, *, tab: bool, stream: bool
) -> Iterator[SequenceTable]:
    """Tables of a CSV or TSV file (``tab``); whole at once, or block by block with ``stream``."""
    first = _peek(file)
    if not first.strip():
        raise DataError(path, "the file is empty", "write a header line and rows")
    delimiter = "\t" if tab else _delimiter(first)
    names = _tab_columns(first, asked) if tab else None
    blocks = _blocks(file, path, delimiter, names)
    block = next(blocks, None)
    if block is None:
        return
    roles = detect(_forms(block), asked, path=path, steps=True)
    start = 1 if names else 2  # the line of the first row: after the header, where there is one
    rows = _numbered(block, blocks, start)
    if not roles.long:
        yield from (_texts(b, line, roles, path) for line, b in rows)
        return
    steps = (s for line, b in rows for s in _good_steps(b, line, roles, path))
    yield from stream_steps(steps) if stream else [group_steps(Steps.join(list(steps)))]


def _peek(file: IO[bytes]) -> bytes:
    first = file.readline()
    file.seek(0)
    return first


def _delimiter(header: bytes) -> str:
    return max(",;\t", key=lambda d: header.count(d.encode()))


def _tab_columns(first: bytes, asked: Roles) -> list[str] | None:
    """Names for a TSV without a header; None where its first line is one.

    That is where it names two roles (label and text, say), or a column of the options.
    """
    cells = [c.strip().lower() for c in first.decode("utf-8", "replace").rstrip("\r\n").split("\t")]
    roles = {role for role, names in NAMES.items() if set(cells) & set(names)}
    named = {c.lower() for c in (asked.sequence, asked.label, asked.id, *asked.features) if c}
    if len(roles) > 1 or set(cells) & named:
        return None
    return ["label", "text", *(f"column{i}" for i in range(2, len(cells)))][: max(len(cells), 2)]


def _blocks(
    file: IO[bytes], path: str, delimiter: str, names: list[str] | None
) -> Iterator[pa.RecordBatch]:
    tab = delimiter == "\t"
    try:
        header = names or _header(file, delimiter)
        for name in {n for n in header if header.count(n) > 1}:
            raise DataError(
                path, f"two columns are named {name!r}", "give every column a name of its own"
            )
        reader = arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=names
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=delimiter, quote_char=False if tab else '"', newlines_in_values=not tab
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types={n: pa.string() for n in header}, strings_can_be_null=False
            ),
        )
        yield from reader
    except pa.ArrowInvalid as error:
        text = str(error).replace("CSV parse error: ", "").splitlines()[0]
        raise DataError(
            path, f"cannot be read ({text})", "every row needs the columns of the header, in UTF-8"
        ) from None


def _header(file: IO[bytes], delimiter: str) -> list[str]:
    import csv

    line = _peek(file).decode("utf-8-sig", "replace").rstrip("\r\n")
    return next(csv.reader([line], delimiter=delimiter))


def _numbered(
    block: pa.RecordBatch, rest: Iterator[pa.RecordBatch], start: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    yield start, block
    line = start + block.num_rows
    for following in rest:
        yield line, following
        line += following.num_rows


def _forms(block: pa.RecordBatch) -> dict[str, Form]:
    return {n: "number" if _is_number(block.column(n)) else "text" for n in block.schema.names}


def _is_number(column: pa.Array) -> bool:
    cells = [c for c in column.slice(0, 1000).to_pylist() if c]
    return bool(cells) and all(_number(c) is not None for c in cells)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _texts(block: pa.RecordBatch, line: int, roles: Roles, path: str) -> SequenceTable:
    assert roles.sequence is not None
    source = Source(path, "line", roles.sequence)
    optional = {
        role: block.column(name)
        for role, name in (("label", roles.label), ("id", roles.id), ("split", roles.split))
        if name is not None
    }
    places = range(line, line + block.num_rows)
    return make_table("text", block.column(roles.sequence), source, places=places, **optional)


def _good_steps(block: pa.RecordBatch, line: int, roles: Roles, path: str) -> Iterator[Steps]:
    lines = range(line, line + block.num_rows)
    return good_first(lines, lambda n: _steps(block.slice(0, n), line, roles, path))


def _steps(block: pa.RecordBatch, line: int, roles: Roles, path: str) -> Steps:
    def text(name: str | None) -> pa.Array | None:
        return None if name is None else block.column(name)

    return Steps.from_columns(
        [block.column(f) for f in roles.features],
        source=Source(path, "line", ", ".join(roles.features), roles.features),
        first_place=line,
        identity=text(roles.id),
        label=text(roles.label),
        time=text(roles.time),
        names={"label": roles.label or "", "time": roles.time or "", "id": roles.id or ""},
    )
