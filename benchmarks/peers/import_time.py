"""Milliseconds to import torch, then unpad beyond it, in a fresh process.

"collected" is the part of the latter that Python's garbage collector takes to look through all
objects, torch's 170,000 among them: torch's import leaves it a few allocations short of doing so.
"""

from __future__ import annotations

import gc
import json
import time

start = time.perf_counter()
import torch  # noqa: E402, F401

middle = time.perf_counter()
begun: list[float] = []
ended: list[float] = []  # of full collections


def watch(phase: str, info: dict[str, int]) -> None:
    """Note when full collections begin and end."""
    if info["generation"] == 2:
        (begun if phase == "start" else ended).append(time.perf_counter())


gc.callbacks.append(watch)
import unpad  # noqa: E402, F401

end = time.perf_counter()
collected = sum(ended) - sum(begun)
found = {"torch": middle - start, "unpad": end - middle, "collected": collected}
print(json.dumps({name: 1e3 * seconds for name, seconds in found.items()}))
