"""Parquet: list columns (no copy), texts, or one row a time step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from unpad.data.errors import DataError, Made, good_first
from unpad.data.labels import label_text
from unpad.data.roles import Form, Roles, detect
from unpad.data.steps import Steps, group_steps, stream_steps
from unpad.data.table import SequenceTable, Source, make_table, number_lists

pc: Any = pyarrow.compute  # its functions are made at run time: no type checker sees them

_EMPTY = "write an empty list for a sequence of length 0"


def read_parquet(path: str, asked: Roles, chunk: int, *, stream: bool) -> Iterator[SequenceTable]:
    """Tables of at most ``chunk`` rows each."""
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise DataError(
            path, f"no Parquet file ({error})", "write it with a Parquet writer"
        ) from None
    forms: dict[str, Form] = {f.name: _form(f.type) for f in file.schema_arrow}
    roles = detect(forms, asked, path=path, steps=True)
    names = [roles.sequence, *roles.features, roles.label, roles.id, roles.time, roles.split]
    batches = file.iter_batches(batch_size=chunk, columns=[n for n in names if n is not None])
    rows = _numbered(batches)
    if not roles.long or forms[roles.features[0]] == "list":
        yield from (t for row, batch in rows for t in _good(_whole, batch, row, roles, path))
        return
    steps = (s for row, batch in rows for s in _good(_steps, batch, row, roles, path))
    if stream:
        yield from stream_steps(steps)
    elif parts := list(steps):
        yield group_steps(Steps.join(parts))


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    row = 0
    for batch in batches:
        yield row, batch
        row += batch.num_rows


def _good(
    make: Callable[[pa.RecordBatch, int, Roles, str], Made],
    batch: pa.RecordBatch,
    row: int,
    roles: Roles,
    path: str,
) -> Iterator[Made]:
    rows = range(row, row + batch.num_rows)
    return good_first(rows, lambda n: make(batch.slice(0, n), row, roles, path))


def _form(kind: pa.DataType) -> Form:
    if _is_list(kind):
        return "list"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return "text"
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return "number" if number else "other"


def _is_list(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


def _whole(batch: pa.RecordBatch, row: int, roles: Roles, path: str) -> SequenceTable:
    columns = [roles.sequence] if roles.sequence is not None else list(roles.features)
    source = Source(path, "row", ", ".join(columns), tuple(columns) if len(columns) > 1 else ())
    for name in columns:
        _check_present(batch.column(name), name, row, path, "sequence", _EMPTY)
    optional = {
        role: _strings(batch.column(name), name, row, path)
        for role, name in (("label", roles.label), ("id", roles.id), ("split", roles.split))
        if name is not None
    }
    places = range(row, row + batch.num_rows)
    first = batch.column(columns[0])
    if not _is_list(first.type):
        return make_table("text", first.cast(pa.string()), source, places=places, **optional)
    if pa.types.is_string(first.type.value_type) or pa.types.is_large_string(first.type.value_type):
        return make_table(
            "tokens", _tokens(first, columns[0], row, path), source, places=places, **optional
        )
    parts = [_numbers(batch.column(name), name, row, path) for name in columns]
    offsets = parts[0][1]
    for name, (_, others) in zip(columns, parts, strict=True):
        if not np.array_equal(others, offsets):
            at = int(np.flatnonzero(others != offsets)[0]) - 1
            raise DataError(
                path,
                f"its length differs from that of column `{columns[0]}`",
                "give all feature columns of a row the same number of steps",
                place=f"row {row + at}",
                column=name,
            )
    values = parts[0][0] if len(parts) == 1 else np.concatenate([v for v, _ in parts], axis=1)
    return make_table("numbers", number_lists(values, offsets), source, places=places, **optional)


def _check_present(
    column: pa.Array, name: str, row: int, path: str, what: str, remedy: str
) -> None:
    if column.null_count == 0:
        return
    at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
    raise DataError(path, f"the {what} is null", remedy, place=f"row {row + at}", column=name)


def _strings(column: pa.Array, name: str, row: int, path: str) -> pa.Array:
    """Labels, ids or splits as text, by the rule of `label_text`."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_floating(column.type):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return column.cast(pa.string())
    places = (f"row {row + i}" for i in range(len(column)))
    cells = zip(column.to_pylist(), places, strict=True)
    return pa.array([label_text(cell, path, place, name) for cell, place in cells], pa.string())


def _tokens(column: pa.Array, name: str, row: int, path: str) -> pa.Array:
    tokens = column.cast(pa.large_list(pa.string()))
    nulls = np.flatnonzero(tokens.flatten().is_null().to_numpy(zero_copy_only=False))
    if len(nulls):
        offsets = tokens.offsets.to_numpy() - tokens.offsets[0].as_py()
        at = int(np.searchsorted(offsets, nulls[0], side="right")) - 1
        problem = f"token {nulls[0] - offsets[at]} is null"
        raise DataError(
            path, problem, "write a text or leave it out", place=f"row {row + at}", column=name
        )
    return tokens


def _numbers(column: pa.Array, name: str, row: int, path: str) -> tuple[Any, Any]:
    """Values [T, F] float32 and offsets [B+1] of a list column; F from the inner lists."""
    column = column.cast(pa.large_list(column.type.value_type))
    offsets = column.offsets.to_numpy()
    steps = column.flatten()
    width = 1
    if _is_list(steps.type):
        width = _width(steps, offsets - offsets[0], name, row, path)
        steps = steps.flatten()
    if not (pa.types.is_integer(steps.type) or pa.types.is_floating(steps.type)):
        raise DataError(
            path, f"it holds {steps.type}", "features are numbers, tokens are texts", column=name
        )
    values = steps.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    return values.astype(np.float32, copy=False).reshape(-1, width), offsets - offsets[0]


def _width(steps: pa.Array, offsets: Any, name: str, row: int, path: str) -> int:
    if pa.types.is_fixed_size_list(steps.type):
        return int(steps.type.list_size)
    widths = pc.list_value_length(steps).fill_null(-1).to_numpy()
    if len(widths) == 0:
        return 1
    other = np.flatnonzero(widths != widths[0])
    if len(other):
        at = int(np.searchsorted(offsets, other[0], side="right")) - 1
        raise DataError(
            path,
            f"step {other[0] - offsets[at]} has {widths[other[0]]} features, not {widths[0]}",
            "every step needs the same number of features",
            place=f"row {row + at}",
            column=name,
        )
    return int(widths[0])


def _steps(batch: pa.RecordBatch, row: int, roles: Roles, path: str) -> Steps:
    def text(name: str | None) -> pa.Array | None:
        return None if name is None else _strings(batch.column(name), name, row, path)

    if roles.id is not None:
        _check_present(batch.column(roles.id), roles.id, row, path, "id", "name its sequence")
    return Steps.from_columns(
        [batch.column(f) for f in roles.features],
        source=Source(path, "row", ", ".join(roles.features), roles.features),
        first_place=row,
        identity=text(roles.id),
        label=text(roles.label),
        time=None if roles.time is None else batch.column(roles.time),
        names={"label": roles.label or "", "time": roles.time or "", "id": roles.id or ""},
    )
