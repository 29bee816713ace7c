"""What the documentation shows is what the library does: every snippet and every doctest is run."""

from __future__ import annotations

import doctest
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
FIRST = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = sorted([*FIRST, *(ROOT / "docs").glob("*.md"), *SOURCE.rglob("README.md")])
SAVED = ROOT / "tests/golden/checkpoints/savedmodel_v1_lstm_basic/model"
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(?:#[^)]*)?\)")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules() -> list[str]:
    """Every module of the package, by its file."""
    below = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in below)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_snippet_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snippets of one page are one session: a later one may use what an earlier one made."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    if '"classifier"' in text:  # the SavedModel that the page reads
        shutil.copytree(SAVED, tmp_path / "classifier")
    names: dict[str, object] = {"__name__": "__main__"}
    for match in SNIPPET.finditer(text):
        # Blank lines in front make a traceback name the line of the page.
        lines_above = text[: match.start(1)].count("\n")
        source = "\n" * lines_above + match.group(1)
        if ">>>" in source:
            run_session(source, names, page)
        else:
            exec(compile(source, str(page), "exec"), names)


def run_session(source: str, names: dict[str, object], page: Path) -> None:
    """A snippet that shows a prompt and the answers: the answers are checked."""
    test = doctest.DocTestParser().get_doctest(source, names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    runner.run(test, clear_globs=False)
    names.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0, f"see above: {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    missing = [to for to in LINK.findall(page.read_text()) if not (page.parent / to).exists()]
    assert missing == []


@pytest.mark.parametrize("command", ["tools/api.py", "benchmarks/report.py"])
def test_a_written_page_is_what_its_command_writes(command: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / command), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", modules())
def test_every_docstring_example_of_a_module_runs(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=OPTIONS)
    assert result.failed == 0, f"see above: {name}"
