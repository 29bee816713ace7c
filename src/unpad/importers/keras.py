"""Keras's files: legacy .h5, .weights.h5, and .keras, of Keras 2 and 3.

Legacy files name each array as the model's code did. The others name layers by class and counter
(``layers/gru_1/cell/vars/0``): the real names come from attributes (Keras 3) or from the order of
the layers in config.json (Keras 2).
"""

from __future__ import annotations

import re
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from unpad.importers.artefact import Artefact, Variable
from unpad.importers.errors import MalformedError
from unpad.importers.files import open_regular, size_of
from unpad.importers.hdf5 import Contents, allowance, read_hdf5
from unpad.importers.hints import other_archive
from unpad.importers.saved_model import parse_json

_LEGACY = ("layer_names", "keras_version", "model_config")
_TOPS = ("layers", "_layer_checkpoint_dependencies")  # the second: Keras 2.12
_WEIGHTS = "model.weights.h5"
_MOST_JSON = 1 << 26
_MOST_DEPTH = 64
# What zipfile and zlib raise for damaged archives.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, OverflowError, IndexError, KeyError,
)  # fmt: skip
_CELL_ROLES = ("kernel", "recurrent_kernel", "bias")


def read_h5(path: Path) -> Artefact:
    """A legacy .h5 (model or weights alone) or a .weights.h5."""
    contents = read_hdf5(path)
    attributes = contents.groups.get("model_weights", {}) | contents.attributes
    if not any(name in attributes for name in _LEGACY):
        return _weights(path, contents, None, "Keras weights file")
    config = contents.attributes.get("model_config")
    layers = None if config is None else layers_of(parse_json(config))
    kind = f"Keras {contents.attributes.get('keras_version', '')} HDF5 file".replace("  ", " ")
    names, order = _legacy_names(contents)
    variables = [
        Variable(name, value, dtype, names.get(name))
        for name, (value, dtype) in contents.arrays.items()
    ]
    variables.sort(key=lambda variable: order.get(variable.name, len(order)))
    return Artefact(str(path), kind, variables, contents.left_out, layers)


def read_keras(path: Path) -> Artefact:
    """A .keras archive: config.json and model.weights.h5, unpacked to a temporary file."""
    with open_regular(path) as file, tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / _WEIGHTS
        try:
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, allowance(size_of(file)))
                config = parse_json(_text(archive, members, "config.json"))
                about = parse_json(_text(archive, members, "metadata.json"))
                with archive.open(members[_WEIGHTS]) as packed, weights.open("wb") as out:
                    shutil.copyfileobj(packed, out)
        except _ZIP_ERRORS as error:
            raise MalformedError(f"it is no readable .keras archive ({error})") from error
        kind = f"Keras {about.get('keras_version', '')} archive".replace("  ", " ")
        return _weights(path, read_hdf5(weights), config, kind)


def _members(archive: zipfile.ZipFile, most: int) -> dict[str, zipfile.ZipInfo]:
    """What is needed of an archive; nothing is unpacked by its name, so that none leads astray."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if member.filename in found:
            raise MalformedError(f"{member.filename!r} stands in it twice")
        found[member.filename] = member
        most -= member.file_size
    if most < 0:
        raise MalformedError("it unpacks to far more than its size (a zip bomb)")
    other = other_archive(list(found))
    for name in ("config.json", "metadata.json", _WEIGHTS):
        if name not in found and other is not None:
            raise MalformedError(*other)
        if name not in found:
            remedy = "save the model in one file, with keras.Model.save"
            raise MalformedError(f"it has no {name}", remedy)
    return found


def _text(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> bytes:
    if members[name].file_size > _MOST_JSON:
        raise MalformedError(f"{name} has {members[name].file_size:,} bytes")
    return archive.read(members[name])


# The layers' settings ---------------------------------------------------------------------------


def layers_of(config: dict[str, Any], depth: int = 0) -> dict[str, dict[str, Any]]:
    """Each layer's class and settings by its name, those within models and wrappers too.

    >>> gru = {"class_name": "GRU", "config": {"name": "top", "units": 5}}
    >>> layers_of({"class_name": "Sequential", "config": {"layers": [gru]}})
    {'top': {'class_name': 'GRU', 'name': 'top', 'units': 5}}
    """
    if depth > _MOST_DEPTH:
        raise MalformedError(f"its models are nested more than {_MOST_DEPTH} deep")
    found: dict[str, dict[str, Any]] = {}
    for layer in _inner(config):
        settings = _settings(layer)
        found[str(settings.get("name"))] = {"class_name": _class(layer), **settings}
        found |= layers_of(layer, depth + 1)
    return found


def _inner(layer: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of a model, in its order."""
    inner = _settings(layer).get("layers")
    if not isinstance(inner, list):
        return []
    return [part for part in cast("list[Any]", inner) if isinstance(part, dict)]


def _settings(layer: dict[str, Any]) -> dict[str, Any]:
    config = layer.get("config")
    return cast("dict[str, Any]", config) if isinstance(config, dict) else {}


def _class(layer: dict[str, Any]) -> str:
    return str(layer.get("class_name", ""))


def snake(name: str) -> str:
    """A class's name as Keras writes it in paths.

    >>> snake("SimpleRNN"), snake("LSTM"), snake("BatchNormalization")
    ('simple_rnn', 'lstm', 'batch_normalization')
    """
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


# Names ------------------------------------------------------------------------------------------


def _legacy_names(contents: Contents) -> tuple[dict[str, str], dict[str, int]]:
    """The names of a legacy file's weights, without ":0", and the order: those of its layers."""
    names: dict[str, str] = {}
    listed = contents.attributes.get("layer_names")
    listed = contents.groups.get("model_weights", {}).get("layer_names", listed) or []
    turns = {str(name): turn for turn, name in enumerate(listed)}
    groups = sorted(contents.groups.items(), key=lambda item: turns.get(item[0].split("/")[-1], -1))
    for group, attributes in groups:
        listed = attributes.get("weight_names")
        if not isinstance(listed, list) or group == "optimizer_weights":
            continue
        for weight in cast("list[Any]", listed):
            names[f"{group}/{weight}"] = re.sub(r":\d+$", "", str(weight))
    counts = Counter(names.values())
    order = {name: turn for turn, name in enumerate(names)}
    return {key: name for key, name in names.items() if counts[name] == 1}, order


def _weights(path: Path, contents: Contents, config: dict[str, Any] | None, kind: str) -> Artefact:
    """An artefact of ``layers/.../vars/n`` paths."""
    kinds = {} if config is None else dict(_time_distributed(config))
    groups = {
        group.removesuffix("/vars"): str(attributes["name"])
        for group, attributes in contents.groups.items()
        if group.endswith("/vars") and "name" in attributes
    }
    layers = None if config is None else layers_of(config)
    if config is not None:
        groups |= dict(_names(config))
    turns = {group: turn for turn, group in enumerate(groups)} if config else {}
    variables = [
        Variable(name, value, dtype, _alias(name, groups, kinds))
        for name, (value, dtype) in contents.arrays.items()
    ]
    variables.sort(key=lambda variable: (_turn(variable.name, turns), natural(variable.name)))
    return Artefact(str(path), kind, variables, contents.left_out, layers)


def _paths(model: dict[str, Any], above: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each layer of a model, its name by class and counter, and its path below ``layers``."""
    counts = Counter[str]()
    for layer in _inner(model):
        base = snake(_class(layer))
        auto = f"{base}_{counts[base]}" if counts[base] else base
        counts[base] += 1
        for top in _TOPS:
            group = f"{above}{top}/{auto}"
            yield layer, auto, group
            yield from _paths(layer, f"{group}/")


def _names(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The path of each layer below ``layers``, and the layer's own name."""
    for layer, auto, group in _paths(model, ""):
        yield group, str(_settings(layer).get("name", auto))
        yield from _wrapped(layer, group)


def _time_distributed(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The path of each layer that a TimeDistributed holds, and its kind, such as ``dense``."""
    for layer, _, group in _paths(model, ""):
        inner = _settings(layer).get("layer")
        if _class(layer) == "TimeDistributed" and isinstance(inner, dict):
            yield f"{group}/layer", snake(_class(cast("dict[str, Any]", inner)))


def _wrapped(layer: dict[str, Any], group: str) -> Iterator[tuple[str, str]]:
    """The names of the two layers in a Bidirectional, and of a layer's cell."""
    inner = _settings(layer).get("layer")
    if _class(layer) == "Bidirectional" and isinstance(inner, dict):
        cell = snake(_class(cast("dict[str, Any]", inner)))
        name = str(_settings(cast("dict[str, Any]", inner)).get("name", "layer"))
        name = name.removeprefix("forward_")
        for place in ("forward", "backward"):
            yield f"{group}/{place}_layer", f"{place}_{name}"
            yield (
                f"{group}/{place}_layer/cell",
                f"{cell}_cell",
            )
        return
    yield f"{group}/cell", f"{snake(_class(layer))}_cell"
    cell = _settings(layer).get("cell")
    stacked = _settings(cast("dict[str, Any]", cell)).get("cells") if _is_layer(cell) else None
    counts = Counter[str]()
    for number, part in enumerate(cast("list[Any]", stacked) if isinstance(stacked, list) else []):
        base = snake(_class(part)) if _is_layer(part) else ""
        auto = f"{base}_{counts[base]}" if counts[base] else base
        counts[base] += 1
        yield f"{group}/cell/cells/{auto}", str(number)


def _is_layer(found: Any) -> bool:
    return isinstance(found, dict)


def _turn(name: str, turns: dict[str, int]) -> int:
    """The turn of the innermost layer that a variable is of, in the order of the model."""
    parts = name.split("/")
    scopes = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((turns[scope] for scope in scopes if scope in turns), len(turns))


def natural(name: str) -> list[Any]:
    """A key that sorts numbers in names as numbers.

    >>> sorted(["vars/10", "vars/2"], key=natural)
    ['vars/2', 'vars/10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,9})", name)]


def _alias(name: str, groups: dict[str, str], kinds: dict[str, str]) -> str | None:
    """``layers/gru/cell/vars/0`` as ``top/gru_cell/kernel``; None of what no layer holds."""
    match = re.fullmatch(r"(.+)/vars/(\d+)", name)
    parts = match[1].split("/") if match else []
    if match is None or parts[0] not in _TOPS:
        return None
    path = [
        groups.get("/".join(parts[: end + 1]), part)
        for end, part in enumerate(parts)
        if part not in _TOPS and "/".join(parts[: end + 1]) not in kinds
    ]
    kind = kinds.get("/".join(parts), parts[-1])
    return "/".join([*path, _role([*parts[:-1], kind], int(match[2]))])


def _role(parts: list[str], number: int) -> str:
    """What a layer calls its variable of this number."""
    kind = re.sub(r"_\d+$", "", parts[-1])
    roles: tuple[str, ...] = ()
    if kind == "cell" or parts[-2:-1] == ["cells"]:
        roles = _CELL_ROLES
    elif kind == "dense":
        roles = ("kernel", "bias")
    elif kind == "embedding":
        roles = ("embeddings",)
    return roles[number] if number < len(roles) else f"vars/{number}"
