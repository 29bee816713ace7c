"""Small data sets that a small model learns in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def sequences(seed: int, count: int = 60, classes: int = 3) -> tuple[list[Any], list[int]]:
    """Noise around a class's own level, lengths 1 to 12, two features."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count).tolist()
    return [random.normal(1.5 * y, 1, (random.integers(1, 13), 2)) for y in labels], labels


@pytest.fixture
def data(tmp_path: Path, seed: int) -> Path:
    """The sequences as JSONL with labels "c0" to "c2"; one is empty."""
    arrays, labels = sequences(seed)
    arrays[7] = np.zeros((0, 2))
    path = tmp_path / "data.jsonl"
    rows = zip(arrays, labels, strict=True)
    path.write_text(
        "".join(json.dumps({"x": x.tolist(), "label": f"c{y}"}) + "\n" for x, y in rows)
    )
    return path
