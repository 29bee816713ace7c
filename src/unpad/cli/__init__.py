"""The command line ``unpad``: profile, bench, train, evaluate, predict, generate,
score, import.

Exit codes: 0 done; 1 a defect of unpad (with a traceback); 2 a wrong command line; 3 data, settings
or a run folder that cannot be used (one line says why); 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from unpad.errors import UnpadError

BAD_INPUT, STOPPED = 3, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    try:
        from unpad.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is missing; install it with: pip install 'unpad[train]'")
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="unpad")
    except (UnpadError, OSError) as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
