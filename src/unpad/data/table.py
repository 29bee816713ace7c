"""Sequences in Arrow: one row a sequence, the steps in a list column, no padding.

A `SequenceTable` wraps a `pyarrow.Table` with the columns ``sequence`` (always), ``label``,
``id`` and ``split`` (strings, where the file has them) and ``place`` (its line or row in the file,
so that an error can point at it). Filtering, taking and joining are Arrow's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from unpad.data.errors import DataError

pc: Any = pyarrow.compute  # its functions are made at run time: no type checker sees them

Kind = Literal["numbers", "tokens", "text"]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """Where a table came from: file, "line" or "row", sequence column and feature names."""

    path: str
    unit: str
    column: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class SequenceTable:
    """Sequences of one kind with their labels, ids and places.

    ``kind`` is "numbers" (``large_list<fixed_size_list<float32>[F]>``), "tokens"
    (``large_list<string>``) or "text" (``string``). A sequence of length 0 is a row like any other.
    """

    kind: Kind
    table: pa.Table
    source: Source

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def feature_count(self) -> int:
        """F of the features of one step; 1 for tokens and text."""
        if self.kind != "numbers":
            return 1
        return int(self.table.schema.field("sequence").type.value_type.list_size)

    def column(self, name: str) -> pa.Array | None:
        """One column as a single array, or None where the file has no such column."""
        if name not in self.table.column_names:
            return None
        column = self.table.column(name).combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def strings(self, name: str) -> list[str | None]:
        """A column as Python strings; all None where the file has no such column."""
        column = self.column(name)
        return [None] * len(self) if column is None else column.to_pylist()

    def numbers(self) -> tuple[Floats, Integers]:
        """Values [T, F] float32 and offsets [B+1] of sequences of numbers, without a copy."""
        offsets, flat = self._flat()
        return flat.flatten().to_numpy(zero_copy_only=True).reshape(-1, self.feature_count), offsets

    def tokens(self) -> tuple[list[str], Integers]:
        """All tokens end to end and offsets [B+1]."""
        offsets, flat = self._flat()
        return flat.to_pylist(), offsets

    def texts(self) -> list[str]:
        """The text of every row."""
        column = self.column("sequence")
        assert column is not None
        return column.to_pylist()

    def lengths(self) -> Integers:
        """Lengths [B] in steps or tokens (not for text, whose tokens are a choice)."""
        return np.diff(self._flat()[0])

    def place(self, row: int) -> str:
        """Where row ``row`` stands in its file, for messages."""
        return f"{self.source.unit} {self.table.column('place')[row].as_py()}"

    def take(self, rows: Sequence[int] | Integers) -> SequenceTable:
        """The given rows, in the given order."""
        return replace(self, table=self.table.take(pa.array(np.asarray(rows, dtype=np.int64))))

    def of_split(self, name: str) -> SequenceTable:
        """The rows whose ``split`` column says ``name``."""
        return replace(self, table=self.table.filter(pc.equal(self.table.column("split"), name)))

    def splits(self) -> list[str]:
        """The values of the split column, in order of first appearance; empty without one."""
        column = self.column("split")
        return [] if column is None else [str(s) for s in column.unique().to_pylist()]

    def _flat(self) -> tuple[Integers, pa.Array]:
        column = self.column("sequence")
        assert column is not None
        if len(column) == 0:
            return np.zeros(1, np.int64), column.flatten()
        offsets = column.offsets.to_numpy()
        return offsets - offsets[0], column.flatten()

    def check_finite(self) -> None:
        """Raise `DataError` at the first NaN or infinity of the features."""
        found = self.first_non_finite()
        if found is None:
            return
        row, step, feature, count = found
        names = self.source.features
        column = names[feature] if feature < len(names) else f"{self.source.column}[{feature}]"
        value = self.numbers()[0][self.numbers()[1][row] + step, feature]
        # The file may have 1e300 there, which is finite but for us.
        beyond = ", or a number that does not fit float32 (3.4e38)" if np.isinf(value) else ""
        raise DataError(
            self.source.path,
            f"step {step} holds {value}{beyond} ({count} such values in all)",
            "features must be finite numbers: fill the gap or drop the step",
            place=self.place(row),
            column=column,
        )

    def first_non_finite(self) -> tuple[int, int, int, int] | None:
        """(row, step, feature, count of all) of the first NaN or infinity, or None."""
        if self.kind != "numbers":
            return None
        values, offsets = self.numbers()
        bad = ~np.isfinite(values)
        count = int(bad.sum())
        if count == 0:
            return None
        token, feature = (int(i) for i in np.argwhere(bad)[0])
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        return row, token - int(offsets[row]), feature, count


def number_lists(values: Floats, offsets: Integers) -> pa.Array:
    """Arrow ``large_list<fixed_size_list<float32>[F]>`` over values [T, F] and offsets [B+1]."""
    steps = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.LargeListArray.from_arrays(pa.array(offsets), steps)


def token_lists(rows: Iterable[Sequence[str]]) -> pa.Array:
    """Arrow ``large_list<string>`` of rows of tokens."""
    return pa.array(list(rows), type=pa.large_list(pa.string()))


def make_table(
    kind: Kind,
    sequences: pa.Array,
    source: Source,
    *,
    places: Integers | Sequence[int],
    **columns: Any,
) -> SequenceTable:
    """Put a `SequenceTable` together; ``columns`` are label, id and split (strings or None)."""
    names = {"sequence": sequences, "place": pa.array(np.asarray(places, dtype=np.int64))}
    for name, values in columns.items():
        if values is not None:
            names[name] = values if isinstance(values, pa.Array) else pa.array(values, pa.string())
    return SequenceTable(kind, pa.table(names), source)


def concatenate(tables: Sequence[SequenceTable]) -> SequenceTable:
    """Join tables of one file, in order. Rows of length 0 take the feature count of the others."""
    first = tables[0]
    kinds = {t.kind for t in tables if len(t)}
    if len(kinds) > 1:
        raise DataError(
            first.source.path,
            f"some sequences are {' and others '.join(sorted(kinds))}",
            "write all sequences of a file in one form",
            column=first.source.column,
        )
    return replace(first, table=pa.concat_tables([t.table for t in tables]))


def digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes: the run folder keeps it to know its data again."""
    import hashlib

    total = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()
