"""A tanh layer over one sequence in NumPy, forward and backward, as a loop over the steps.

The job: `hoisted` (whether the products that need no loop are taken for all steps at once).
The arrays: x [T, I], pull [T, H], parameters by torch's names. The results: the gradients of x and
of every parameter. It runs in a process of its own, without the variables that would hold OpenBLAS
to another processor's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import threadpoolctl
from protocol import Arrays, serve


def build(job: dict[str, Any], arrays: Arrays) -> tuple[Callable[[], Any], Callable[[Any], Arrays]]:
    threadpoolctl.threadpool_limits(job["threads"])
    train = _hoisted if job["hoisted"] else _loop
    return lambda: train(arrays), lambda found: found


def _loop(a: Arrays) -> Arrays:
    """Everything step by step, as one writes it first."""
    x, w, r = a["x"], a["weight_ih_l0"], a["weight_hh_l0"]
    b = a["bias_ih_l0"] + a["bias_hh_l0"]
    h = np.zeros((len(x) + 1, len(r)), np.float32)
    for t in range(len(x)):
        h[t + 1] = np.tanh(w @ x[t] + r @ h[t] + b)
    dx, dw, dr, db = np.empty_like(x), np.zeros_like(w), np.zeros_like(r), np.zeros_like(b)
    dh = np.zeros_like(b)
    for t in reversed(range(len(x))):
        da = (1 - h[t + 1] ** 2) * (a["pull"][t] + dh)
        dx[t] = w.T @ da
        dw += np.outer(da, x[t])
        dr += np.outer(da, h[t])
        db += da
        dh = r.T @ da
    return _named(dx, dw, dr, db)


def _hoisted(a: Arrays) -> Arrays:
    """The loop holds what depends on the step before, and nothing else."""
    x, w, r = a["x"], a["weight_ih_l0"], a["weight_hh_l0"]
    from_x = x @ w.T + (a["bias_ih_l0"] + a["bias_hh_l0"])
    h = np.zeros((len(x) + 1, len(r)), np.float32)
    for t in range(len(x)):
        h[t + 1] = np.tanh(from_x[t] + r @ h[t])
    slope, da = 1 - h[1:] ** 2, np.empty_like(from_x)
    dh = np.zeros(len(r), np.float32)
    for t in reversed(range(len(x))):
        da[t] = slope[t] * (a["pull"][t] + dh)
        dh = da[t] @ r
    return _named(da @ w, da.T @ x, da.T @ h[:-1], da.sum(0))


def _named(dx: Any, dw: Any, dr: Any, db: Any) -> Arrays:
    return {
        "x": dx,
        "weight_ih_l0": dw,
        "weight_hh_l0": dr,
        "bias_ih_l0": db,
        "bias_hh_l0": db,
    }


if __name__ == "__main__":
    kernels = {pool.get("architecture") for pool in threadpoolctl.threadpool_info()} - {None}
    serve(f"numpy {np.__version__}, {' '.join(sorted(kernels)) or 'own kernels'}", build)
