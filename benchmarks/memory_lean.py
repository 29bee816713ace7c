"""How much memory does memory="lean" leave of a long training step, and what does it cost in time?

One forward and backward of an LSTM 128 -> 128 on 8 sequences of 10,000 steps. The memory is what a
fresh process's resident peak rises by in the step, less the output and the input's gradient, which
any way of running has: activations, and all that the engine works with. The times alternate in one
process; the errors are the largest of any gradient against float64. Where the time goes is told by
the passes of the two ways, and by what stands between them.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
import torch
from measure import alternate, machine, relative_error, save, tuned_malloc, watched

import unpad
from unpad.engine.torch_engine import Columns, Frame

if TYPE_CHECKING:
    from torch import Tensor


class Step:
    """A layer, a batch of long sequences and the gradient that arrives."""

    def __init__(self, steps: int, batch: int, width: int) -> None:
        torch.manual_seed(0)
        self.layer = unpad.nn.Recurrent(unpad.nn.LSTMCell(width, width))
        self.x = unpad.Ragged.from_lengths(torch.randn(steps * batch, width), [steps] * batch)
        self.x.requires_grad_()
        self.pull = torch.randn(steps * batch, width)

    def gradients(self, memory: str) -> list[Tensor]:
        self.layer.memory = memory
        output = self.layer(self.x)[0].values
        return list(
            torch.autograd.grad(output, (self.x.values, *self.layer.parameters()), self.pull)
        )

    def double(self) -> Step:
        wide = copy.deepcopy(self)
        wide.layer, wide.pull = wide.layer.double(), wide.pull.double()
        wide.x = wide.x.detach().double().requires_grad_()
        return wide


def peak(step: Step, memory: str) -> int:
    """Bytes by which one training step raises this process's resident peak."""
    Step(800, 8, step.pull.shape[1]).gradients(memory)  # compiled, and the code is in memory
    unpad.trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = psutil.Process().memory_info().rss
    step.gradients(memory)
    status = Path("/proc/self/status").read_text()
    highest = int(status.partition("VmHWM:")[2].split()[0]) << 10
    return highest - before - 2 * step.pull.nbytes


def peak_alone(memory: str, options: argparse.Namespace, threads: int) -> int:
    """The same in a process of its own."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("steps", "batch", "width")]
    command = [sys.executable, __file__, "--peak", memory, f"--threads={threads}", *sizes]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def apart(call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of a step's passes by kind, and outside of the engine; the median of five."""
    runs: list[dict[str, float]] = []
    for _ in range(5):
        found = {"forward": 0.0, "saving": 0.0, "backward": 0.0, "backward calls": 0.0}

        def see(_: object, frame: Frame, seconds: float, found: dict[str, float] = found) -> None:
            kept = any(isinstance(stream, Columns) for stream in frame.streams)
            name = "backward" if frame.accumulators else "saving" if kept else "forward"
            found[name] += 1e3 * seconds
            found["backward calls"] += bool(frame.accumulators)

        with watched(see):
            begin = perf_counter()
            call()
            whole = 1e3 * (perf_counter() - begin)
        passes = sum(found[name] for name in ("forward", "saving", "backward"))
        runs.append({**found, "outside": whole - passes})
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def measure(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    peaks = {memory: peak_alone(memory, options, threads) for memory in ("fast", "lean")}
    step = Step(options.steps, options.batch, options.width)
    exact = step.double().gradients("fast")
    errors = {m: relative_error(step.gradients(m), exact) for m in ("fast", "lean")}
    del exact
    rivals = {memory: (lambda memory=memory: step.gradients(memory)) for memory in peaks}
    times, foreign = alternate(rivals, seconds=options.seconds, least=3)
    parts = {memory: apart(call) for memory, call in rivals.items()}
    return {
        "cell": "LSTM",
        "width": options.width,
        "batch": options.batch,
        "steps": options.steps,
        "threads": threads,
        "fast MB": peaks["fast"] / 1e6,
        "lean MB": peaks["lean"] / 1e6,
        "share of memory": peaks["lean"] / peaks["fast"],
        **times,
        "stretches": parts["lean"]["backward calls"],
        **{f"{memory} {name}": ms for memory, part in parts.items() for name, ms in part.items()},
        "time ratio": times["lean"].median / times["fast"].median,
        "error": errors["lean"],
        "fast error": errors["fast"],
        "foreign load": foreign,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=40.0, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--peak", help="print the bytes of one step in this process, and end")
    options = parser.parse_args()
    if options.peak:
        torch.set_num_threads(options.threads[0])
        print(peak(Step(options.steps, options.batch, options.width), options.peak))
        return
    tuned_malloc()
    print(machine())
    rows = []
    for threads in options.threads:
        row = measure(options, threads)
        rows.append(row)
        print(
            f"LSTM {row['width']}, B {row['batch']}, T {row['steps']}, {threads} threads | "
            f"{row['fast MB']:.1f} -> {row['lean MB']:.1f} MB, {row['share of memory']:.1%} | "
            f"{row['fast'].median:.0f} -> {row['lean'].median:.0f} ms, {row['time ratio']:.2f}x | "
            f"error {row['fast error']:.1e} {row['error']:.1e} | {row['foreign load']:.0%}",
            flush=True,
        )
    if not options.no_save:
        save("memory_lean", rows)


if __name__ == "__main__":
    main()
