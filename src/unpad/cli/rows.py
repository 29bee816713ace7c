"""Answers as JSON lines: into a file as a whole, or to standard output as they come."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import IO, Any

from unpad.tasks.atomic import write_atomically


def write_rows(rows: Iterable[dict[str, Any]], result: Path | None, *, at_once: bool) -> None:
    """Write a JSON line a row; ``at_once`` sends each to standard output as it comes."""
    if result is None:
        with open_output():
            _write(rows, sys.stdout, at_once=at_once)
        return

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            _write(rows, file)

    write_atomically(result, write)


@contextlib.contextmanager
def open_output() -> Generator[None]:
    """Standard output, flushed at the end; a reader who has had enough of it is no error."""
    try:
        try:
            yield
        finally:  # before an error, too, come the answers to what was right
            sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, say) has had enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(rows: Iterable[dict[str, Any]], file: IO[str], *, at_once: bool = False) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if at_once:
            file.flush()
