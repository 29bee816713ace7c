"""Rivals take turns, and the figure is a median.

What ran just before decides how warm caches and worker threads are, so the rivals run in an order
drawn anew for each round. Other work on the machine spoils any figure, so every comparison carries
the share of the CPU that others took meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil


class Milliseconds(float):
    """What a rival returns that has timed itself: in another process, or but a part of its call."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one rival: median and quartiles over `rounds` alternating rounds."""

    median: float
    low: float
    high: float
    rounds: int


def alternate(
    rivals: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 4.0,
    least: int = 7,
    each_round: Callable[[float], object] = lambda share: None,
) -> tuple[dict[str, Timing], float]:
    """Time the rivals in turn until `seconds` are over, at least `least` (2 or more) rounds each.

    Args:
        rivals: called without arguments, twice before the first round. A rival that returns
            `Milliseconds` is believed; any other's call is timed.
        seconds: when to stop.
        least: rounds that are made however long they take.
        each_round: told after each round which share of the work is done (0..1).

    Returns:
        The timings, and the share (0..1) of all cores that other processes used meanwhile.

    >>> times, _ = alternate({"a": lambda: Milliseconds(3), "b": int}, seconds=0, least=2)
    >>> times["a"]
    Timing(median=3.0, low=3.0, high=3.0, rounds=2)
    """
    for run in rivals.values():
        run()
        run()
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    order, start, rounds = list(rivals), time.perf_counter(), 0
    foreign = ForeignLoad()
    while rounds < least or time.perf_counter() < start + seconds:
        random.shuffle(order)
        for name in order:
            taken[name].append(milliseconds(rivals[name]))
        rounds += 1
        passed = (time.perf_counter() - start) / seconds if seconds else 1.0
        each_round(min(1.0, rounds / least, passed))
    return {name: _summary(times) for name, times in taken.items()}, foreign.share()


def milliseconds(run: Callable[[], object]) -> Milliseconds:
    """Call and time it, unless it times itself.

    >>> milliseconds(lambda: Milliseconds(3))
    3.0
    """
    start = time.perf_counter()
    result = run()
    passed = 1e3 * (time.perf_counter() - start)
    return result if isinstance(result, Milliseconds) else Milliseconds(passed)


def _summary(times: list[float]) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high, len(times))


class ForeignLoad:
    """CPU time that was neither ours nor our children's, from the kernel's own counters; what a
    host took from a virtual machine is part of it.

    >>> 0.0 <= ForeignLoad().share() <= 1.0
    True
    """

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy(), _own(), time.perf_counter()

    def share(self) -> float:
        """The share of all cores that others took since this was made."""
        others = (_busy() - self._busy) - (_own() - self._own)
        wall = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, others / wall))


def _busy() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, kind, 0.0) for kind in ("user", "system", "nice", "steal"))


def _own() -> float:
    me = psutil.Process()
    ended = me.cpu_times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return total
