"""Does anything grow, or start slowly, when every batch has new lengths?

Forward and backward on batches whose size and lengths are drawn anew at each call. Three promises
are checked, and the exit status is 1 where one is broken:

- one trace: the cell is traced once, whatever comes;
- flat memory: between the first tenth of the calls and the last, resident memory grows by at most
  2 %;
- no slow first time: the first call of lengths never seen before takes no longer than one of the
  same lengths again (ratio of medians at most 1.1). Its numbers are drawn anew, so that what stood
  before, which cools the caches by 30 us of 300, is the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import psutil
import torch
from measure import machine, save

import unpad


def new_batch(width: int) -> unpad.Ragged:
    """1..16 sequences of 0..40 tokens."""
    lengths = torch.randint(0, 41, (int(torch.randint(1, 17, ())),))
    return unpad.Ragged.from_lengths(torch.randn(int(lengths.sum()), width), lengths)


def train(layer: torch.nn.Module, batch: unpad.Ragged) -> float:
    """One forward and backward; the seconds that it took."""
    start = time.perf_counter()
    output, _ = layer(batch)
    output.values.sum().backward()
    return time.perf_counter() - start


def measure(calls: int, width: int) -> dict[str, Any]:
    torch.manual_seed(0)
    layer = unpad.nn.LSTM(width, width)
    traces = unpad.trace_count()
    resident, process = {}, psutil.Process()
    for call in range(1, calls + 1):
        train(layer, new_batch(width))
        if call in (calls // 10, calls):
            resident[call] = process.memory_info().rss
    first, again = [], []
    for _ in range(500):
        batch = new_batch(width)
        first.append(train(layer, batch))
        alike = unpad.Ragged.from_lengths(torch.randn_like(batch.values), batch.lengths)
        again.append(train(layer, alike))
    early, late = resident.values()
    return {
        "calls": calls,
        "traces": unpad.trace_count() - traces,
        "early MB": early / 1e6,
        "late MB": late / 1e6,
        "growth": late / early - 1,
        "first call / second call": statistics.median(first) / statistics.median(again),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine())
    row = measure(options.calls, options.width)
    for name, value in row.items():
        print(f"{name:26}{value:10.4g}")
    kept = {
        "one trace": row["traces"] == 1,
        "flat memory": row["growth"] <= 0.02,
        "no slow first time": row["first call / second call"] <= 1.1,
    }
    for promise, holds in kept.items():
        print(f"{promise:26}{'kept' if holds else 'BROKEN':>10}")
    if not options.no_save:
        save("memory_flat", [row])
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
