"""The texts of a language model: training, validation and test, from a folder or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

from unpad.data.errors import DataError
from unpad.data.files import FORMATS, read
from unpad.data.roles import Roles
from unpad.data.splits import PARTS, part_of, split_name
from unpad.data.table import SequenceTable

Row = TypeVar("Row")
_ENDINGS = [*FORMATS, *(f"{kind}.gz" for kind in FORMATS if kind != ".parquet")]


@dataclass(frozen=True)
class Texts:
    """Lines or documents in the order of their file: strings, or lists of tokens."""

    rows: Sequence[str] | Sequence[Sequence[str]]
    path: str

    @property
    def given(self) -> bool:
        """Whether the rows are lists of tokens."""
        return len(self.rows) > 0 and not isinstance(self.rows[0], str)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Corpus:
    """What to train on, and to validate and test on where there is any."""

    train: Texts
    valid: Texts | None
    test: Texts | None


def read_corpus(
    path: str | Path,
    roles: Roles | None = None,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    valid_fraction: float = 0.1,
) -> Corpus:
    """The texts of a folder with ``train.txt``, ``valid.txt``, ``test.txt`` or of one file.

    In a folder the names may have a prefix (``ptb.train.txt``), another known format, ``.gz``, and
    "dev", "val" or "validation" for "valid". A file is split by its column where it has one. Where
    nothing is named for validation, it is the last lines of the training text, with about
    ``valid_fraction`` of its characters (0: none).
    Raises `DataError` for what is missing, ambiguous or no text.
    """
    path, roles = Path(path), roles or Roles()
    tables: dict[str, SequenceTable | None] = dict.fromkeys(PARTS)
    if path.is_dir():
        for part in PARTS:
            found = file_of(path, part)
            tables[part] = None if found is None else part_of(read(found, roles), part)
    else:
        whole = read(path, roles)
        named = split_name(whole, "train") is not None
        tables = {part: part_of(whole, part) if split_name(whole, part) else None for part in PARTS}
        tables["train"] = part_of(whole, "train") if named else whole
    if tables["train"] is None:
        raise DataError(
            path, "no training text", "name it train.txt or ptb.train.txt, or give one file"
        )
    for part, given in (("valid", valid), ("test", test)):
        if given is not None:
            tables[part] = part_of(read(given, roles), part)
    texts = {part: None if t is None else texts_of(t) for part, t in tables.items()}
    train = texts["train"]
    assert train is not None
    if texts["valid"] is None and valid_fraction > 0:
        kept, held = held_out(train.rows, valid_fraction)
        if not kept or not held:
            raise DataError(
                path, "one line cannot be split", "give more, --valid, or --valid-fraction 0"
            )
        return Corpus(Texts(kept, train.path), Texts(held, train.path), texts["test"])
    return Corpus(train, texts["valid"], texts["test"])


def texts_of(table: SequenceTable) -> Texts:
    """The rows of a table; numbers are refused."""
    path = table.source.path
    if table.kind == "numbers":
        raise DataError(
            path, "the sequences are numbers", "a language model reads text",
            column=table.source.column,
        )  # fmt: skip
    if table.kind == "text":
        return Texts(table.texts(), path)
    tokens, offsets = table.tokens()
    bounds = offsets.tolist()
    return Texts([tokens[a:b] for a, b in pairwise(bounds)], path)


def file_of(folder: Path, part: str) -> Path | None:
    """The file of a folder for "train", "valid" or "test"; two of them are an error."""
    names = {f"{name}{ending}" for name in PARTS[part] for ending in _ENDINGS}
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and (path.name in names or path.name.partition(".")[2] in names)
    ]
    if len(found) > 1:
        both = ", ".join(path.name for path in found)
        raise DataError(
            folder, f"more than one file for {part} ({both})", "leave one of them there"
        )
    return found[0] if found else None


def text_file(folder: Path, part: str) -> Path:
    """The file of a folder for a part; none is an error."""
    found = file_of(folder, part)
    if found is None:
        raise DataError(folder, f"no {part} text in this folder", f"name it {part}.txt")
    return found


def held_out(rows: Sequence[Row], fraction: float) -> tuple[Sequence[Row], Sequence[Row]]:
    """Cut off the last rows, whose characters (line ends count) are about ``fraction`` of all.

    >>> held_out(["aaaa", "bbbb", "cccc", "d"], 0.3)
    (['aaaa', 'bbbb'], ['cccc', 'd'])
    """
    ends = list(accumulate(_size(row) + 1 for row in rows))
    limit = (1 - fraction) * (ends[-1] if ends else 0)
    cut = sum(end <= limit for end in ends)
    return rows[:cut], rows[cut:]


def _size(row: object) -> int:
    return len(row) if isinstance(row, str) else sum(len(t) + 1 for t in row)  # pyright: ignore
