"""Labels, ids and splits as text, by one rule for every format."""

from __future__ import annotations

from unpad.data.errors import DataError


def label_text(value: object, path: str, place: str, column: str) -> str | None:
    """A text as it is, a whole number without its point, a truth in lower case; None stays.

    Raises `DataError` for anything else: 0.5 is a quantity, not the name of a class.

    >>> label_text(2.0, "a.jsonl", "line 1", "label"), label_text(True, "a.jsonl", "line 1", "y")
    ('2', 'true')
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    raise DataError(
        path,
        f"{value!r:.60} is no label",
        "labels, ids and splits are texts or whole numbers",
        place=place,
        column=column,
    )
