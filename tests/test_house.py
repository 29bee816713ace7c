"""The rules of the house that a machine can check; the reasons are in docs/design.md."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "unpad"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("src", "csrc", "tests", "docs", "examples", "benchmarks", "tools", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".cpp", ".h", ".yaml", ".json", ""}

# A module may import from its own floor and from those below.
FLOORS: dict[str, int] = {
    **dict.fromkeys(("errors", "jit", "ragged", "nest", "noise"), 0),
    "compiler": 1,
    "engine": 2,
    **dict.fromkeys(
        (
            "cells",
            "layers",
            "ctc",
            "functional",
            "forms",
            "states",
            "softmax",
            "nn",
            "explain",
            "stepper",
        ),
        3,
    ),
    **dict.fromkeys(("bench", "data", "tasks", "export", "tf1", "importers"), 4),
    "cli": 5,
}
SLOWER = "cells run on the torch engine"  # said once where there is no native build
EXTRAS = (
    "lightning",
    "pytorch_lightning",
    "matplotlib",
    "pyarrow",
    "rich",
    "safetensors",
    "sklearn",
    "scipy",
    "tensorboard",
    "tokenizers",
    "torchmetrics",
    "typer",
    "click",
    "onnx",
    "onnxruntime",
    "h5py",
    "psutil",
)


def files() -> list[Path]:
    """Every text file of the repository that people write."""
    top = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [
        path
        for path in sorted(top + below)
        if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts
    ]


def sources() -> list[Path]:
    return [path for path in files() if path.suffix in {".py", ".cpp", ".h"}]


def imports(path: Path) -> Iterator[str]:
    """First names below `unpad` that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        else:
            continue
        for module in modules:
            if module.startswith("unpad."):
                yield module.split(".")[1]


def test_no_source_is_longer_than_600_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := lines(p)) > 600}
    assert long == {}


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [path for path in sources() if path.stem in empty or path.parent.name in empty] == []


def test_no_file_names_a_path_of_a_machine_or_a_package_index() -> None:
    foreign = re.compile(
        r"(?<![\w.}])/(?:root|home|work|opt)/\w"  # somebody's folders
        r"|https?://[^\s/)]*(?:pypi|pythonhosted|npmjs)|pytorch\.org/whl"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files()
        if path.resolve() != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if foreign.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_lower_floors_do_not_import_upper_ones(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return  # re-exports the whole house
    assert own in FLOORS, f"{own} has no floor yet: add it to FLOORS and to docs/design.md"
    upper = {name for name in imports(path) if FLOORS.get(name, 0) > FLOORS[own]}
    assert upper == set()


def test_the_root_only_re_exports() -> None:
    body = ast.parse((PACKAGE / "__init__.py").read_text()).body
    written = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert [node.name for node in written if node.name not in {"__getattr__", "__dir__"}] == []


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    pins = dict(
        line.partition(" ; ")[0].split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    wanted = itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for requirement in map(Requirement, wanted):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"


def test_the_installed_version_is_the_one_that_the_changelog_describes() -> None:
    assert importlib.metadata.version("unpad") == PROJECT["version"]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert PROJECT["version"] in headings or len(headings) == 1


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in which no extra's package can be imported."""
    hide = (
        "import sys\n"
        "class Without:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def __getattr__(self, name): return getattr(self.finder, name)\n"
        "    def find_spec(self, name, *where):\n"
        f"        hidden = name.partition('.')[0] in {EXTRAS!r}\n"
        "        return None if hidden else self.finder.find_spec(name, *where)\n"
        "sys.meta_path[:] = map(Without, sys.meta_path)\n"
    )
    quiet = ["-W", "error", "-W", f"ignore:{SLOWER}:RuntimeWarning"]
    command = [sys.executable, *quiet, "-c", hide + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_the_core_trains_with_torch_and_numpy_alone() -> None:
    done = without_extras(
        "import torch, unpad\n"
        "batch = unpad.Ragged.from_list([torch.randn(n, 3) for n in (2, 0, 5)])\n"
        "layer = unpad.nn.LSTM(3, 4)\n"
        "output, _ = layer(batch)\n"
        "output.values.sum().backward()\n"
        "print(float(layer.weight_hh_l0.grad.abs().sum()) > 0)\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_the_command_line_without_its_extra_says_what_to_install() -> None:
    done = without_extras(
        "import unpad.cli\nsys.argv = ['unpad', 'profile', 'x']\nunpad.cli.main()"
    )
    assert done.returncode != 0
    assert "unpad[train]" in done.stderr
    assert "Traceback" not in done.stderr


def public(module: str) -> dict[str, object]:
    """What a module exports of our own; plain records (named tuples) show themselves."""
    found = importlib.import_module(module)
    values = {name: getattr(found, name) for name in found.__all__}
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "__module__", "").startswith("unpad") and not hasattr(value, "_fields")
    }


@pytest.mark.parametrize(
    "module", ["unpad", "unpad.nn", "unpad.functional", "unpad.data", "unpad.tasks"]
)
def test_every_public_name_says_what_it_is(module: str) -> None:
    assert [name for name, value in public(module).items() if not inspect.getdoc(value)] == []


@pytest.mark.parametrize(
    "module", ["unpad", "unpad.nn", "unpad.functional", "unpad.tf1", "unpad.tf1.keras"]
)
def test_every_public_name_shows_an_example(module: str) -> None:
    silent = [
        name
        for name, value in public(module).items()
        if ">>>" not in (inspect.getdoc(value) or "") and not name.endswith(("Error", "Warning"))
    ]
    assert silent == []
