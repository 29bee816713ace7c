"""Replace files so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file in the same folder, sync it to disk, then rename it.

    The folder is synced too, so that the new name survives a power cut. If ``write`` fails, the old
    file stands and the temporary one is gone.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    temporary = Path(name)
    try:
        os.close(handle)
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def leftovers(folder: Path) -> list[Path]:
    """Temporary files in a folder of processes that were stopped before they could remove them."""
    found = [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]
    return [path for path in found if path.is_file()]


# .run.json.k3x_9a1b.json, as `mkstemp` draws it: nobody else's file may be taken for one.
_TEMPORARY = re.compile(r"\..+(\.[^.]+)\.[a-z0-9_]{8}\1")


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file (UTF-8) atomically."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: str | Path, data: Any) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
