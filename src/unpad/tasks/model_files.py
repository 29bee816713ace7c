"""The files of a trained model that every task has: config.json, the weights, the vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unpad.tasks.atomic import write_atomically, write_json
from unpad.tasks.run_error import RunError

FORMAT = 1
CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocabulary.json", "model.safetensors"
CLASSIFY, LANGUAGE = "classify", "lm"
"""The tasks, as config.json and ``unpad train`` name them."""


def write_config(folder: Path, task: str, facts: dict[str, Any]) -> None:
    """Replace config.json."""
    write_json(folder / CONFIG, {"format": FORMAT, "task": task, "unpad": version(), **facts})


def read_config(folder: Path, task: str | None = None) -> dict[str, Any]:
    """What `write_config` wrote. Raises `RunError`, also where the run is of another task."""
    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder}: no run folder (there is no {CONFIG}); give the --out of a run")
    try:
        config = json.loads(read_text(path))
        found, made = config.get("format"), config.get("task", CLASSIFY)
    except (ValueError, AttributeError) as error:
        raise RunError(f"{path}: not valid JSON ({error}); train again") from None
    if found != FORMAT:
        raise RunError(
            f"{path}: format {found!r}, this version reads {FORMAT}; "
            "use the version of unpad that wrote it, or train again"
        )
    if task not in (None, made):
        raise RunError(
            f"{folder}: a run of `unpad train {made}`, and this needs one of `unpad train {task}`; "
            "give another run"
        )
    return config


def save_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    """Replace the weights of a run atomically."""
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}
    write_atomically(folder / WEIGHTS, lambda temporary: save_file(tensors, temporary))


def load_weights(model: nn.Module, folder: Path) -> None:
    """Read what `save_weights` wrote into a model and end its training mode."""
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except FileNotFoundError:
        raise RunError(
            f"{folder}: no trained weights yet ({WEIGHTS}); let an epoch of training finish"
        ) from None
    except (SafetensorError, RuntimeError) as error:
        raise broken(folder, error) from None
    model.eval()


def read_text(path: Path) -> str:
    """A text file in UTF-8."""
    return path.read_text(encoding="utf-8")


def version() -> str:
    """The version of the installed package, or "unknown" for a bare source tree."""
    try:
        return metadata.version("unpad")
    except metadata.PackageNotFoundError:
        return "unknown"


def broken(folder: Path, error: Exception) -> RunError:
    """The error about a model's files that contradict each other or cannot be read."""
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return RunError(f"{folder}: the saved model is broken ({first}); train again")
