"""The ports of docs/porting-from-tensorflow.md print what TensorFlow's programs printed."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from operator import attrgetter
from pathlib import Path

import pytest
import torch

import unpad
import unpad.data
from tf1.golden_files import OWN
from unpad import tf1
from unpad.tf1 import keras

SAVED = OWN / "checkpoints" / "savedmodel_v1_lstm_basic" / "model"
PAGE = Path(__file__).parents[2] / "docs" / "porting-from-tensorflow.md"
BLOCK = re.compile(r"^```(python tensorflow|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def sections() -> list[list[tuple[str, str]]]:
    """The blocks of every section that has a TensorFlow program: kind, source."""
    texts = PAGE.read_text().split("\n## ")
    found = [BLOCK.findall(text) for text in texts]
    return [blocks for blocks in found if any(kind == "python tensorflow" for kind, _ in blocks)]


def parts(line: str) -> list[str | float]:
    return [float(part) if _is_number(part) else part for part in re.split(r"[\s\[\],]+", line)]


def _is_number(part: str) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return True


def test_every_port_prints_the_numbers_of_its_program(tmp_path, monkeypatch) -> None:
    """Where a port differs on purpose, what it prints stands below it instead."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SAVED, "classifier")
    names: dict[str, object] = {}
    compared = 0
    for blocks in sections():
        wanted = printed = ""
        for kind, source in blocks:
            if kind == "text":
                wanted = source
            elif kind == "python":
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(compile(source, str(PAGE), "exec"), names)
                printed += out.getvalue()
        assert printed, "a port that prints nothing shows nothing"
        lines, expected = printed.splitlines(), wanted.splitlines()
        assert len(lines) == len(expected), printed
        for line, like in zip(lines, expected, strict=True):
            for found, right in zip(parts(line), parts(like), strict=True):
                assert (
                    found == pytest.approx(right, abs=2e-5)
                    if isinstance(right, float)
                    else (found == right)
                ), (line, like)
                compared += isinstance(right, float)
    assert compared > 10
    assert len(sections()) == 7


def table_of(heading: str) -> list[list[str]]:
    """The rows of the one table of a section, a list of cells each."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_names_that_are_not_here_are_not_and_those_instead_of_them_are() -> None:
    modules = {"unpad": unpad, "tf1": tf1, "keras": keras, "torch": torch}
    found = 0
    for theirs, ours in table_of("Names that are not here"):
        for name in re.findall(r"`(\w+)`", theirs.replace("`StackedRNNCells` of", "")):
            if name != "tf":
                assert not hasattr(tf1, name), name
                assert not hasattr(keras, name), name
        for module, name in re.findall(r"`(unpad|tf1|keras|torch)\.([\w.]+)", ours):
            assert attrgetter(name)(modules[module]) is not None
            found += 1
    assert found > 20
