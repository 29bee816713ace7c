"""From one row a time step to one row a sequence.

Steps of one id make a sequence. A whole file may have them in any order (they are gathered, and
sorted by the time column where there is one); a stream must have them together, because it never
looks back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute

from unpad.data.errors import DataError
from unpad.data.table import Floats, Integers, SequenceTable, Source, make_table, number_lists

pc: Any = pyarrow.compute  # its functions are made at run time: no type checker sees them


@dataclass(frozen=True)
class Steps:
    """Columns of time steps: values [T, F], places [T], and id, label, time [T] where given."""

    values: Floats
    places: Integers
    id: pa.Array | None
    label: pa.Array | None
    time: Any | None  # float64 or datetime64[ns], [T]
    names: dict[str, str]
    source: Source

    @classmethod
    def from_columns(
        cls,
        features: Sequence[pa.Array],
        *,
        source: Source,
        first_place: int,
        identity: pa.Array | None,
        label: pa.Array | None,
        time: pa.Array | None,
        names: dict[str, str],
    ) -> Steps:
        """Convert feature columns (text or numbers) to float32; the place of step 0 is given."""
        columns = [
            _floats(c, n, source, first_place)
            for c, n in zip(features, source.features, strict=True)
        ]
        places = np.arange(first_place, first_place + len(columns[0]), dtype=np.int64)
        moments = None if time is None else _moments(time, names["time"], source)
        return cls(np.stack(columns, 1), places, identity, label, moments, names, source)

    @classmethod
    def join(cls, parts: Sequence[Steps]) -> Steps:
        """Steps end to end."""
        first = parts[0]
        return cls(
            np.concatenate([p.values for p in parts]),
            np.concatenate([p.places for p in parts]),
            None if first.id is None else pa.concat_arrays([_plain(p.id) for p in parts]),
            None if first.label is None else pa.concat_arrays([_plain(p.label) for p in parts]),
            None if first.time is None else np.concatenate([cast("Any", p.time) for p in parts]),
            first.names,
            first.source,
        )

    def slice(self, start: int, stop: int) -> Steps:
        """Steps ``start`` to ``stop``."""
        return Steps(
            self.values[start:stop],
            self.places[start:stop],
            None if self.id is None else self.id[start:stop],
            None if self.label is None else self.label[start:stop],
            None if self.time is None else self.time[start:stop],
            self.names,
            self.source,
        )

    def codes(self) -> tuple[Integers, list[Any]]:
        """The sequence of every step as 0, 1, ... in order of first appearance, and the ids."""
        if self.id is None:
            return np.zeros(len(self.values), np.int64), [None]
        coded = pc.dictionary_encode(_plain(self.id))
        return coded.indices.to_numpy().astype(np.int64), coded.dictionary.to_pylist()


def group_steps(steps: Steps) -> SequenceTable:
    """One row a sequence, in order of first appearance."""
    codes, ids = steps.codes()
    keys = (codes,) if steps.time is None else (steps.time, codes)
    order = np.lexsort(keys)  # stable: without a time column the order of the file stands
    lengths = np.bincount(codes, minlength=len(ids))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return make_table(
        "numbers",
        number_lists(steps.values[order], offsets),
        steps.source,
        places=steps.places[order][offsets[:-1]],
        id=None if steps.id is None else [str(i) for i in ids],
        label=_labels(steps, order, offsets),
    )


def stream_steps(blocks: Iterator[Steps]) -> Iterator[SequenceTable]:
    """Sequences as soon as their last step has been seen. An id that comes back is an error."""
    held: Steps | None = None
    finished: set[Any] = set()
    for block in blocks:
        held = block if held is None else Steps.join([held, block])
        codes, _ = held.codes()
        cut = (
            int(np.flatnonzero(codes[:-1] != codes[1:])[-1]) + 1 if codes.max() > codes.min() else 0
        )
        if cut:
            yield from _complete(held.slice(0, cut), finished)
            held = held.slice(cut, len(codes))
    if held is not None:
        yield from _complete(held, finished)


def _complete(steps: Steps, finished: set[Any]) -> Iterator[SequenceTable]:
    codes, ids = steps.codes()
    changes = np.concatenate([[0], np.flatnonzero(codes[:-1] != codes[1:]) + 1])
    for start in changes.tolist():
        name = ids[codes[start]]
        if name in finished:
            if start:  # the sequences before it are whole
                yield group_steps(steps.slice(0, start))
            raise DataError(
                steps.source.path,
                f"sequence {name!r} comes back after another one",
                "sort the file by that column: a stream needs the steps of a sequence together",
                place=f"{steps.source.unit} {steps.places[start]}",
                column=steps.names["id"],
            )
        finished.add(name)
    yield group_steps(steps)


def _plain(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _floats(column: pa.Array, name: str, source: Source, first_place: int) -> Floats:
    """A column as float32; an empty cell is NaN, a word an error with its row."""
    if pa.types.is_string(column.type):
        column = pc.replace_with_mask(column, pc.equal(column, ""), pa.scalar("nan"))
    try:
        numbers = pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        cells = column.to_pylist()
        row, cell = next((i, c) for i, c in enumerate(cells) if not _is_number(c))
        raise DataError(
            source.path,
            f"{cell!r:.60} is not a number",
            "mend the cell, or leave the column out with --features",
            place=f"{source.unit} {first_place + row}",
            column=name,
        ) from None
    with np.errstate(over="ignore"):
        return numbers.to_numpy(zero_copy_only=False).astype(np.float32)


def _is_number(cell: Any) -> bool:
    try:
        return bool(pa.scalar(cell).cast(pa.float64()).is_valid)
    except pa.ArrowInvalid:
        return False


def _moments(column: pa.Array, name: str, source: Source) -> Any:
    for kind in (pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        with contextlib.suppress(pa.ArrowInvalid):
            return pc.cast(column, kind).to_numpy(zero_copy_only=False)
    raise DataError(
        source.path,
        f"the times (such as {column[0].as_py()!r}) are neither numbers nor dates",
        "write numbers or ISO dates such as 2026-01-31 12:00:00, or name another --time column",
        column=name,
    )


def _labels(steps: Steps, order: Integers, offsets: Integers) -> list[str | None] | None:
    if steps.label is None:
        return None
    coded = pc.dictionary_encode(_plain(steps.label))
    codes = coded.indices.fill_null(-1).to_numpy()[order]
    firsts = codes[offsets[:-1]]
    differing = np.flatnonzero(codes != np.repeat(firsts, np.diff(offsets)))
    if len(differing):
        at = int(order[differing[0]])
        raise DataError(
            steps.source.path,
            "the label changes within a sequence",
            "give every step of a sequence the same label",
            place=f"{steps.source.unit} {steps.places[at]}",
            column=steps.names["label"],
        )
    names = [*(str(v) for v in coded.dictionary.to_pylist()), None]
    return [names[c] for c in firsts.tolist()]
