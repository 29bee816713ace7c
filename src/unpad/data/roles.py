"""Which column is what: sequence, label, id, time, split, features.

The rules, in order (docs/data.md shows them to users):

1. An option wins (``--sequence``, ``--label``, ``--id``, ``--time``, ``--features``).
2. A column's name decides, case aside: see `NAMES`.
3. One row a sequence: the only list column, else the only text column left, is the sequence;
   the only column left after that is the label.
4. One row a time step: every numeric column left is a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from unpad.data.errors import DataError

NAMES: dict[str, tuple[str, ...]] = {
    "sequence": ("sequence", "x", "tokens", "text", "sentence", "series", "values", "features",
                 "utterance", "name"),
    "label": ("label", "class", "target", "y", "intent", "category"),
    "id": ("id", "sequence_id", "series_id", "unit", "uid", "key"),
    "time": ("time", "timestamp", "datetime", "date", "step", "t", "cycle"),
    "split": ("split",),
}  # fmt: skip

Form = Literal["list", "text", "number", "other"]


@dataclass(frozen=True)
class Roles:
    """The columns by role; None (or no features) where a file has none.

    >>> detect({"x": "list", "label": "number"}, Roles(), path="a.jsonl").sequence
    'x'
    """

    sequence: str | None = None
    label: str | None = None
    id: str | None = None
    time: str | None = None
    split: str | None = None
    features: tuple[str, ...] = ()

    @property
    def long(self) -> bool:
        """True where a row is one time step, False where it is a whole sequence."""
        return self.sequence is None and bool(self.features)


def detect(columns: dict[str, Form], asked: Roles, *, path: str, steps: bool = False) -> Roles:
    """Give every column of a file (name → form) its role; ``asked`` holds the user's choices.

    ``steps`` says that the file format may hold one row a time step (CSV, Parquet).
    """
    _check_asked(columns, asked, path)
    roles = _by_name(columns, asked)
    if steps and _is_long(columns, asked, roles):
        return _long(columns, replace(roles, sequence=None), asked, path)
    if asked.features and roles.sequence is None:
        return _rest_is_label(columns, roles)
    return _rest_is_label(columns, _one_sequence(columns, roles, path))


def _check_asked(columns: dict[str, Form], asked: Roles, path: str) -> None:
    wanted = [getattr(asked, f.name) for f in fields(asked) if f.name != "features"]
    for name in [*wanted, *asked.features]:
        if name is not None and name not in columns:
            raise DataError(
                path,
                f"there is no column `{name}`",
                f"choose one of {', '.join(columns)}",
            )


def _by_name(columns: dict[str, Form], asked: Roles) -> Roles:
    taken = {getattr(asked, role) for role in NAMES} | set(asked.features)
    found: dict[str, str] = {}
    for role, names in NAMES.items():
        if getattr(asked, role) is not None or (role == "sequence" and asked.features):
            continue
        free = {c.lower(): c for c in columns if c not in taken}
        match = next((free[n] for n in names if n in free), None)
        if match is not None and (role != "sequence" or columns[match] in ("list", "text")):
            found[role] = match
            taken.add(match)
    return replace(asked, **found)


def _is_long(columns: dict[str, Form], asked: Roles, roles: Roles) -> bool:
    if asked.sequence is not None or "list" in columns.values():
        return False
    if asked.features or asked.time:
        return True
    return roles.sequence is None and (roles.id is not None or roles.time is not None)


def _long(columns: dict[str, Form], roles: Roles, asked: Roles, path: str) -> Roles:
    left = asked.features or tuple(_left(columns, roles))
    for name in left:
        if columns[name] != "number":
            raise DataError(
                path,
                "it holds text, and each row is read as one time step",
                "name the numeric columns with --features, or the text column with --sequence",
                column=name,
            )
    if not left:
        raise DataError(path, "no numeric column is left for the features", "use --features")
    return replace(roles, features=left)


def _left(columns: dict[str, Form], roles: Roles) -> list[str]:
    taken = {getattr(roles, role) for role in NAMES} | set(roles.features)
    return [c for c in columns if c not in taken]


def _one_sequence(columns: dict[str, Form], roles: Roles, path: str) -> Roles:
    if roles.sequence is not None:
        return roles
    left = _left(columns, roles)
    for form in ("list", "text"):
        candidates = [c for c in left if columns[c] == form]
        if len(candidates) == 1:
            return replace(roles, sequence=candidates[0])
        if candidates:
            raise DataError(
                path,
                f"the columns {', '.join(candidates)} could all be the sequence",
                "choose one with --sequence",
            )
    raise DataError(
        path,
        f"no column holds sequences (columns: {', '.join(columns)})",
        "name the column with --sequence, or for one row a time step use --id and --features",
    )


def _rest_is_label(columns: dict[str, Form], roles: Roles) -> Roles:
    left: Sequence[str] = [c for c in _left(columns, roles) if columns[c] != "list"]
    return replace(roles, label=left[0]) if roles.label is None and len(left) == 1 else roles
