"""Does a token cost the same in short sequences as in long ones?

Forward and backward of an LSTM on batches of equal tokens: sequences of 10, 100, 1,000 and 10,000
tokens, as many as make the total. The lengths take turns in one run. The figure is the time a token
over that of the fastest length; 1 everywhere would be flat. torch.nn's layer on the same batches
stands beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from measure import alternate, arguments, relative_error, save, share_of_peak, start

from unpad.bench import Rivals, Task


def main() -> None:
    parser = arguments(__doc__, seconds=60.0, steps=[10, 100, 1000, 10_000], threads=[2])
    parser.add_argument("--tokens", type=int, default=320_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--no-torch", action="store_true", help="time unpad alone")
    options = parser.parse_args()
    start()
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        rows += measure(options, threads)
    if not options.no_save:
        save("sequence_length", rows, tokens=options.tokens, width=options.width)


def measure(options: Any, threads: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    task = Task("LSTM", options.width)
    jobs = {n: Rivals(task, [n] * max(1, options.tokens // n)) for n in options.steps}
    ways = {"unpad": Rivals.run_ours} | ({} if options.no_torch else {"padded": Rivals.run_padded})
    rivals = {
        f"{way} {n}": (lambda run=run, job=job: run(job))
        for n, job in jobs.items()
        for way, run in ways.items()
    }
    times, foreign = alternate(rivals, seconds=options.seconds, least=3)
    cost = {
        (way, n): 1e6 * times[f"{way} {n}"].median / sum(job.lengths)
        for n, job in jobs.items()
        for way in ways
    }
    fastest = {way: min(cost[way, n] for n in jobs) for way in ways}
    rows = []
    for n, job in jobs.items():
        ours = times[f"unpad {n}"].median
        row = {
            "steps": n,
            "batch": len(job.lengths),
            "threads": threads,
            "tokens": sum(job.lengths),
            "padding gain": 1.0,
            "ns a token": cost["unpad", n],
            "over the fastest": cost["unpad", n] / fastest["unpad"],
            "share of peak": share_of_peak(task.operations(sum(job.lengths)), ours, threads),
            "error": error(task, n),
            "foreign load": foreign,
        }
        if "padded" in ways:
            row["torch, ns a token"] = cost["padded", n]
            row["torch over its fastest"] = cost["padded", n] / fastest["padded"]
            row["ratio"] = times[f"padded {n}"].median / ours
        rows.append(row)
        print(line(row), flush=True)
    return rows


def error(task: Task, steps: int) -> float:
    """Against float64, on two sequences of this length: all of them would not fit."""
    rivals = Rivals(task, [steps] * 2)
    return relative_error(rivals.gradients("unpad"), rivals.exact())


def line(row: dict[str, Any]) -> str:
    theirs = f"{row['torch, ns a token']:8.0f} {row['ratio']:5.2f}x" if "ratio" in row else ""
    return (
        f"T {row['steps']:6} B {row['batch']:6} {row['threads']} thr padding 1.00x | "
        f"{row['ns a token']:8.0f} ns a token {row['over the fastest']:5.2f}x the fastest "
        f"{row['share of peak']:4.0%} of peak | torch {theirs} | {row['error']:.1e} | "
        f"{row['foreign load']:3.0%}"
    )


if __name__ == "__main__":
    main()
