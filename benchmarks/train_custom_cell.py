"""How fast does a cell that torch has no kernel for train, against an eager loop in torch?

A LayerNorm LSTM and the README's minimal GRU, 128 -> 128, one forward and one backward on lengths
drawn uniformly from 10..100. The peers run over the padded batch, as one does without Unpad: the
cell called step by step, the same loop improved by hand (what depends on the input alone taken once
for all steps), and the loop over the step that torch.compile makes of the cell. The ratio is to the
fastest of them; `over the eager loop` is to the first. A LayerNorm LSTM is chaotic with random
weights, so its largest error grows with the length for any float32 code: the error shown is the
median over the tensors' root-mean-square errors against float64, ours beside torch's.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from measure import (
    alternate,
    arguments,
    gains,
    heading,
    rms_error,
    save,
    share_of_peak,
    start,
    table_line,
)
from readme_cell import MinimalGRU, by_hand
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import unpad
from unpad.bench import draw, operations, padding_gain

if TYPE_CHECKING:
    from unpad.nn import LayerNormLSTMCell

RIVALS = ("unpad", "eager", "by hand", "compiled")


def eager(cell: unpad.Cell, x: Tensor, step: Callable[..., Any] | None = None) -> Tensor:
    """The loop as a user writes it; x [steps, rows, I], the result [steps, rows, H]."""
    step = cell if step is None else step
    state = cell.initial_state(x.shape[1], dtype=x.dtype)
    outputs = []
    for x_t in x:
        output, state = step(x_t, state)
        outputs.append(output)
    return torch.stack(outputs)


def eager_by_hand(cell: LayerNormLSTMCell, x: Tensor) -> Tensor:
    """The same with everything that depends on the input alone moved out of the loop."""
    h, c = cell.initial_state(x.shape[1], dtype=x.dtype)
    outputs = []
    for from_x in cell.norm_ih(functional.linear(x, cell.weight_ih)):
        gates = from_x + cell.norm_hh(functional.linear(h, cell.weight_hh))
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(cell.norm_c(c))
        outputs.append(h)
    return torch.stack(outputs)


# What a cell is called: the cell, its loop by hand, the products it makes of an LSTM's four.
CELLS: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], int]] = {
    "LayerNorm LSTM": (unpad.nn.LayerNormLSTMCell, eager_by_hand, 4),
    "minimal GRU": (MinimalGRU, by_hand, 2),
}


def gradients(output: Tensor, x: Tensor, pull: Tensor, cell: torch.nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(output, (x, *cell.parameters()), pull))


def compiled(cell: unpad.Cell, x: Tensor) -> Callable[..., Any] | None:
    """The step as torch.compile makes it; None, with the reason, where it cannot.

    The loop itself is left in Python: unrolled, hundreds of steps take it minutes, and again for
    each new length.
    """
    step = torch.compile(cell)
    try:
        eager(cell, x[:2], step).sum().backward()
    except Exception as error:  # no compiler, or one that it cannot use
        print(f"left out, compiled: {str(error).strip().splitlines()[0]}", flush=True)
        return None
    return step


def measure(options: Any, name: str, batch: int, threads: int) -> dict[str, Any]:
    torch.manual_seed(batch)
    torch.set_num_threads(threads)
    width, lengths = options.width, draw("uniform 10-100", batch)
    sequences = [torch.randn(n, width) for n in lengths]
    pull = [torch.randn(n, width) for n in lengths]
    make, improved, products = CELLS[name]
    cell = make(width, width)
    layer = unpad.nn.Recurrent(cell)
    ragged = unpad.Ragged.from_list(sequences).requires_grad_()
    x, padded_pull, ragged_pull = pad_sequence(sequences), pad_sequence(pull), torch.cat(pull)
    x.requires_grad_()
    step = None if options.no_compile else compiled(cell, x)

    def ours() -> list[Tensor]:
        return gradients(layer(ragged)[0].values, ragged.values, ragged_pull, cell)

    rivals = {
        "unpad": ours,
        "eager": lambda: gradients(eager(cell, x), x, padded_pull, cell),
        "by hand": lambda: gradients(improved(cell, x), x, padded_pull, cell),
    }
    if step is not None:
        rivals["compiled"] = lambda: gradients(eager(cell, x, step), x, padded_pull, cell)
    wide, wide_x = copy.deepcopy(cell).double(), x.detach().double().requires_grad_()
    exact = gradients(eager(wide, wide_x), wide_x, padded_pull.double(), wide)
    found, found_by_torch = ours(), rivals["eager"]()
    found[0] = pad_sequence(list(found[0].split(lengths)))
    times, foreign = alternate(rivals, seconds=options.seconds, least=5)
    work = operations(gates=products, features=width, width=width) * sum(lengths)
    return {
        "cell": name,
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        **times,
        **gains(times, list(rivals)[1:], padding_gain(lengths)),
        "over the eager loop": times["eager"].median / times["unpad"].median,
        "share of peak": share_of_peak(work, times["unpad"].median, threads),
        "error": rms_error(found, exact),
        "peer error": rms_error(found_by_torch, exact),
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(
        __doc__, seconds=6.0, pieces=True, cells=list(CELLS), batches=[32, 128], threads=[1, 2]
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    start()
    print(f"{'':15}{heading(RIVALS)}")
    rows = []
    for wanted in itertools.product(options.cells, options.batches, options.threads):
        rows.append(measure(options, *wanted))
        print(f"{wanted[0]:15}{table_line(rows[-1], RIVALS)}", flush=True)
    if not options.no_save:
        save("train_custom_cell", rows, keep=options.keep, by=("cell", "batch", "threads"))


if __name__ == "__main__":
    main()
