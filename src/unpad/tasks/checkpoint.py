"""Training state in one safetensors file: tensors as tensors, the rest as JSON in its header.

No pickle: a checkpoint from a stranger can hold wrong numbers, but it cannot run code. One file,
replaced atomically, so that weights, optimizer, random state and epoch always belong together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins import CheckpointIO
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from unpad.tasks.atomic import write_atomically
from unpad.tasks.run_error import RunError


def flatten(tree: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Split nested dicts, lists and tuples into named tensors and JSON data.

    Raises `TypeError`, naming the place, for anything but tensors and plain data.

    >>> tensors, plain = flatten({"a": (1, torch.ones(2)), 3: None})
    >>> unflatten(tensors, plain)
    {'a': (1, tensor([1., 1.])), 3: None}
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _flatten(tree, "", tensors)


def unflatten(tensors: dict[str, torch.Tensor], plain: Any) -> Any:
    """Undo `flatten`."""
    if isinstance(plain, list):
        return [unflatten(tensors, item) for item in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    node = cast("dict[str, Any]", plain)
    if "$tensor" in node:
        return tensors[node["$tensor"]]
    if "$tuple" in node:
        return tuple(unflatten(tensors, item) for item in node["$tuple"])
    if "$dict" in node:
        return {key: unflatten(tensors, value) for key, value in node["$dict"]}
    return {key: unflatten(tensors, value) for key, value in node.items()}


def _flatten(tree: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        name = place or "tensor"
        tensors[name] = tree.detach().cpu().contiguous().clone()
        return {"$tensor": name}
    if isinstance(tree, dict):
        node = cast("dict[Any, Any]", tree)
        items = [(key, _flatten(value, f"{place}/{key}", tensors)) for key, value in node.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key in node)
        return dict(items) if plain else {"$dict": [list(item) for item in items]}
    if isinstance(tree, (list, tuple)):
        row = cast("list[Any] | tuple[Any, ...]", tree)
        items = [_flatten(value, f"{place}/{i}", tensors) for i, value in enumerate(row)]
        return {"$tuple": items} if isinstance(tree, tuple) else items
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"checkpoint{place}: {type(tree).__name__} is neither a tensor nor plain data")


class SafetensorsIO(CheckpointIO):
    """Lightning's checkpoints as one safetensors file each."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint atomically."""
        tensors, plain = flatten(checkpoint)
        header = {"checkpoint": json.dumps(plain)}
        write_atomically(path, lambda temporary: save_file(tensors, temporary, header))

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; a broken file is a `RunError`."""
        try:
            with safe_open(path, "pt") as file:
                plain = json.loads(file.metadata()["checkpoint"])
                return unflatten({name: file.get_tensor(name) for name in list(file.keys())}, plain)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path}: no usable checkpoint ({error}); train again into another folder"
            ) from None

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)
