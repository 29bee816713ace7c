"""What a figure depends on: processor, threads, engine and its tier, malloc, versions."""

from __future__ import annotations

import ctypes
import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from unpad.engine import native_engine

# malloc.h: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD. Memory is never given back,
# neither through munmap nor through brk.
_MALLOPT = ((-4, 0), (-1, -1), (-2, 256 << 20), (-3, 32 << 20))
# The same for another process.
MALLOC_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
_tuned = False
_peaks: dict[int, float] = {}


def tuned_malloc() -> bool:
    """Have glibc's malloc keep its memory from now on; tell whether it does (other ones do not).

    By default torch's recurrent training is bound by page faults, by up to 1.6x: a comparison has
    to spare it that.
    """
    global _tuned  # noqa: PLW0603 - a setting of the process, which cannot be asked for
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    _tuned = mallopt is not None and all(mallopt(*setting) == 1 for setting in _MALLOPT)
    return _tuned


def best_peak(threads: int) -> float:
    """Operations a second of the machine's multiply-adds: the best that this process saw.

    A virtual machine's cores may share one of the host's for a while. Not a number without the
    native engine, which measures it.
    """
    if not native_engine.available():
        return float("nan")
    _peaks[threads] = max(_peaks.get(threads, 0.0), native_engine.machine_peak(threads))
    return _peaks[threads]


def share_of_peak(operations: float, milliseconds: float, threads: int) -> float:
    """What part of the machine's multiply-add peak a time is (`best_peak`)."""
    return operations / (1e-3 * milliseconds) / best_peak(threads)


def machine() -> dict[str, Any]:
    """The facts that stand beside every figure.

    >>> sorted(machine())[:4]
    ['cores', 'date', 'engine', 'malloc']
    """
    from unpad import __version__  # the root imports everything below this floor

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "engine": _engine(),
        "peak GF/s a core": _peak(),
        "unpad": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "malloc": "tuned" if _tuned else "default",
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def place(machine: dict[str, Any]) -> str:
    """The machine in a line, as it stands below a table."""
    peak = machine.get("peak GF/s a core")
    return (
        f"{machine['processor']}, {machine['cores']} cores{f' of {peak:g} GF/s' if peak else ''}; "
        f"{machine['engine']}; torch {machine['torch']}, malloc {machine['malloc']}; "
        f"{machine['date']}."
    )


def _processor() -> str:
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _engine() -> str:
    return f"native, {native_engine.tier()}" if native_engine.available() else "torch"


def _peak() -> float | None:
    if not native_engine.available():
        return None
    best_peak(os.cpu_count() or 1)  # seen once before anything else runs
    return round(best_peak(1) / 1e9, 1)
