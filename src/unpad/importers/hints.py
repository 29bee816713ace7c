"""What a path that is no saved model of TensorFlow or Keras probably is, and what to do then."""

from __future__ import annotations

import difflib
from pathlib import Path

from unpad.importers.hdf5 import SIGNATURE

KINDS = (
    "give a TF checkpoint (its prefix, its .index or its folder), a SavedModel's folder, or a "
    "Keras .h5, .keras or .weights.h5 file"
)
_PICKLED = "no pickle is opened here; load it in torch (weights_only=True) and use its state_dict"
_FROZEN = "its weights are constants in a graph; give the checkpoint or SavedModel it was made of"
_MOST_NAMES = 8


def other_kind(start: bytes, suffix: str) -> tuple[str, str]:
    """The problem and the remedy for a file that starts with these 64 bytes.

    >>> other_kind(b"....TFL3", ".tflite")[0]
    'it is a TensorFlow Lite model'
    """
    if start[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model", _FROZEN
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 30:
        return "it is a safetensors file", "unpad.importers.load builds the layers in it"
    if start[:1] == b"\x80" and start[1:2] <= b"\x05":
        return "it is a pickle (an old torch.save, or joblib)", _PICKLED
    if start[:6] == b"\x93NUMPY":
        return "it is a NumPy array", "load it with numpy.load; cells take arrays by their names"
    if suffix in (".pb", ".pbtxt"):
        return "it is a bare graph, or a part of a SavedModel", f"{_FROZEN} (a folder)"
    if suffix == ".onnx":
        return "it is an ONNX model", "give the checkpoint or Keras file that it was made of"
    return "it is no saved model that is known", KINDS


def other_archive(names: list[str]) -> tuple[str, str] | None:
    """Likewise for a zip archive with these members; None: it may be Keras's.

    >>> other_archive(["model/data.pkl", "model/data/0"])[0]
    'it is a file of torch.save'
    """
    if any(name.endswith("data.pkl") for name in names):
        return "it is a file of torch.save", _PICKLED
    if names and all(name.endswith(".npy") for name in names):
        return "it is a NumPy archive", "load it with numpy.load; cells take arrays by their names"
    return None


def no_safetensors(start: bytes) -> str:
    """What to do with a file that `load` was given and that is no safetensors file.

    >>> no_safetensors(SIGNATURE)
    'it is a saved model itself: write its layers with unpad import PATH --to FILE.safetensors'
    """
    if start[:8] == SIGNATURE or start[:4] == b"PK\3\4":
        return (
            "it is a saved model itself: write its layers with "
            "unpad import PATH --to FILE.safetensors"
        )
    return "give a file that unpad import --to wrote"


def missing(path: Path) -> str:
    """What to do where there is nothing at a path: names near it, first those of checkpoints."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either; check the path"
    names = [child.name for child in sorted(folder.iterdir()) if not child.name.startswith(".")]
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    near = difflib.get_close_matches(path.name, [*prefixes, *names], _MOST_NAMES, 0.5)
    return f"did you mean {', '.join(dict.fromkeys(near))}? Else {KINDS}" if near else KINDS


def folder_without(folder: Path) -> str:
    """What to do with a folder that is no saved model: the saved models that lie in it."""
    found = [child.name for child in sorted(folder.iterdir()) if _is_model(child)]
    if not found:
        return KINDS
    more = ", ..." if len(found) > _MOST_NAMES else ""
    return f"name one of what lies in it: {', '.join(found[:_MOST_NAMES])}{more}"


def _is_model(path: Path) -> bool:
    if path.is_dir():
        inner = ("saved_model.pb", "checkpoint")
        return any((path / name).exists() for name in inner) or any(path.glob("*.index"))
    return path.suffix in (".h5", ".hdf5", ".keras", ".index")
