"""Print the requirements of this package and of the named extras, one a line.

`make env` installs them before the package itself, so that a change in the C++ sources costs one
quick rebuild and no look at the dependencies.

    python tools/requirements.py train,dev
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no TOML reader of its own; every pip carries one.
    from pip._vendor import tomli as tomllib


def requirements(extras: list[str]) -> list[str]:
    """Requirements of the core and of `extras`, sorted; an unknown extra is a `SystemExit`."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"unknown extras {unknown}; allowed: {sorted(optional)}")
    chosen = [line for extra in extras for line in optional[extra]]
    return sorted({*project["dependencies"], *chosen})


if __name__ == "__main__":
    names = [extra for argument in sys.argv[1:] for extra in argument.split(",") if extra]
    print("\n".join(requirements(names)))
