"""How much faster are bfloat16 products, against our float32 ones and against torch's bfloat16?

A layer H -> H with `precision="bfloat16"` on lengths drawn uniformly from 10..100: forward alone,
and forward and backward. Beside it the same layer in float32, and torch.nn's layer with the same
weights in its four bfloat16 forms: padded or packed, in autocast or converted by `.bfloat16()`;
the ratio to torch is to the fastest. Padding, packing and converting the data is not charged to
torch. The errors are against torch in float64, given the float32 weights and inputs: of the output,
or of any gradient.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import torch
from measure import alternate, arguments, relative_error, save, start

from unpad.bench import Task, draw
from unpad.bench.lengths import padding_gain
from unpad.bench.rivals import Rivals

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

OURS = ("unpad", "float32")
TORCH = ("padded", "packed", "padded converted", "packed converted")


class Precisions(Rivals):
    """One layer, ours in both precisions and torch's four bfloat16 forms, by name."""

    def __init__(self, task: Task, lengths: list[int], *, train: bool) -> None:
        super().__init__(task, lengths)
        self.train = train
        self.converted = copy.deepcopy(self.torch).bfloat16()

    def calls(self) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
        """Each gives the gradients of input and parameters, or the output."""
        return {way: self._call(way) for way in (*OURS, *TORCH)}

    def _call(self, way: str) -> Callable[[], tuple[Tensor, ...]]:
        form, _, converted = way.partition(" ")
        layer = self.ours if way in OURS else self.converted if converted else self.torch
        x, pull = self.ragged if way in OURS else getattr(self, form)
        data = x.values if way in OURS else x if form == "padded" else x.data
        if converted:
            data = data.detach().bfloat16().requires_grad_()
            x = data if form == "padded" else type(x)(data, *x[1:])
        cast = torch.autocast("cpu", torch.bfloat16, enabled=way in ("padded", "packed"))
        precision = "bfloat16" if way == "unpad" else "float32"

        def call() -> tuple[Tensor, ...]:
            if way in OURS:
                layer.precision = precision
            with cast, torch.set_grad_enabled(self.train):
                output, _ = layer(x)
            values = output if form == "padded" else output.values if way in OURS else output.data
            if not self.train:
                return (values,)
            wanted = (data, *layer.parameters())
            return torch.autograd.grad(values, wanted, pull.to(values.dtype))

        return call

    def errors_of(self, ways: tuple[str, ...]) -> dict[str, float]:
        """The largest relative error of each."""
        if self.train:
            exact = self.exact()
        else:
            exact = self._in_ragged_order("padded", (self._wide_output(),))
        calls = self.calls()
        found = {way: self._in_ragged_order(way.split()[0], calls[way]()) for way in ways}
        return {way: relative_error(got, exact) for way, got in found.items()}

    def _wide_output(self) -> Tensor:
        with torch.no_grad():
            output = self.torch.double()(self.padded[0].double())[0]
        self.torch.float()
        return output


def measure(task: Task, lengths: list[int], *, threads: int, train: bool, seconds: float) -> Any:
    torch.set_num_threads(threads)
    rivals = Precisions(task, lengths, train=train)
    times, foreign = alternate(rivals.calls(), seconds=seconds, least=5)
    peer = min(TORCH, key=lambda way: times[way].median)
    errors = rivals.errors_of(("unpad", "float32", peer))
    ours = times["unpad"].median
    return {
        "cell": task.cell,
        "width": task.width,
        "pass": "training" if train else "forward",
        "batch": len(lengths),
        "threads": threads,
        "tokens": sum(lengths),
        "padding gain": padding_gain(lengths),
        **times,
        "peer": peer,
        "over float32": times["float32"].median / ours,
        "ratio": times[peer].median / ours,
        "float32 error": errors["float32"],
        "error": errors["unpad"],
        "peer error": errors[peer],
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(
        __doc__,
        seconds=6.0,
        cells=["LSTM", "GRU"],
        widths=[256, 512],
        batches=[32, 128],
        threads=[1, 2],
        passes=["forward", "training"],
    )
    options = parser.parse_args()
    start()
    print(
        f"{'cell':5}{'pass':9}{'H':>4}{'B':>5}{'thr':>4}{'tokens':>8} | bfloat16  float32 "
        f"    torch {'in its form':16} | float32   torch | errors: float32, ours, torch | foreign"
    )
    rows = []
    wanted = itertools.product(
        options.cells, options.passes, options.widths, options.batches, options.threads
    )
    for cell, kind, width, batch, threads in wanted:
        task, lengths, train = Task(cell, width), draw("uniform 10-100", batch), kind == "training"
        row = measure(task, lengths, threads=threads, train=train, seconds=options.seconds)
        rows.append(row)
        print(
            f"{cell:5}{kind:9}{width:4}{batch:5}{threads:4}{row['tokens']:8} | "
            f"{row['unpad'].median:8.2f} {row['float32'].median:8.2f} "
            f"{row[row['peer']].median:9.2f} {row['peer']:16} | "
            f"{row['over float32']:6.2f}x {row['ratio']:6.2f}x | {row['float32 error']:.1e} "
            f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:4.0%}",
            flush=True,
        )
    if not options.no_save:
        save("precision", rows)


if __name__ == "__main__":
    main()
