"""Where does a training step spend its time: in products, between them, or around the engine?

The step of `train_sizes` (forward and backward, lengths uniform from 10 to 100), taken apart. Each
pass is run again on the same memory with its products alone, and with all else alone: what is
neither is the price of doing both (data that one leaves in a cache and the other pushes out). The
rest of the step is torch, autograd and Python, timed around the engine's calls in place, with
caches as cold as some milliseconds of other work leave them. Two figures tell what it is made of:
the same on one token, again and again, so with warm caches; and an empty `autograd.Function` of as
many tensors, forward and backward, right after the same passes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from measure import arguments, save, start

from unpad.bench import Rivals, Task, alternate, draw
from unpad.compiler.program import Instruction, Kind, Pass
from unpad.compiler.schedule import Scheduled
from unpad.engine import choose
from unpad.engine.native_engine import NativePass, machine_peak
from unpad.engine.torch_engine import Frame

WAYS = ("forward", "backward")
PRODUCTS = ("linear", "outer")
Runs = list[tuple[Scheduled, Frame]]


def part(whole: Pass, *, products: bool) -> NativePass:
    """A pass with its products alone, or with all else alone; it gives no sensible numbers.

    A state must be written in either, so the one or two instructions that do are in both.
    """
    following = {n for n, buffer in enumerate(whole.buffers) if buffer.kind == Kind.NEXT}

    def keeps(instruction: Instruction) -> bool:
        writes = instruction.out is not None and instruction.out.buffer in following
        return writes or (instruction.op in PRODUCTS) == products

    phases = [replace(p, instructions=tuple(filter(keeps, p.instructions))) for p in whole.phases]
    return NativePass(replace(whole, phases=tuple(p for p in phases if p.instructions)))


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


def around(call: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Milliseconds of a call, and of it what is not the engine's: medians."""
    inside: list[float] = []
    with watched(lambda _scheduled, _frame, taken: inside.append(taken)):
        whole, outside = [], []
        end = perf_counter() + seconds
        while perf_counter() < end or len(whole) < 20:
            inside.clear()
            begin = perf_counter()
            call()
            whole.append(perf_counter() - begin)
            outside.append(whole[-1] - sum(inside))
    return median(whole), median(outside)


class Empty(torch.autograd.Function):
    """The least that anything with a backward of its own can do."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty_like(tensors[0])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([torch.empty_like(tensor) for tensor in ctx.saved_tensors])


def empty(tensors: list[torch.Tensor], before: Callable[[], Any], seconds: float) -> float:
    """Milliseconds of an empty function of these tensors, after something else: median."""
    pull = torch.empty_like(tensors[0])
    taken: list[float] = []
    end = perf_counter() + seconds
    while perf_counter() < end or len(taken) < 20:
        before()
        begin = perf_counter()
        torch.autograd.grad(Empty.apply(*tensors), tensors, pull)
        taken.append(perf_counter() - begin)
    return median(taken)


def median(times: list[float]) -> float:
    return 1e3 * sorted(times)[len(times) // 2]


def apart(cell: str, width: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    lengths = draw("uniform 10-100", batch) if batch > 1 else [100]
    rivals, one = Rivals(Task(cell, width), lengths), Rivals(Task(cell, width), [1])
    call = rivals.calls()["unpad"]
    call()
    runs: Runs = []
    with watched(lambda scheduled, frame, _taken: runs.append((scheduled, frame))):
        call()
    step, outside = around(call, seconds)
    jobs: dict[str, Callable[[], Any]] = {}
    for (scheduled, frame), way in zip(runs, WAYS, strict=True):
        for name, program in (
            ("whole", choose.native_program(scheduled)),
            ("products", part(scheduled.program, products=True)),
            ("else", part(scheduled.program, products=False)),
        ):
            jobs[f"{way} {name}"] = lambda program=program, frame=frame: program.run_frame(frame)
    times, load = alternate(jobs, seconds=seconds, least=5)
    tensors = [torch.zeros(t.shape).requires_grad_() for t in call()]
    bare = empty(tensors, lambda: [jobs[f"{way} whole"]() for way in WAYS], seconds / 3)
    both = {
        name: sum(times[f"{way} {name}"].median for way in WAYS)
        for name in ("whole", "products", "else")
    }
    peak = machine_peak(threads)
    needed = 1e3 * rivals.task.operations(sum(lengths)) / peak
    return {
        "cell": cell,
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        "step": step,
        "at the peak": needed,
        "products": both["products"],
        "share of products": needed / both["products"],
        "else": both["else"],
        "together": both["whole"] - both["products"] - both["else"],
        "outside": outside,
        "empty function": bare,
        "outside, one token": around(one.calls()["unpad"], seconds / 3)[1],
        "foreign load": load,
    }


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
    wanted = [("LSTM", width, batch) for width in options.widths for batch in options.batches]
    wanted += [(cell, 128, batch) for cell in ("GRU", "RNN") for batch in options.batches]
    wanted += [(cell, 64, 1) for cell in ("LSTM", "GRU", "RNN")]
    for (cell, width, batch), threads in itertools.product(wanted, options.threads):
        if batch == 1 and threads > 1:
            continue
        row = apart(cell, width, batch, threads, options.seconds)
        rows.append(row)
        print(
            f"{cell:5}{width:4}{batch:4}{threads:2} thr | step {row['step']:8.2f}, at the peak "
            f"{row['at the peak']:7.2f} | products {row['products']:8.2f} + else "
            f"{row['else']:6.2f} "
            f"+ together {row['together']:6.2f} + outside {row['outside']:5.2f} | of one token "
            f"{row['outside, one token']:.2f}, empty {row['empty function']:.2f} ms | "
            f"{row['foreign load']:.0%}",
            flush=True,
        )
    if not options.no_save:
        save("where_time_goes", rows)


if __name__ == "__main__":
    main()
