"""What does it cost to turn on, to meet or to start the things that benchmarks usually leave out?

Each row is a time, what it is compared with, and the ratio:

- dropout and zoneout in the cell, on against off;
- denormals: weights of -0.1 on the diagonal, inputs of 1e-38 and 500 steps, so that the states are
  below the normal numbers (checked in float64), against ordinary weights and inputs;
- the first call after another torch operation, whose threads still spin and whose data fills the
  caches, against the call repeated;
- two processes at once, with the threads that each would take alone, against one alone;
- the trace, to a program, of each cell that is shipped: a fresh process's first call less its
  second;
- the import of unpad, beyond torch's.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from measure import Milliseconds, alternate, arguments, milliseconds, relative_error, save, start
from peer import SCRIPTS, Peer

import unpad
from unpad.bench import Rivals, Task, draw, padding_gain

Row = dict[str, Any]


def train(layer: torch.nn.Module, batch: unpad.Ragged) -> Callable[[], list[torch.Tensor]]:
    """One forward and backward."""
    pull = torch.ones(())

    def run() -> list[torch.Tensor]:
        output, _ = layer(batch)
        wanted = [batch.values, *layer.parameters()]
        gradient = pull.expand_as(output.values)
        return list(torch.autograd.grad(output.values, wanted, gradient))

    return run


def input_of(lengths: list[int], width: int) -> unpad.Ragged:
    return unpad.Ragged.from_lengths(torch.randn(sum(lengths), width), lengths).requires_grad_()


def error_of(layer: torch.nn.Module, batch: unpad.Ragged) -> float:
    """Of the gradients, against the same layer in float64, without noise."""
    was = layer.training
    layer.eval()
    found = train(layer, batch)()
    exact = train(layer.double(), batch.detach().double().requires_grad_())()
    layer.float().train(was)
    return relative_error(found, exact)


def pair(question: str, base: Any, with_it: Any, options: Any, **facts: Any) -> Row:
    """A row of two rivals that take turns."""
    times, foreign = alternate({"base": base, "with it": with_it}, seconds=options.seconds)
    ratio = times["with it"].median / times["base"].median
    return {"question": question, **times, "ratio": ratio, **facts, "foreign load": foreign}


def noise(options: Any) -> Iterator[Row]:
    """Dropout and zoneout; the cell's own masks, drawn anew in each call."""
    batch = input_of(draw("uniform 10-100", options.batch), options.width)
    plain = unpad.nn.LSTMCell(options.width, options.width)
    wrapped = {
        "dropout of the input, one mask over time": unpad.nn.Dropout(
            plain, input=0.3, same_over_time=True
        ),
        "dropout of the output, fresh": unpad.nn.Dropout(plain, output=0.3),
        "zoneout": unpad.nn.Zoneout(plain, 0.1),
    }
    base = unpad.nn.Recurrent(plain)
    for name, cell in wrapped.items():
        layer = unpad.nn.Recurrent(cell)
        yield pair(
            f"{name} / without",
            train(base, batch),
            train(layer, batch),
            options,
            bar=1.15,
            error=error_of(layer, batch),
            **{"padding gain": padding_gain(batch.lengths.tolist())},
        )


def denormals(options: Any) -> Iterator[Row]:
    """Weights and inputs that breed them, for each layer."""
    steps, batch = options.steps, 8
    for cell in ("RNN", "GRU", "LSTM"):
        usual = getattr(unpad.nn, cell)(options.width, options.width)
        fading = getattr(unpad.nn, cell)(options.width, options.width)
        with torch.no_grad():
            for parameter in fading.parameters():
                parameter.zero_()
                if parameter.dim() > 1:
                    parameter.unflatten(0, (-1, options.width)).diagonal(0, 1, 2).fill_(-0.1)
        x = input_of([steps] * batch, options.width)
        tiny = unpad.Ragged(x.values.detach() * 1e-38, x.offsets).requires_grad_()
        states = copy.deepcopy(fading).double()(tiny.double())[0].values.abs()
        below = float(((states > 0) & (states < torch.finfo(torch.float32).tiny)).double().mean())
        if below < 0.9:
            raise RuntimeError(f"{cell}: {below:.0%} of the states are denormals")
        yield pair(
            f"denormals, {cell}, {steps} steps / ordinary numbers",
            train(usual, x),
            train(fading, tiny),
            options,
            bar=1.2,
            error=error_of(usual, x),
            **{"padding gain": 1.0, "share of denormals": below},
        )


def after_torch(options: Any) -> Iterator[Row]:
    """Our call alone is timed; what runs before it differs."""
    lengths = draw("uniform 10-100", options.batch)
    for cell in ("LSTM", "RNN"):
        rivals = Rivals(Task(cell, options.width), lengths)
        yield pair(
            f"{cell} right after torch's own / after itself",
            _timed_after(rivals.run_ours, rivals.run_ours),
            _timed_after(rivals.run_padded, rivals.run_ours),
            options,
            bar=1.1,
            error=rivals.errors()["unpad"],
            **{"padding gain": padding_gain(lengths)},
        )


def _timed_after(before: Callable[[], object], run: Callable[[], object]) -> Callable[[], object]:
    def call() -> Milliseconds:
        before()
        return milliseconds(run)

    return call


def processes(options: Any) -> Iterator[Row]:
    """The same training loop in one process, and in two at once; in turn, thrice."""
    lengths = draw("uniform 10-100", options.batch)
    job = {
        "way": "unpad",
        "cell": "LSTM",
        "width": options.width,
        "layers": 1,
        "features": options.width,
        "lengths": lengths,
        "threads": options.threads[0],
    }
    alone, together = [], []
    with Peer("layers", job, {}) as first, Peer("layers", job, {}) as second:
        for peer in (first, second):
            peer.ask("run")
        for _ in range(3):
            first.ask("loop", seconds=2)  # after foreign load, the engine takes fewer threads
            alone.append(first.ask("loop", seconds=options.seconds / 3)["milliseconds"])
            for peer in (first, second):
                peer.tell("loop", seconds=options.seconds / 3)
            together += [peer.hear()["milliseconds"] for peer in (first, second)]
    # Each process's speed, of what it has alone; the slower one counts.
    yield {
        "question": f"two processes of {job['threads']} threads at once / one alone",
        "base ms": statistics.median(alone),
        "with it ms": max(together),
        "ratio": max(together) / statistics.median(alone),
        "bar": 1 / 0.45,
        "padding gain": padding_gain(lengths),
    }


def traces(options: Any) -> Iterator[Row]:
    """In a fresh process for each cell: a first trace pays for torch's imports too."""
    for cell in ("RNNCell", "GRUCell", "LSTMCell", "LayerNormLSTMCell"):
        code = (
            "import gc, time, torch, unpad\n"
            f"layer = unpad.nn.Recurrent(unpad.nn.{cell}({options.width}, {options.width}))\n"
            f"x = unpad.Ragged.from_list([torch.ones(2, {options.width})]).requires_grad_()\n"
            # The first full collection of what torch has imported, 100 ms, falls where it falls;
            # gradients that are there already are added to, in a parallel region.
            "gc.collect()\n"
            "taken = []\n"
            "for _ in range(3):\n"
            "    layer.zero_grad()\n"
            "    start = time.perf_counter()\n"
            "    layer(x)[0].values.sum().backward()\n"
            "    taken.append(1e3 * (time.perf_counter() - start))\n"
            "print(taken[0] - taken[2])\n"
        )
        found = [float(_fresh("-c", code)) for _ in range(options.repeats)]
        yield {"question": f"trace of {cell}", "with it ms": statistics.median(found), "bar": 150}


def imports(options: Any) -> Iterator[Row]:
    """Medians, after one that fills the page cache and compiles what was not installed as bytecode.

    This source tree is not, and where PYTHONDONTWRITEBYTECODE stands it never would be.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, PYTHONPYCACHEPREFIX=folder, PYTHONDONTWRITEBYTECODE="")
        found = [
            json.loads(_fresh(str(SCRIPTS / "import_time.py"), env=environment))
            for _ in range(options.repeats + 1)
        ]
    for question, less in (
        ("import of unpad beyond torch's", ""),
        ("the same, less a collection of torch's objects", "collected"),
    ):
        yield {
            "question": question,
            "base ms": statistics.median(f["torch"] for f in found[1:]),
            "with it ms": statistics.median(f["unpad"] - f.get(less, 0) for f in found[1:]),
            "bar": 150,
        }


def _fresh(*command: str, env: dict[str, str] | None = None) -> str:
    line = [sys.executable, *command]
    return subprocess.run(line, capture_output=True, text=True, check=True, env=env).stdout


QUESTIONS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "noise": noise,
    "denormals": denormals,
    "after_torch": after_torch,
    "processes": processes,
    "traces": traces,
    "imports": imports,
}


def main() -> None:
    parser = arguments(__doc__, seconds=4.0, questions=list(QUESTIONS), threads=[2])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=500, help="of the denormals")
    parser.add_argument("--repeats", type=int, default=5, help="of what needs a fresh process")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads[0])
    start()
    rows: list[Row] = []
    for name in options.questions:
        for row in QUESTIONS[name](options):
            for way in ("base", "with it"):
                if way in row:
                    row[f"{way} ms"] = row[way].median
            rows.append({"threads": options.threads[0], **row})
            print(line(rows[-1]), flush=True)
    if not options.no_save:
        save("overheads", rows)


def line(row: Row) -> str:
    base = f"{row['base ms']:9.2f} ms" if "base ms" in row else " " * 12
    ratio = f"{row['ratio']:6.3f}x" if "ratio" in row else " " * 7
    bar = f"{row['bar']:.3g}{'x' if 'ratio' in row else ' ms'}"
    error = f"{row['error']:.1e}" if "error" in row else ""
    padding = f"padding {row['padding gain']:.2f}x" if "padding gain" in row else ""
    foreign = f"foreign {row['foreign load']:.0%}" if "foreign load" in row else ""
    return (
        f"{row['question']:58}{row['with it ms']:9.2f} ms {base} {ratio} (bar {bar}) {padding} "
        f"{error} {foreign}"
    )


if __name__ == "__main__":
    main()
