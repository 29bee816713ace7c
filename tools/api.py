"""Write docs/api.md: every public name and the first line of its docstring.

python tools/api.py          # write
python tools/api.py --check  # exit 1 where the page and the package differ
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
MODULES = (
    "unpad",
    "unpad.nn",
    "unpad.functional",
    "unpad.data",
    "unpad.tasks",
    "unpad.tf1",
    "unpad.tf1.keras",
    "unpad.importers",
)
LISTED = ("Ragged",)  # classes whose methods are shown too
HEAD = """# API

Written by `tools/api.py` from the docstrings; `help(name)` has the whole of each: the equation, the
arguments with their shapes, the errors, what length 0 and gradients do, and an example.
"""


def page() -> str:
    return "\n".join([HEAD, *map(section, MODULES)])


def section(name: str) -> str:
    """A module's heading, its first line and the table of its public names."""
    module = importlib.import_module(name)
    public = [part for part in sorted(module.__all__) if not part.startswith("__")]
    rows = [row(part, getattr(module, part)) for part in public]
    listed = [methods(part, getattr(module, part)) for part in public if part in LISTED]
    lines = [f"## `{name}`", "", first_line(module), "", "| name | |", "| --- | --- |", *rows]
    return "\n".join([*lines, "", *listed])


def row(name: str, value: object) -> str:
    if isinstance(value, ModuleType):
        return f"| `{name}` | module: {first_line(value)} |"
    brackets = "()" if inspect.isroutine(value) else ""
    return f"| `{name}{brackets}` | {first_line(value)} |"


def methods(name: str, owner: type) -> str:
    """The public methods and properties of a class and of its bases in this package."""
    own = {
        method: inspect.getattr_static(owner, method)
        for method in sorted(dir(owner))
        if not method.startswith("_") and _is_ours(owner, method)
    }
    rows = [f"| `{method}` | {first_line(value)} |" for method, value in own.items()]
    return "\n".join([f"### `{name}`", "", "| name | |", "| --- | --- |", *rows, ""])


def _is_ours(owner: type, method: str) -> bool:
    homes = [base.__module__ for base in owner.__mro__ if method in vars(base)]
    return homes[0].startswith("unpad")


def first_line(value: object) -> str:
    """The first sentence of a docstring's first paragraph, on one line, safe in a table."""
    text = inspect.getdoc(value) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.replace("|", "\\|").removesuffix("::")


def main() -> int:
    wanted = page().rstrip() + "\n"
    if PAGE.exists() and PAGE.read_text() == wanted:
        return 0
    if "--check" in sys.argv:
        print("docs/api.md differs from the package: run `make docs`")
        return 1
    PAGE.write_text(wanted)
    print("docs/api.md written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
