"""Timing for the few tests that compare two speeds on whatever machine they run on."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def best_of(runs: int, *jobs: Callable[[], object]) -> list[float]:
    """The best time of each job on one thread, in turns, so that a busy machine meets all alike."""
    torch.set_num_threads(1)
    best = [float("inf")] * len(jobs)
    for _ in range(runs):
        for place, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            best[place] = min(best[place], time.perf_counter() - start)
    return best
