"""How fast does a cell that torch has no kernel for train, against an eager loop in torch?

A LayerNorm LSTM, 128 -> 128, one forward and one backward on lengths drawn uniformly from 10..100.
The peers run over the padded batch, as one does without Unpad: the cell called step by step, and
the same loop improved by hand (the product with the input and its norm taken once for all steps).
The ratio is to the faster of them. A LayerNorm LSTM is chaotic with random weights, so its largest
error grows with the length for any float32 code: the error shown is the median over the tensors'
root-mean-square errors against float64, ours beside torch's.
"""

from __future__ import annotations

import argparse
import copy
from typing import TYPE_CHECKING, Any

import torch
from measure import alternate, machine, rms_error, save, share_of_peak, tuned_malloc
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import unpad

if TYPE_CHECKING:
    from torch import Tensor

    from unpad.nn import LayerNormLSTMCell


def eager(cell: LayerNormLSTMCell, x: Tensor) -> Tensor:
    """The loop as a user writes it; x [steps, rows, I], the result [steps, rows, H]."""
    state = cell.initial_state(x.shape[1], dtype=x.dtype)
    outputs = []
    for x_t in x:
        output, state = cell(x_t, state)
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


def gradients(output: Tensor, x: Tensor, pull: Tensor, cell: torch.nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(output, (x, *cell.parameters()), pull))


def measure(width: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(batch)
    torch.set_num_threads(threads)
    lengths = torch.randint(10, 101, (batch,)).tolist()
    sequences = [torch.randn(n, width) for n in lengths]
    pull = [torch.randn(n, width) for n in lengths]
    cell = unpad.nn.LayerNormLSTMCell(width, width)
    layer = unpad.nn.Recurrent(cell)
    ragged = unpad.Ragged.from_list(sequences).requires_grad_()
    x, padded_pull, ragged_pull = pad_sequence(sequences), pad_sequence(pull), torch.cat(pull)
    x.requires_grad_()

    def ours() -> list[Tensor]:
        return gradients(layer(ragged)[0].values, ragged.values, ragged_pull, cell)

    rivals = {
        "unpad": ours,
        "eager": lambda: gradients(eager(cell, x), x, padded_pull, cell),
        "by hand": lambda: gradients(eager_by_hand(cell, x), x, padded_pull, cell),
    }
    wide, wide_x = copy.deepcopy(cell).double(), x.detach().double().requires_grad_()
    exact = gradients(eager(wide, wide_x), wide_x, padded_pull.double(), wide)
    found, found_by_torch = ours(), rivals["eager"]()
    found[0] = pad_sequence(list(found[0].split(lengths)))
    times, foreign = alternate(rivals, seconds=seconds)
    operations = 2.0 * 3 * 2 * 4 * width * width * sum(lengths)  # as an LSTM's
    peer = min(("eager", "by hand"), key=lambda name: times[name].median)
    return {
        "cell": "LayerNorm LSTM",
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        "padding factor": max(lengths) * batch / sum(lengths),
        **times,
        "peer": peer,
        "share of peak": share_of_peak(operations, times["unpad"].median, threads),
        "ratio": times[peer].median / times["unpad"].median,
        "error": rms_error(found, exact),
        "peer error": rms_error(found_by_torch, exact),
        "foreign load": foreign,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=6.0, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    tuned_malloc()
    print(machine())
    print(
        "  B thr  tokens  pad x | unpad ms    eager  by hand | peak ratio | "
        "error unpad  torch | foreign"
    )
    rows = []
    for batch in options.batches:
        for threads in options.threads:
            row = measure(options.width, batch, threads, options.seconds)
            rows.append(row)
            times = " ".join(f"{row[name].median:8.2f}" for name in ("unpad", "eager", "by hand"))
            print(
                f"{batch:3}{threads:4}{row['tokens']:8}{row['padding factor']:7.2f} | {times} | "
                f"{row['share of peak']:4.0%} {row['ratio']:4.2f}x | "
                f"{row['error']:.1e} {row['peer error']:.1e} | "
                f"{row['foreign load']:4.0%}",
                flush=True,
            )
    if not options.no_save:
        save("train_custom_cell", rows)


if __name__ == "__main__":
    main()
