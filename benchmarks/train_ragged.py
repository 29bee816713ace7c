"""How fast does a recurrent layer train on ragged sequences, against torch's own layer?

One forward and one backward (gradients of the input and of every parameter) of LSTM, GRU and RNN,
128 -> 128, on lengths drawn uniformly from 10..100. The peer is torch.nn's layer with the same
weights, the faster of its two ways: padded to the longest, or packed. Padding and packing the data
is not charged to torch. The error is against torch in float64.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from measure import alternate, machine, relative_error, save, share_of_peak, tuned_malloc
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence

import unpad

CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}  # name: gates
Gradients = tuple[Tensor, ...]


class Rivals:
    """The same layer three times on the same sequences; each call is one forward and backward."""

    def __init__(self, cell: str, width: int, sequences: list[Tensor]) -> None:
        self.lengths = [len(sequence) for sequence in sequences]
        self.ours = getattr(unpad.nn, cell)(width, width)
        self.torch = getattr(torch.nn, cell)(width, width)
        self.ours.load_state_dict(self.torch.state_dict())
        self.sequences = sequences
        self.pull = [torch.randn(n, width) for n in self.lengths]
        self.ragged = unpad.Ragged.from_list(sequences)
        self.ragged.values.requires_grad_()
        self.ragged_pull = torch.cat(self.pull)
        self.padded = pad_sequence(sequences).requires_grad_()
        self.padded_pull = pad_sequence(self.pull)
        self.packed = self._packed(sequences)
        self.packed.data.requires_grad_()
        self.packed_pull = self._packed(self.pull).data

    @staticmethod
    def _packed(sequences: list[Tensor]) -> PackedSequence:
        return pack_sequence(sequences, enforce_sorted=False)

    def run_ours(self) -> Gradients:
        output, _ = self.ours(self.ragged)
        wanted = (self.ragged.values, *self.ours.parameters())
        return torch.autograd.grad(output.values, wanted, self.ragged_pull)

    def run_padded(self) -> Gradients:
        output, _ = self.torch(self.padded)
        wanted = (self.padded, *self.torch.parameters())
        return torch.autograd.grad(output, wanted, self.padded_pull)

    def run_packed(self) -> Gradients:
        output, _ = self.torch(self.packed)
        wanted = (self.packed.data, *self.torch.parameters())
        return torch.autograd.grad(output.data, wanted, self.packed_pull)

    def errors(self) -> dict[str, float]:
        """Relative error of our and of torch's float32 gradients against torch's float64 ones."""
        x, *packed = self.run_packed()
        ours_x, *ours = self.run_ours()
        self.torch.double()
        exact_x, *exact = self._exact()
        self.torch.float()
        return {
            "unpad": relative_error([ours_x, *ours], [self._to_ragged(exact_x), *exact]),
            "torch": relative_error([x, *packed], [exact_x, *exact]),
        }

    def _exact(self) -> Gradients:
        packed = self._packed([sequence.double() for sequence in self.sequences])
        packed.data.requires_grad_()
        output, _ = self.torch(packed)
        wanted = (packed.data, *self.torch.parameters())
        return torch.autograd.grad(output.data, wanted, self.packed_pull.double())

    def _to_ragged(self, data: Tensor) -> Tensor:
        packed = PackedSequence(data, *self.packed[1:])
        return unpad.Ragged.from_packed(packed).values


def measure(cell: str, width: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    """One row: the times in milliseconds, the ratio to the faster peer, the errors."""
    torch.manual_seed(batch)
    torch.set_num_threads(threads)
    lengths = torch.randint(10, 101, (batch,)).tolist()
    rivals = Rivals(cell, width, [torch.randn(n, width) for n in lengths])
    errors = rivals.errors()
    times, foreign = alternate(
        {
            "unpad": rivals.run_ours,
            "padded": rivals.run_padded,
            "packed": rivals.run_packed,
        },
        seconds=seconds,
    )
    # A gate is two products of width x width a token, each three times: forward, both gradients.
    operations = 2.0 * 3 * 2 * CELLS[cell] * width * width * sum(lengths)
    peer = min(("padded", "packed"), key=lambda name: times[name].median)
    return {
        "cell": cell,
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        "padding factor": max(lengths) * batch / sum(lengths),
        **times,
        "peer": peer,
        "share of peak": share_of_peak(operations, times["unpad"].median, threads),
        "ratio": times[peer].median / times["unpad"].median,
        "error": errors["unpad"],
        "peer error": errors["torch"],
        "foreign load": foreign,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    tuned_malloc()
    print(machine())
    print(
        "cell    B thr  tokens  pad x | unpad ms  padded  packed | peak ratio | "
        "error unpad  torch | foreign"
    )
    rows = []
    for cell in options.cells:
        for batch in options.batches:
            for threads in options.threads:
                row = measure(cell, options.width, batch, threads, options.seconds)
                rows.append(row)
                print(line(row), flush=True)
    if not options.no_save:
        save("train_ragged", rows)


def line(row: dict[str, Any]) -> str:
    times = " ".join(f"{row[name].median:8.2f}" for name in ("unpad", "padded", "packed"))
    return (
        f"{row['cell']:5}{row['batch']:4}{row['threads']:4}{row['tokens']:8}"
        f"{row['padding factor']:7.2f} | {times} | "
        f"{row['share of peak']:4.0%} {row['ratio']:4.2f}x | "
        f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:4.0%}"
    )


if __name__ == "__main__":
    main()
