"""The serving side of a peer: a process in an environment of its own that is told when to run.

It reads a line of JSON at a time from standard input and answers each with one line. What the
libraries print goes to standard error. Only NumPy is needed; `../peer.py` is the other side.

    {"do": "build", "job": {...}, "arrays": "in.npz"}   {"version": "..."}
    {"do": "run"}                                       {"milliseconds": 1.5}
    {"do": "loop", "seconds": 2}                        {"milliseconds": 1.5} (the median)
    {"do": "results", "arrays": "out.npz"}              {}
    {"do": "peak"}                                      {"bytes": 1000000}

An answer with "error" says what went wrong instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Build = Callable[[dict[str, Any], Arrays], tuple[Callable[[], Any], Callable[[Any], Arrays]]]


def serve(version: str, build: Build) -> None:
    """Answer until standard input ends.

    Args:
        version: of the library, for the table.
        build: takes a job and its arrays; gives `run`, which is timed, and what makes named arrays
            of its result, which is not. Everything is computed when `run` returns.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = _Server(version, build)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request.pop("do"))(**request)
        except Exception as error:  # whatever it is, the other side has to hear of it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Server:
    def __init__(self, version: str, build: Build) -> None:
        self._version, self._build = version, build
        with contextlib.suppress(OSError):  # the peak starts anew here, after the import
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _resident("VmRSS")

    def build(self, job: dict[str, Any], arrays: str) -> dict[str, Any]:
        with np.load(arrays) as file:
            self._run, self._name = self._build(job, dict(file))
        return {"version": self._version}

    def run(self) -> dict[str, float]:
        start = time.perf_counter()
        self._last = self._run()
        return {"milliseconds": 1e3 * (time.perf_counter() - start)}

    def loop(self, seconds: float) -> dict[str, float]:
        end, taken = time.perf_counter() + seconds, [self.run()["milliseconds"]]
        while time.perf_counter() < end:
            taken.append(self.run()["milliseconds"])
        return {"milliseconds": statistics.median(taken)}

    def results(self, arrays: str) -> dict[str, Any]:
        named = self._name(self._run())
        np.savez(arrays, **{name: np.asarray(value) for name, value in named.items()})
        return {}

    def peak(self) -> dict[str, int]:
        return {"bytes": _resident("VmHWM") - self._before}


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")
