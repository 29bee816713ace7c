"""How every benchmark here measures: rivals alternate in one process, at their best, side by side.

Three traps that cost this project wrong figures before (see docs/performance.md):

- torch's recurrent training is bound by page faults under glibc's default malloc, by up to 1.6x:
  `tuned_malloc` starts the process again with thresholds that keep the memory;
- what ran just before decides how warm caches and worker threads are: `alternate` runs the rivals
  in turn, in an order drawn anew for each round, and takes medians;
- other work on the machine: every row carries the share of the CPU that others took meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

import unpad
from unpad.engine import native_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

RESULTS = Path(__file__).parent / "results"
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",  # never give memory back through munmap ...
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),  # ... nor through brk
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}


def tuned_malloc() -> None:
    """Start this very command again with glibc's malloc tuned for torch, unless it is already."""
    if all(os.environ.get(name) == value for name, value in MALLOC.items()):
        return
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one rival: median and quartiles over `rounds` alternating rounds."""

    median: float
    low: float
    high: float
    rounds: int


def alternate(
    rivals: dict[str, Callable[[], object]], *, seconds: float = 4.0, least: int = 7
) -> tuple[dict[str, Timing], float]:
    """Time the rivals in turn until `seconds` are over, at least `least` rounds each.

    Returns the timings, and the share (0..1) of all cores that other processes used meanwhile.
    """
    for run in rivals.values():
        run()
        run()
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    order, end = list(rivals), time.perf_counter() + seconds
    foreign = _ForeignLoad()
    while len(taken[order[0]]) < least or time.perf_counter() < end:
        random.shuffle(order)
        for name in order:
            start = time.perf_counter()
            rivals[name]()
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: _summary(times) for name, times in taken.items()}, foreign.share()


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times))


class _ForeignLoad:
    """CPU time that was not ours, from the kernel's own counters."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy(), time.process_time(), time.perf_counter()

    def share(self) -> float:
        others = (_busy() - self._busy) - (time.process_time() - self._own)
        wall = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        return max(0.0, others / wall)


def _busy() -> float:
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)


def _doubles(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().double() for tensor in tensors]


def relative_error(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Largest deviation over all tensors, each relative to its own largest value."""
    return max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(_doubles(got), _doubles(wanted), strict=True)
    )


def rms_error(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Median over all tensors of the root-mean-square deviation, relative to the wanted one's."""
    return statistics.median(
        float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30))
        for a, b in zip(got, wanted, strict=True)
    )


def share_of_peak(operations: float, milliseconds: float, threads: int) -> float:
    """What part of the machine's multiply-add peak a time is: of the best that this process saw.

    Not a number without the native engine, which measures the peak.
    """
    if not native_engine.available():
        return float("nan")
    _peaks[threads] = max(_peaks.get(threads, 0.0), unpad.machine_peak(threads))
    return operations / (1e-3 * milliseconds) / _peaks[threads]


_peaks: dict[int, float] = {}


def machine() -> dict[str, Any]:
    """What a figure depends on: processor, cores, engine and its tier, versions, malloc."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "engine": _engine(),
        "peak GF/s a core": _peak(),
        "unpad": unpad.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "malloc": "tuned" if os.environ.get("MALLOC_TRIM_THRESHOLD_") else "default",
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _engine() -> str:
    return f"native, {native_engine.tier()}" if native_engine.available() else "torch"


def _peak() -> float | None:
    return round(unpad.machine_peak(1) / 1e9, 1) if native_engine.available() else None


def save(question: str, rows: list[dict[str, Any]]) -> Path:
    """Write the rows and the machine to results/<question>.json, replacing what was there."""
    path = RESULTS / f"{question}.json"
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), "rows": rows}, indent=1, default=_plain)
    path.write_text(text + "\n")
    print(f"saved results/{path.name}")
    return path


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Timing) else str(value)
