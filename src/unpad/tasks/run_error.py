"""The one error about run folders."""

from __future__ import annotations

from unpad.errors import UnpadError


class RunError(UnpadError, ValueError):
    """A run folder is missing or broken, or belongs to other settings or data.

    >>> print(RunError("run: no run folder; give the --out of a run"))
    run: no run folder; give the --out of a run
    """
