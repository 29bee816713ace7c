"""The golden cases: TensorFlow's own numbers, and the comparison by their manifest's rule.

``UNPAD_GOLDEN`` names another folder of the same format: more cases from the same generators.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

OWN = Path(__file__).parents[1] / "golden"
FOLDER = Path(os.environ.get("UNPAD_GOLDEN") or OWN)


def cases(*families: str) -> list[Any]:
    """The cases of these families: the manifest's, and of our own folder those drawn at random."""
    manifests = [FOLDER / "cases.json", *([OWN / "drawn" / "cases.json"] if FOLDER == OWN else [])]
    found = [case for path in manifests for case in json.loads(path.read_text())["cases"]]
    return [case for case in found if case["family"] in families]


class Golden:
    """One case: its arrays, those that have a gradient as leaves."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.arrays: dict[str, Tensor] = {}
        with np.load(FOLDER / case["file"]) as arrays:
            for key in arrays.files:
                value = torch.from_numpy(arrays[key])
                leaf = key.startswith(("weights/", "inputs", "initial_state"))
                self.arrays[key] = value.requires_grad_(leaf and value.is_floating_point())

    def keys(self, *prefixes: str) -> list[str]:
        return [key for key in self.arrays if key.split("/")[0] in prefixes]

    def nest(self, prefix: str) -> Any:
        """What stands below a prefix: a tensor, or a dict by path."""
        if prefix in self.arrays:
            return self.arrays[prefix]
        start = f"{prefix}/"
        return {
            key.removeprefix(start): value
            for key, value in self.arrays.items()
            if key.startswith(start)
        }

    def check(self, found: dict[str, Tensor], sources: dict[str, Tensor] | None = None) -> None:
        """Compare results by key, TensorFlow's loss, and every gradient it gave.

        ``sources``: tensors that stand for an array of the case where they are others.
        """
        assert found.keys() == set(self.keys("outputs", "final_state"))
        for key, value in found.items():
            self.close(key, value)
            if key.startswith("outputs"):  # past the end of a row, exactly 0 and not nearly
                silent = (self.arrays[key] == 0).all(-1)
                assert (value[silent] == 0).all(), f"{self.case['id']} {key}"
        loss = sum(
            ((self.arrays[f"cotangent/{key}"] * value).sum() for key, value in found.items()),
            torch.zeros(()),
        )
        self.close("loss", loss)
        wanted = [key for key in self.arrays if key.startswith("grad/")]
        names = [key.removeprefix("grad/") for key in wanted]
        leaves = [(sources or {}).get(name, self.arrays[name]) for name in names]
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        for key, gradient in zip(wanted, gradients, strict=True):
            self.close(key, gradient)

    def close(self, key: str, value: Tensor) -> None:
        near = self.case.get("max_abs_float32_minus_float64", {})
        group = max(near.values(), default=0.0) if key == "loss" else near.get(key.split("/")[0], 0)
        exact = self.case["dtype"] == "float64"
        absolute = 1e-12 if exact else max(1e-5, 4 * group)
        torch.testing.assert_close(
            value,
            self.arrays[key],
            atol=absolute,
            rtol=1e-12 if exact else 1e-5,
            msg=lambda text: f"{self.case['id']} {key}: {text}",
        )
