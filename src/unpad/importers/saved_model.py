"""What ``saved_model.pb`` and its neighbours say beside the variables; the graph is not executed.

Source: tensorflow/core/protobuf/{saved_model,meta_graph,trackable_object_graph}.proto and
keras/protobuf/saved_metadata.proto.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from unpad.importers import dtypes
from unpad.importers.artefact import Signature, Tensor, Variable
from unpad.importers.errors import MalformedError, naming
from unpad.importers.files import inside, read_whole
from unpad.importers.wire import message_in, messages, number_in, signed, text, text_in

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_MOST_BYTES = (1 << 31) - 1  # protocol buffers' own limit


def read_signatures(folder: Path) -> dict[str, Signature]:
    """The signatures of a SavedModel, by name; of several graphs the first that has each."""
    path = folder / "saved_model.pb"
    found: dict[str, Signature] = {}
    with naming(path):
        data = read_whole(inside(folder, path), _MOST_BYTES)
        if not data:
            raise MalformedError("it is empty", "copy it again: the folder's other files may fit")
        for graph in messages(data, 2):
            for name, signature in _map(graph, 5).items():
                inputs, outputs = _tensors(signature, 1), _tensors(signature, 2)
                found.setdefault(name, Signature(inputs, outputs))
    # How TensorFlow marks its own bookkeeping; it is no way to call the model.
    found.pop("__saved_model_init_op", None)
    return found


def _map(message: memoryview, number: int) -> dict[str, memoryview]:
    """A map field: repeated entries of key and value."""
    return {text_in(entry, 1): message_in(entry, 2) for entry in messages(message, number)}


def _tensors(signature: memoryview, number: int) -> dict[str, Tensor]:
    return {key: _tensor(info) for key, info in _map(signature, number).items()}


def _tensor(info: memoryview) -> Tensor:
    shape = message_in(info, 3)
    sizes = tuple(signed(number_in(dimension, 1)) for dimension in messages(shape, 2))
    name = dtypes.name_of(number_in(info, 2))
    return Tensor(text_in(info, 1), name, None if number_in(shape, 3) else sizes)


def read_metadata(folder: Path) -> dict[str, Any] | None:
    """Keras 2's description of the model in a SavedModel's ``keras_metadata.pb``, if there."""
    path = folder / "keras_metadata.pb"
    if not path.exists():
        return None
    with naming(path):
        for node in messages(read_whole(inside(folder, path), _MOST_BYTES), 1):
            if text_in(node, 3) == "root":
                return parse_json(text_in(node, 5))
    return None


def parse_json(data: str | bytes) -> dict[str, Any]:
    """A JSON object from a stranger.

    >>> parse_json('{"units": 3}')
    {'units': 3}
    """
    try:
        found = json.loads(data)
        json.dumps(
            found, ensure_ascii=False
        ).encode()  # half a character (a lone surrogate) is no text
    except (ValueError, RecursionError) as error:
        raise MalformedError("its JSON cannot be parsed") from error
    if not isinstance(found, dict):
        raise MalformedError("its JSON is no object")
    return found


def with_aliases(variables: list[Variable]) -> list[Variable]:
    """Give the variables of a TF2 checkpoint the names that the model's code gave them.

    The checkpoint's object graph, itself a string in it, holds them. A name that stands for two
    variables says nothing and is left out.
    """
    graphs = [v for v in variables if v.name == OBJECT_GRAPH and v.dtype == "string"]
    names = dict(name for graph in graphs for name in _full_names(graph.value.reshape(-1)[0]))
    counts = Counter(names.values())
    known = {key: name for key, name in names.items() if name and counts[name] == 1}
    return [
        replace(variable, alias=known.get(variable.name))
        for variable in variables
        if variable.name != OBJECT_GRAPH
    ]


def _full_names(graph: bytes) -> list[tuple[str, str]]:
    """Each variable's key in the checkpoint and its name in the code."""
    return [
        (text_in(attribute, 3), text(message_in(attribute, 2)))
        for node in messages(graph, 1)
        for attribute in messages(node, 2)
    ]
