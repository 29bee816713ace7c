"""What every benchmark here shares; the measuring itself is the package's own, `unpad.bench`.

Three traps that cost this project wrong figures before (see docs/performance.md) are handled there:
torch is bound by page faults under glibc's default malloc (`tuned_malloc`), what ran just before
decides how warm caches and worker threads are (`alternate`), and other work on the machine spoils
a figure (the foreign load of every row).
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Generator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
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
from unpad.compiler.schedule import Scheduled
from unpad.engine import choose
from unpad.engine.torch_engine import Frame

__all__ = [
    "Milliseconds",
    "Timing",
    "alternate",
    "arguments",
    "machine",
    "milliseconds",
    "outside",
    "place",
    "relative_error",
    "rms_error",
    "save",
    "share_of_peak",
    "start",
    "tuned_malloc",
    "watched",
]

Row = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
# Rows of one table are of one of each.
LASTING = ("processor", "cores", "engine", "unpad", "torch", "malloc")
# What was measured last on a machine of another multiply-add peak.
ELSEWHERE = RESULTS / "elsewhere"
_OTHER = 1.25


def arguments(
    description: str, *, seconds: float, pieces: bool = False, **lists: list[Any]
) -> argparse.ArgumentParser:
    """The command line that benchmarks have alike: lists of values, seconds a row, no saving.

    `pieces` adds the option for a long table that is measured in pieces, for `save`.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, values in lists.items():
        parser.add_argument(f"--{name}", nargs="+", default=values, type=type(values[0]))
    parser.add_argument("--seconds", type=float, default=seconds, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    if pieces:
        parser.add_argument(
            "--keep", action="store_true", help="keep the saved rows that are not measured now"
        )
    return parser


def start() -> None:
    """Have torch at its best, and say what the figures depend on."""
    tuned_malloc()
    print(place(machine()), flush=True)


def save(
    question: str,
    rows: list[Row],
    *,
    keep: bool = False,
    by: tuple[str, ...] = (),
    **also: Any,
) -> Path:
    """Write the rows and the machine to results/<question>.json.

    Args:
        question: the benchmark's name.
        rows: what was measured.
        keep: whether saved rows stay that differ from all new ones in a column of `by`, and lists
            of `also` likewise: a long table is measured in pieces, on one machine and engine.
        by: the columns that tell a row from another.
        also: what else stands beside the rows.
    """
    path = RESULTS / f"{question}.json"
    RESULTS.mkdir(exist_ok=True)
    data = {"machine": machine(), **also, "rows": rows}
    if keep and path.exists():
        saved = json.loads(path.read_text())
        changed = [k for k in LASTING if saved["machine"][k] != data["machine"][k]]
        if _another_peak(saved["machine"], data["machine"]) and not _tell_their_machine(rows):
            changed.append("peak")
        if changed:
            raise SystemExit(f"{path.name} is of another {', '.join(changed)}: leave out --keep")
        for name, new in data.items():
            if isinstance(new, list):
                data[name] = _merged(saved.get(name, []), new, by)
    elif path.exists() and _another_peak(json.loads(path.read_text())["machine"], data["machine"]):
        ELSEWHERE.mkdir(exist_ok=True)
        path.replace(ELSEWHERE / path.name)
    path.write_text(json.dumps(data, indent=1, default=_plain) + "\n")
    print(f"saved results/{path.name}")
    return path


def _another_peak(one: Row, other: Row) -> bool:
    """Whether the bars on a share of the peak say another thing there."""
    low, high = sorted([one["peak GF/s a core"], other["peak GF/s a core"]])
    return high > _OTHER * low


def _tell_their_machine(rows: list[Row]) -> bool:
    return all("machine" in row for row in rows)


def _merged(saved: list[Row], new: list[Row], by: tuple[str, ...]) -> list[Row]:
    """New rows in the place of the saved ones that have the same values in `by`, others after."""
    table = {tuple(row.get(column) for column in by): row for row in [*saved, *new]}
    return list(table.values())


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


@contextlib.contextmanager
def watched(see: Callable[[Scheduled, Frame, float], None]) -> Generator[None]:
    """Within the block, `see` is told of every pass that the engine runs, and of its seconds."""
    run = choose._native_pass

    def timed(scheduled: Scheduled, frame: Frame) -> None:
        begin = perf_counter()
        run(scheduled, frame)
        see(scheduled, frame, perf_counter() - begin)

    choose._native_pass = timed
    try:
        yield
    finally:
        choose._native_pass = run


def outside(call: Callable[[], Any], times: int = 1) -> Milliseconds:
    """Of a call, the last of so many in a row, what is not the engine's."""
    taken = 0.0
    for _ in range(times):
        inside: list[float] = []
        with watched(lambda _scheduled, _frame, seconds, inside=inside: inside.append(seconds)):
            begin = perf_counter()
            call()
            taken = perf_counter() - begin - sum(inside)
    return Milliseconds(1e3 * taken)
