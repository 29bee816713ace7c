"""Accuracy on real data, by the recipes of ``examples/recipes.py``."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from unpad.cli import main

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"

in_full = pytest.mark.skipif(
    not os.environ.get("UNPAD_ACCEPTANCE"),
    reason="minutes of training: set UNPAD_ACCEPTANCE=1 to run it",
)


def recipes() -> Any:
    spec = importlib.util.spec_from_file_location("recipes", ROOT / "examples" / "recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def accuracy(name: str, out: Path, capsys: pytest.CaptureFixture[str], seed: int = 0) -> float:
    """Test accuracy of the recipe of a set."""
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"the {name} data are not in {SHARED}")
    train, evaluate = recipes().commands(name, folder, out / f"run{seed}")
    for command in ([*train, "--seed", str(seed)], [*evaluate, "--json"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert not ended.value.code
    found = float(json.loads(capsys.readouterr().out)["accuracy"])
    with capsys.disabled():
        print(f"\n{name}, seed {seed}: {found:.2%} of the test sequences", flush=True)
    return found


@pytest.mark.slow
def test_japanese_vowels_reach_97_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sum(accuracy("japanese_vowels", tmp_path, capsys, seed) for seed in range(3)) / 3 >= 0.97


@in_full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("plaid", 0.834),  # 1-NN with dynamic time warping, by the UCR archive
        ("snips", 0.97),
        ("names", 0.80),
    ],
)
def test_larger_sets_reach_their_bar(
    name: str, least: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accuracy(name, tmp_path, capsys) >= least
