"""The ports of docs/porting-from-tensorflow.md print what TensorFlow's programs printed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

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


def test_every_port_prints_the_numbers_of_its_program() -> None:
    """Where a port differs on purpose, what it prints stands below it instead."""
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
