"""The one error of reading data: it names the file, the place, the column and what to do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from unpad.errors import UnpadError

Made = TypeVar("Made")


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

    @property
    def number(self) -> int | None:
        """The number of its line or row; None where the error is the whole file's."""
        number = (self.place or "").rpartition(" ")[2]
        return int(number) if number.isdecimal() else None


def good_first(numbers: Sequence[int], make: Callable[[int], Made]) -> Iterator[Made]:
    """Give ``make(n)``, of all n rows with these ``numbers``, or of those before a bad one.

    ``make`` raises `DataError` with the number of the bad row: what stands before it is given
    first, then the error goes on. So a stream is answered up to the row that cannot be.
    """
    if not numbers:
        return
    try:
        made = make(len(numbers))
    except DataError as error:
        failure = error
    else:
        yield made
        return
    good = 0 if failure.number is None else bisect_left(numbers, failure.number)
    if good < len(numbers):  # else the error is of none of these rows, and none stands before it
        yield from good_first(numbers[:good], make)
    raise failure
