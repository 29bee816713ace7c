"""What does it cost to train a softmax over many words, in time and in memory?

One forward and backward of the loss of 1,600 tokens of 256 features, with the gradients of hidden
rows and of every parameter, in torch's ways and in Unpad's:

- two levels: `unpad.nn.HierarchicalSoftmax`; full: `unpad.nn.LinearCrossEntropy`
- torch full: `linear` and `cross_entropy`; torch adaptive: `nn.AdaptiveLogSoftmaxWithLoss`
- gathered: two levels as they are often written, with the weights of every token's class gathered
  into a tensor [batch, steps, H, words of a class]

Targets are uniform, which is the worst for two levels (every class is touched, and with it every
row of the gradient), but as in text (Zipf's law) beside the adaptive softmax, which is made for
that. The memory is what a fresh process's resident peak rises by in a step, less the gradients
that come out. Errors are of the gradients for 64 tokens, each way against itself in float64.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from measure import alternate, arguments, relative_error, save, share_of_peak, start
from torch import Tensor, nn
from torch.nn import functional as F

import unpad

WIDTH = 256
PAIRS = (
    ("two levels", "torch full", "uniform"),
    ("full", "torch full", "uniform"),
    ("two levels", "torch adaptive", "Zipf"),
)


class Gathered(nn.Module):
    """Classes of equal size, whose weights are gathered for every token."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.size = round(vocabulary**0.5)
        count = vocabulary // self.size
        self.classes = nn.Linear(width, count)
        self.weight = nn.Parameter(torch.randn(count, width, self.size) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(count, self.size))

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        classes, words = target // self.size, target % self.size
        logits = (hidden[..., None, :] @ self.weight[classes])[..., 0, :] + self.bias[classes]
        above = F.cross_entropy(self.classes(hidden).flatten(0, -2), classes.flatten())
        return above + F.cross_entropy(logits.flatten(0, -2), words.flatten())


class Full(nn.Linear):
    """A linear layer and cross_entropy."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(super().forward(hidden).flatten(0, -2), target.flatten())


class Adaptive(nn.AdaptiveLogSoftmaxWithLoss):
    """With the batch as rows, and the loss alone."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return super().forward(hidden.flatten(0, -2), target.flatten()).loss


RIVALS: dict[str, Callable[[int, int], nn.Module]] = {
    "two levels": unpad.nn.HierarchicalSoftmax,
    "full": unpad.nn.LinearCrossEntropy,
    "torch full": Full,
    "torch adaptive": lambda h, v: Adaptive(h, v, [max(v // 25, 1), max(v // 5, 2)]),
    "gathered": Gathered,
}


class Step:
    """A softmax, the hidden rows of a batch and the words that follow them."""

    def __init__(self, rival: str, vocabulary: int, batch: int, steps: int, targets: str) -> None:
        torch.manual_seed(0)
        self.softmax: Any = RIVALS[rival](WIDTH, vocabulary)
        self.hidden = torch.randn(batch, steps, WIDTH, requires_grad=True)
        odds = (
            torch.ones(vocabulary) if targets == "uniform" else 1 / torch.arange(1, vocabulary + 1)
        )
        self.target = torch.multinomial(odds, batch * steps, replacement=True).view(batch, steps)

    def __call__(self) -> tuple[Tensor, ...]:
        loss = self.softmax(self.hidden, self.target)
        wanted = (self.hidden, *self.softmax.parameters())
        # A cluster of the adaptive softmax may have no target.
        return torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)

    def double(self) -> Step:
        wide = copy.copy(self)
        wide.softmax = copy.deepcopy(self.softmax).double()
        wide.hidden = self.hidden.detach().double().requires_grad_()
        return wide


def error(rival: str, vocabulary: int, targets: str) -> float:
    step = Step(rival, vocabulary, 1, 64, targets)
    with unpad.engine("torch"):
        exact = step.double()()
    return relative_error(step(), exact)


def extra_memory(rival: str, vocabulary: int, batch: int, steps: int) -> int:
    """Bytes by which a step raises this process's resident peak, beyond the gradients."""
    Step(rival, min(vocabulary, 400), 2, 3, "uniform")()  # the code is in memory
    step = Step(rival, vocabulary, batch, steps, "uniform")
    unpad.trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = psutil.Process().memory_info().rss
    gradients = sum(gradient.nbytes for gradient in step())
    status = Path("/proc/self/status").read_text()
    highest = int(status.partition("VmHWM:")[2].split()[0]) << 10
    return highest - before - gradients


def extra_megabytes(rival: str, vocabulary: int, batch: int, steps: int, threads: int) -> float:
    """The same in a process of its own."""
    sizes = ["--vocabularies", vocabulary, "--batches", batch, "--steps", steps]
    command = [sys.executable, __file__, "--peak", rival, "--threads", threads, *sizes]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e6


def measure(
    pairs: list[tuple[str, str, str]], vocabulary: int, batch: int, threads: int, options: Any
) -> list[dict[str, Any]]:
    """A row for each pair; all that have the same targets take turns."""
    torch.set_num_threads(threads)
    found: list[dict[str, Any]] = []
    for targets in dict.fromkeys(targets for *_, targets in pairs):
        some = [(ours, peer) for ours, peer, kind in pairs if kind == targets]
        names = dict.fromkeys(name for pair in some for name in pair)
        memory = {
            name: extra_megabytes(name, vocabulary, batch, options.steps, threads) for name in names
        }
        errors = {name: error(name, vocabulary, targets) for name in names}
        steps = {name: Step(name, vocabulary, batch, options.steps, targets) for name in names}
        times, foreign = alternate(steps, seconds=options.seconds, least=3)
        for ours, peer in some:
            row = {
                "vocabulary": vocabulary,
                "batch": batch,
                "threads": threads,
                "tokens": batch * options.steps,
                "targets": targets,
                "way": ours,
                "peer": peer,
                "unpad": times[ours],
                "theirs": times[peer],
                "ratio": times[peer].median / times[ours].median,
                "share of peak": share_of_peak(
                    operations(ours, vocabulary, batch * options.steps),
                    times[ours].median,
                    threads,
                ),
                "MB": memory[ours],
                "peer MB": memory[peer],
                "share of memory": memory[ours] / memory[peer],
                "error": errors[ours],
                "peer error": errors[peer],
                "foreign load": foreign,
            }
            print(line(row), flush=True)
            found.append(row)
    return found


def operations(way: str, vocabulary: int, tokens: int) -> float:
    """Of the three products alone, with a token's words: all, or its classes and its class."""
    words = vocabulary if way == "full" else 2 * vocabulary**0.5
    return 6.0 * tokens * WIDTH * words


def line(row: dict[str, Any]) -> str:
    return (
        f"V {row['vocabulary']:7,} B {row['batch']:4} {row['threads']} threads "
        f"{row['way']:>10} / {row['peer']:<14} {row['targets']:<7} | "
        f"{row['unpad'].median:8.2f} {row['theirs'].median:9.2f} ms {row['ratio']:6.1f}x "
        f"{row['share of peak']:4.0%} of the peak | "
        f"{row['MB']:7.1f} {row['peer MB']:7.1f} MB {row['share of memory']:6.1%} | "
        f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:4.0%}"
    )


def main() -> None:
    parser = arguments(
        __doc__,
        seconds=8.0,
        pieces=True,
        vocabularies=[10_000, 50_000, 200_000],
        threads=[1, 2],
        batches=[32, 256],
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--peak", choices=RIVALS, help="print the bytes of a step, and end")
    options = parser.parse_args()
    if options.peak:
        torch.set_num_threads(options.threads[0])
        sizes = options.vocabularies[0], options.batches[0], options.steps
        print(extra_memory(options.peak, *sizes))
        return
    start()
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        for vocabulary in options.vocabularies:
            batch = options.batches[0]
            rows += measure(list(PAIRS), vocabulary, batch, threads, options)
        for batch in options.batches:
            pair = [("two levels", "gathered", "uniform")]
            rows += measure(pair, options.vocabularies[0], batch, threads, options)
    if not options.no_save:
        by = ("vocabulary", "batch", "threads", "way", "peer")
        save("large_vocabulary", rows, keep=options.keep, by=by)


if __name__ == "__main__":
    main()
