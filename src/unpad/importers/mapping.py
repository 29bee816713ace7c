"""The user's mapping: what a name of the saved model is to become."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from unpad.errors import ArgumentError
from unpad.importers.errors import MalformedError, naming
from unpad.importers.files import read_whole

_CELLS = ("rnn", "lstm")
_EXAMPLE = 'write it as {"rnn": "encoder", "dense": null}; see unpad import --help'
_JSON = {list: "array", str: "string", int: "number", float: "number", bool: "bool"}
_SETTINGS = {
    "name": str, "cell": str, "forget_bias": float, "cell_clip": float, "proj_clip": float,
    "activation": str, "reset_after": bool,
}  # fmt: skip


@dataclass(frozen=True)
class Mapping:
    """Names of layers, scopes or variables, each with its settings; None leaves it out."""

    settings: dict[str, dict[str, Any] | None] = field(
        default_factory=dict[str, "dict[str, Any] | None"]
    )

    def of(self, path: str) -> dict[str, Any]:
        """All that is said of a path by its own name and by those of the scopes around it."""
        found: dict[str, Any] = {}
        for name in sorted(self.settings, key=len):
            if _is_within(path, name):
                found |= self.settings[name] or {}
        return found

    def leaves_out(self, *paths: str) -> bool:
        """Whether one of these paths, or a scope around it, is mapped to nothing."""
        names = [name for name, settings in self.settings.items() if settings is None]
        return any(_is_within(path, name) for path in paths for name in names)

    def strangers(self, paths: Collection[str]) -> list[str]:
        """The names in it that are none of these paths, nor a scope around one."""
        return [n for n in self.settings if not any(_is_within(path, n) for path in paths)]

    def target(self, *names: str) -> str | None:
        """The new name of the first of these names that has one."""
        for name in names:
            given = self.settings.get(name) or {}
            if "name" in given:
                return given["name"]
        return None


def _is_within(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}/")


def read_mapping(path: str | Path) -> dict[str, Any]:
    """A mapping from a JSON file.

    Raises:
        ArtefactError: no such file, or no JSON object: with the line and the column.
    """
    with naming(path):
        return _own_json(read_whole(Path(path), 1 << 26))


def _own_json(data: bytes) -> dict[str, Any]:
    """The user's own file: where it is wrong is told to the line."""
    try:
        found = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise MalformedError(f"it is no JSON: {error.msg} at {where}", _EXAMPLE) from error
    except UnicodeDecodeError as error:
        raise MalformedError(f"it is no text in UTF-8 (byte {error.start})", _EXAMPLE) from error
    except RecursionError as error:
        raise MalformedError("it is nested too deeply", _EXAMPLE) from error
    if not isinstance(found, dict):
        problem = f"it holds a JSON {_JSON.get(type(found), 'value')}, not an object"
        raise MalformedError(problem, _EXAMPLE)
    return cast("dict[str, Any]", found)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise MalformedError(f"{name!r} stands in it {count} times", "say it once")
    return dict(pairs)


def parse_mapping(given: Any) -> Mapping:
    """Check a mapping.

    >>> parse_mapping({"rnn": "encoder", "dense": None}).target("rnn")
    'encoder'
    >>> parse_mapping({"rnn/my_cell": {"cell": "lstm", "forget_bias": 0}}).of("rnn/my_cell")
    {'cell': 'lstm', 'forget_bias': 0.0}
    """
    if given is None:
        return Mapping()
    if not isinstance(given, dict):
        raise ArgumentError("mapping", given, "a dict, or a JSON object", "see unpad import --help")
    return Mapping({str(name): _settings(str(name), value) for name, value in given.items()})


def _settings(name: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        allowed = "a name, an object of settings, or null"
        raise ArgumentError(f"mapping[{name!r}]", value, allowed, "give one of them")
    return {str(key): _setting(name, str(key), found) for key, found in value.items()}


def _setting(name: str, key: str, value: Any) -> Any:
    argument = f"mapping[{name!r}][{key!r}]"
    if key not in _SETTINGS:
        raise ArgumentError(argument, value, ", ".join(_SETTINGS), "use one of these settings")
    wanted = _SETTINGS[key]
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, wanted):
        kind = {float: "a number", str: "a string", bool: "true or false"}[wanted]
        remedy = "change it"
        if isinstance(value, list):
            remedy = "each cell has a scope of its own to say it under: rnn/multi_rnn_cell/cell_0"
        raise ArgumentError(argument, repr(value), kind, remedy)
    if key == "cell" and value not in _CELLS:
        raise ArgumentError(
            argument, value, " or ".join(_CELLS), "GRU cells are seen by themselves"
        )
    if key == "name" and "" in str(value).split("."):
        raise ArgumentError(argument, repr(value), "a name such as encoder.rnn", "change it")
    return value
