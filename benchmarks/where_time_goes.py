"""Where does a training step spend its time: in products, between them, or around the engine?

The step of `train_sizes` (forward and backward, lengths uniform from 10 to 100), and of one
sequence of 100, taken apart. Each pass is run again on the same memory with its products alone,
with all else alone, and with neither, which leaves the plan, packing the weights, adding up the
sums of the threads and copying the states. These are a little more than the two whole passes: data
that products and all else each fetch where they are alone.

The rest of the step is torch, autograd and Python, timed around the engine's calls in place. Two
figures tell what it is made of: the same on one token, again and again, so with warm caches; and an
empty `autograd.Function` of as many tensors, forward and backward, right after the same passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from measure import Milliseconds, alternate, arguments, outside, save, start, watched

from unpad.bench import Rivals, Task, best_peak, draw
from unpad.compiler.program import Instruction, Kind, Operand, Pass
from unpad.compiler.schedule import Scheduled
from unpad.engine.native_engine import NativePass
from unpad.engine.torch_engine import Frame

PARTS: dict[str, Callable[[str], bool]] = {
    "whole": lambda _op: True,
    "products": lambda op: op in ("linear", "outer"),
    "else": lambda op: op not in ("linear", "outer"),
    "neither": lambda _op: False,
}


def part(whole: Pass, keeps: Callable[[str], bool]) -> NativePass:
    """A pass with some of its instructions; it gives no sensible numbers.

    A state must be written: where the instruction that does is left out, it is copied from before.
    """
    buffers = list(whole.buffers)

    def before(out: Operand) -> Operand:
        previous = replace(buffers[out.buffer], kind=Kind.PREV)
        if previous not in buffers:
            buffers.append(previous)
        return replace(out, buffer=buffers.index(previous))

    def kept(instruction: Instruction) -> list[Instruction]:
        out = instruction.out
        if keeps(instruction.op):
            return [instruction]
        if out is None or buffers[out.buffer].kind != Kind.NEXT:
            return []
        return [Instruction("copy", out, (before(out),))]

    phases = [
        replace(phase, instructions=tuple(chain.from_iterable(map(kept, phase.instructions))))
        for phase in whole.phases
    ]
    phases = [phase for phase in phases if phase.instructions]
    return NativePass(replace(whole, buffers=tuple(buffers), phases=tuple(phases)))


class Empty(torch.autograd.Function):
    """The least that anything with a backward of its own can do."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([torch.empty_like(tensor) for tensor in ctx.saved_tensors])


def empty(tensors: list[torch.Tensor], before: list[Callable[[], Any]]) -> Milliseconds:
    """An empty function of these tensors, after something else."""
    for run in before:
        run()
    begin = perf_counter()
    torch.autograd.grad(Empty.apply(*tensors), tensors, torch.empty_like(tensors[0]))
    return Milliseconds(1e3 * (perf_counter() - begin))


def apart(task: Task, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    lengths = draw("uniform 10-100", batch) if batch > 1 else [100]
    rivals, one = Rivals(task, lengths), Rivals(task, [1])
    step, one_token = rivals.calls()["unpad"], one.calls()["unpad"]
    runs: list[tuple[Scheduled, Frame]] = []
    tensors = [torch.zeros_like(gradient).requires_grad_() for gradient in step()]
    with watched(lambda scheduled, frame, _seconds: runs.append((scheduled, frame))):
        step()
    passes = {
        name: [partial(part(s.program, keeps).run_frame, frame) for s, frame in runs]
        for name, keeps in PARTS.items()
    }
    jobs: dict[str, Callable[[], object]] = {
        "step": step,
        **{name: lambda runs=runs: [run() for run in runs] for name, runs in passes.items()},
        "outside": lambda: outside(step),
        "outside, one token": lambda: outside(one_token, 10),
        "empty function": lambda: empty(tensors, passes["whole"]),
    }
    found, load = alternate(jobs, seconds=seconds, least=5)
    times = {name: timing.median for name, timing in found.items()}
    needed = 1e3 * task.operations(sum(lengths)) / best_peak(threads)
    products, others = (times[name] - times["neither"] for name in ("products", "else"))
    return {
        **asdict(task),
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        **times,
        "at the peak": needed,
        "products": products,
        "share of products": needed / products,
        "else": others,
        "twice": products + others + times["neither"] - times["whole"],
        "foreign load": load,
    }


SHOWN = (
    *("step", "at the peak", "neither", "products", "else", "twice"),
    *("outside", "outside, one token", "empty function"),
)


def main() -> None:
    parser = arguments(
        __doc__,
        seconds=2.0,
        widths=[32, 64, 128, 256, 512],
        batches=[32, 128],
        threads=[1, 2],
    )
    options = parser.parse_args()
    start()
    rows = []
    tasks = [Task("LSTM", width) for width in options.widths]
    tasks += [Task("GRU", 128), Task("RNN", 128), Task("RNN", 128, 3)]
    wanted = [(task, batch) for task in tasks for batch in options.batches]
    wanted += [(Task(cell, 64), 1) for cell in ("LSTM", "GRU", "RNN")]
    for (task, batch), threads in itertools.product(wanted, options.threads):
        if batch == 1 and threads > 1:
            continue
        row = apart(task, batch, threads, options.seconds)
        rows.append(row)
        print(
            f"{task.cell:5}{task.layers:2}{task.width:4}{batch:4}{threads:2} thr |"
            + "".join(f" {name} {row[name]:.2f}" for name in SHOWN)
            + f" ms | {row['foreign load']:.0%}",
            flush=True,
        )
    if not options.no_save:
        save("where_time_goes", rows)


if __name__ == "__main__":
    main()
