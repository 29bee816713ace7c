"""What every benchmark here shares; the measuring itself is the package's own, `unpad.bench`.

Three traps that cost this project wrong figures before (see docs/performance.md) are handled there:
torch is bound by page faults under glibc's default malloc (`tuned_malloc`), what ran just before
decides how warm caches and worker threads are (`alternate`), and other work on the machine spoils
a figure (the foreign load of every row).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unpad.bench import (
    Milliseconds,
    Timing,
    alternate,
    machine,
    milliseconds,
    place,
    relative_error,
    rms_error,
    share_of_peak,
    tuned_malloc,
)

__all__ = [
    "Milliseconds",
    "Timing",
    "alternate",
    "arguments",
    "machine",
    "milliseconds",
    "place",
    "relative_error",
    "rms_error",
    "save",
    "share_of_peak",
    "start",
    "tuned_malloc",
]

RESULTS = Path(__file__).parent / "results"


def arguments(description: str, *, seconds: float, **lists: list[Any]) -> argparse.ArgumentParser:
    """The command line that benchmarks have alike: lists of values, seconds a row, no saving."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, values in lists.items():
        parser.add_argument(f"--{name}", nargs="+", default=values, type=type(values[0]))
    parser.add_argument("--seconds", type=float, default=seconds, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser


def start() -> None:
    """Have torch at its best, and say what the figures depend on."""
    tuned_malloc()
    print(place(machine()), flush=True)


def save(question: str, rows: list[dict[str, Any]], **also: Any) -> Path:
    """Write the rows and the machine to results/<question>.json, replacing what was there."""
    path = RESULTS / f"{question}.json"
    RESULTS.mkdir(exist_ok=True)
    data = {"machine": machine(), **also, "rows": rows}
    path.write_text(json.dumps(data, indent=1, default=_plain) + "\n")
    print(f"saved results/{path.name}")
    return path


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Timing) else str(value)


def table_line(row: dict[str, Any], rivals: tuple[str, ...]) -> str:
    """The part of a printed row that all comparisons have alike; `heading` is above it."""
    times = " ".join(f"{row[name].median:9.2f}" if name in row else " " * 9 for name in rivals)
    return (
        f"{row['batch']:5}{row['threads']:4}{row['tokens']:8} | {times} | "
        f"{row.get('share of peak', float('nan')):4.0%} {row['ratio']:6.2f}x | "
        f"{row['padding gain']:7.2f}x{row['loop gain']:7.2f}x | "
        f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:4.0%}"
    )


def heading(rivals: tuple[str, ...]) -> str:
    names = " ".join(f"{name[-9:]:>9}" for name in rivals)
    return (
        f"{'B':>5}{'thr':>4}{'tokens':>8} | {names} | peak   ratio | padding   loop  | "
        "error   peer's  | foreign"
    )


def gains(times: dict[str, Timing], peers: list[str], padding: float) -> dict[str, Any]:
    """The fastest of the peers, the ratio to it, and its two parts."""
    peer = min(peers, key=lambda name: times[name].median)
    ratio = times[peer].median / times["unpad"].median
    return {"peer": peer, "ratio": ratio, "padding gain": padding, "loop gain": ratio / padding}
