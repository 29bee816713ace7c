"""The saved models that real tools wrote, and what those tools computed with them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np

OWN = Path(__file__).parent.parent / "golden" / "checkpoints"
GIVEN = Path(os.environ.get("UNPAD_GOLDEN") or OWN.parent) / "checkpoints"
FOLDER = GIVEN if GIVEN.exists() else OWN
CASES = {case["id"]: case for case in json.loads((FOLDER / "cases.json").read_text())["cases"]}
_ROLES = {"kernel": 0, "embeddings": 0, "recurrent_kernel": 1}


def artefacts() -> list[tuple[str, str]]:
    """Each case with each of the forms that it was saved in."""
    found = []
    for case in CASES.values():
        if "prefix" in case:
            found.append((case["id"], Path(case["prefix"]).name))
        elif case["path"] != case["id"]:
            found.append((case["id"], Path(case["path"]).name))
        else:
            names = [Path(name) for name in case["files"]]
            found += [(case["id"], n.name) for n in names if n.suffix in (".h5", ".keras")]
            found += [(case["id"], n) for n in case.get("tf2_object_checkpoints", {})]
    return [(case, name.removesuffix("/variables/variables")) for case, name in found]


def path_of(case: str, name: str) -> Path:
    return FOLDER / case / name


def truth(case: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / case / "variables.npz") as file:
        return dict(file)


def recorded(case: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / case / "io.npz") as file:
        return dict(file)


def unnamed(variables: list[str]) -> dict[str, str]:
    """The paths of Keras variables in a file that holds no names: class and counter of each layer.

    The layers stand in the order of the model.
    """
    layers: dict[str, str] = {}
    counts = Counter[str]()
    paths = {}
    for variable in variables:
        layer, *inner, role = variable.split("/")
        cells = [part.removesuffix("_cell") for part in inner if part.endswith("_cell")]
        sides = [part.split("_")[0] + "_layer/" for part in inner if "ward_" in part]
        if layer not in layers:
            kind = "bidirectional" if sides else (cells or ["embedding"])[0]
            kind = "dense" if not inner and role != "embeddings" else kind
            layers[layer] = f"{kind}_{counts[kind]}" if counts[kind] else kind
            counts[kind] += 1
        number = _ROLES.get(role, 2 if cells else 1)
        cell = "cell/" if cells else ""
        paths[variable] = f"layers/{layers[layer]}/{''.join(sides)}{cell}vars/{number}"
    return paths
