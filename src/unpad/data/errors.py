"""The one error of reading data: it names the file, the place, the column and what to do."""

from __future__ import annotations

from pathlib import Path

from unpad.errors import UnpadError


class DataError(UnpadError, ValueError):
    """A file holds something that cannot become sequences, labels or features.

    ``path`` is the file, ``place`` the spot in it ("line 7", "row 3"), ``column`` the column;
    ``problem`` says what stands there and ``remedy`` what to do next.

    >>> print(DataError("a.jsonl", "it is empty", "write one JSON object a line", place="line 1"))
    a.jsonl, line 1: it is empty; write one JSON object a line
    """

    def __init__(
        self,
        path: str | Path,
        problem: str,
        remedy: str,
        *,
        place: str | None = None,
        column: str | None = None,
    ) -> None:
        spot = [str(path), *([place] if place else []), *([f"column `{column}`"] if column else [])]
        super().__init__(f"{', '.join(spot)}: {problem}; {remedy}")
        self.path, self.place, self.column = str(path), place, column
