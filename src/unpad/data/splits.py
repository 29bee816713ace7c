"""The parts of a data set: training, validation and test, by the names that files give them."""

from __future__ import annotations

from unpad.data.table import SequenceTable

PARTS = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test",),
}


def part_of(table: SequenceTable, part: str) -> SequenceTable:
    """The rows of split ``part`` ("train", "valid", "test"); all where the file has none such."""
    found = split_name(table, part)
    return table if found is None else table.of_split(found)


def split_name(table: SequenceTable, part: str) -> str | None:
    """The file's own name of split ``part``, or None where it has none such."""
    return next((s for s in table.splits() if s.lower() in PARTS[part]), None)
