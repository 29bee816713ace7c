"""JSON lines: one object a line, the sequence as [T], [T][F], a list of tokens or a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa

from unpad.data.errors import DataError, good_first
from unpad.data.labels import label_text
from unpad.data.lines import Lines
from unpad.data.roles import Form, Roles, detect
from unpad.data.table import (
    Floats,
    Kind,
    SequenceTable,
    Source,
    make_table,
    number_lists,
    token_lists,
)

Row = tuple[int, dict[str, Any]]


def read_jsonl(pieces: Iterable[Lines], path: str, asked: Roles) -> Iterator[SequenceTable]:
    """A table for each piece. Blank lines are skipped; columns follow the first piece.

    Of a piece with a bad line, the lines before it are a table of their own; then comes its error.
    """
    roles: Roles | None = None
    shape: tuple[Kind, int] | None = None

    def table_of(lines: Lines) -> SequenceTable:
        nonlocal roles, shape
        rows = [(number, _object(line, number, path)) for number, line in lines]
        found = roles or detect(_forms(rows), asked, path=path)
        table = _table(rows, found, path, shape)
        roles, shape = found, shape or (table.kind, table.feature_count)
        return table

    for piece in pieces:
        lines = [(number, line) for number, line in piece if line.strip()]
        numbers = [number for number, _ in lines]
        yield from good_first(numbers, lambda n, lines=lines: table_of(lines[:n]))


def _object(line: bytes, number: int, path: str) -> dict[str, Any]:
    place = f"line {number}"
    try:
        row: object = json.loads(line)
        if b"\\u" in line:  # half of a pair of escapes is no character
            json.dumps(row, ensure_ascii=False).encode()
    except (json.JSONDecodeError, UnicodeError, RecursionError) as error:
        raise DataError(
            path, f"not valid JSON ({error})", "write one JSON object a line", place=place
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            path,
            f"the line is a {type(row).__name__}, not an object",
            'write lines like {"label": "a", "x": [[0.1, 0.2], [0.3, 0.4]]}',
            place=place,
        )
    return cast("dict[str, Any]", row)


def _forms(rows: list[Row]) -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for _, row in rows:
        for key, value in row.items():
            if key not in forms or forms[key] == "other":
                forms[key] = _form(value)
    return forms


def _form(value: object) -> Form:
    if isinstance(value, list):
        return "list"
    if isinstance(value, str):
        return "text"
    return "number" if isinstance(value, (int, float)) else "other"


def _table(
    rows: list[Row], roles: Roles, path: str, shape: tuple[Kind, int] | None
) -> SequenceTable:
    columns = [roles.sequence] if roles.sequence is not None else list(roles.features)
    shown = roles.sequence or ", ".join(columns)
    cells = [[_cell(row, number, c, path) for c in columns] for number, row in rows]
    kind = _kind([c for row in cells for c in row], shape)
    source = Source(path, "line", shown, roles.features if roles.sequence is None else ())
    places = [number for number, _ in rows]
    sequences = _sequences(kind, cells, source, places, shape)
    optional = {
        role: [label_text(row.get(column), path, f"line {number}", column) for number, row in rows]
        for role, column in (("label", roles.label), ("id", roles.id), ("split", roles.split))
        if column is not None
    }
    return make_table(kind, sequences, source, places=places, **optional)


def _cell(row: dict[str, Any], number: int, column: str, path: str) -> Any:
    if row.get(column) is None:
        raise DataError(
            path,
            "the sequence is missing",
            "write [] for a sequence of length 0, or name the column with --sequence",
            place=f"line {number}",
            column=column,
        )
    return row[column]


def _kind(cells: list[Any], shape: tuple[Kind, int] | None) -> Kind:
    for cell in cells:
        if isinstance(cell, str):
            return "text"
        if isinstance(cell, list) and cell:
            return "tokens" if isinstance(cell[0], str) else "numbers"
    return shape[0] if shape else "numbers"


def _sequences(
    kind: Kind,
    cells: list[list[Any]],
    source: Source,
    places: list[int],
    shape: tuple[Kind, int] | None,
) -> pa.Array:
    if kind == "text":
        return pa.array(
            [_text(row[0], p, source) for row, p in zip(cells, places, strict=True)], pa.string()
        )
    if kind == "tokens":
        return token_lists(_tokens(row[0], p, source) for row, p in zip(cells, places, strict=True))
    arrays = [_channels(row, p, source) for row, p in zip(cells, places, strict=True)]
    width = next((a.shape[1] for a in arrays if len(a)), shape[1] if shape else 1)
    for array, place in zip(arrays, places, strict=True):
        if len(array) and array.shape[1] != width:
            raise _wrong(source, place, f"{array.shape[1]} features a step, not {width} as before")
    offsets = np.cumsum([0, *(len(a) for a in arrays)], dtype=np.int64)
    full = [a for a in arrays if len(a)]
    return number_lists(np.concatenate(full or [np.zeros((0, width), np.float32)]), offsets)


def _wrong(source: Source, place: int, problem: str) -> DataError:
    return DataError(
        source.path,
        problem,
        "a sequence is [T] or [T][F] numbers, a list of tokens or a text, alike in all lines",
        place=f"{source.unit} {place}",
        column=source.column,
    )


def _text(cell: Any, place: int, source: Source) -> str:
    if not isinstance(cell, str):
        raise _wrong(source, place, f"{cell!r:.60} is no text, and others are")
    return cell


def _tokens(cell: Any, place: int, source: Source) -> list[str]:
    tokens = cast("list[Any]", cell) if isinstance(cell, list) else [None]
    for token in tokens:
        if not isinstance(token, str):
            raise _wrong(source, place, f"{token!r:.60} is no token (a text), and others are")
    return cast("list[str]", tokens)


def _channels(cells: list[Any], place: int, source: Source) -> Floats:
    arrays = [_numbers(cell, place, source) for cell in cells]
    if len({len(a) for a in arrays}) > 1:
        raise _wrong(source, place, f"the columns have {[len(a) for a in arrays]} steps")
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def _numbers(cell: Any, place: int, source: Source) -> Floats:
    if cell == []:
        return np.zeros((0, 1), np.float32)
    try:
        array = np.asarray(cell)
    except ValueError:
        raise _wrong(source, place, _ragged_step(cell)) from None
    if array.dtype == object:  # JSON null: a gap, reported later as NaN with its step
        array = np.asarray(_gaps_as_nan(cell, place, source))
    if array.dtype.kind not in "iufb" or array.ndim not in (1, 2):
        raise _wrong(source, place, f"{str(cell)[:60]} is not a list of numbers")
    with np.errstate(over="ignore"):  # beyond float32 becomes inf, which is reported
        return array.astype(np.float32).reshape(len(array), -1)


def _ragged_step(cell: Any) -> str:
    steps = [len(step) if isinstance(step, list) else 1 for step in cell]
    step = next(t for t, n in enumerate(steps) if n != steps[0]) if len(set(steps)) > 1 else 0
    return f"step {step} has {steps[step]} features, step 0 has {steps[0]}"


def _gaps_as_nan(cell: Any, place: int, source: Source) -> list[Any]:
    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(v) for v in cast("list[Any]", value)]
        if value is None:
            return float("nan")
        if not isinstance(value, (int, float)):
            raise _wrong(source, place, f"{value!r:.60} is not a number")
        return float(value)

    return number(cell)
