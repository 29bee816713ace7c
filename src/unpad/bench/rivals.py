"""A layer of ours against torch's own with the same weights, padded and packed, in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_sequence

from unpad import nn
from unpad.bench.accuracy import relative_error
from unpad.bench.lengths import padding_gain
from unpad.bench.machine import share_of_peak
from unpad.bench.timing import alternate
from unpad.ragged import Ragged

CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""The layers, and how many products with the input and with the state each makes."""

Gradients = tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """What is trained: the layer and its sizes."""

    cell: str
    width: int
    layers: int = 1
    input_size: int | None = None
    """Features of the input; None: as many as `width`."""

    @property
    def features(self) -> int:
        """Features of the input."""
        return self.input_size or self.width

    def operations(self, tokens: int) -> float:
        """Floating-point operations of the products in one forward and backward."""
        return operations(CELLS[self.cell], self.features, self.width, self.layers) * tokens


def operations(gates: int, features: int, width: int, layers: int = 1) -> float:
    """Operations a token in training: every product three times (forward, two gradients).

    >>> operations(gates=1, features=2, width=3)
    90.0
    """
    inputs = features + (layers - 1) * width + layers * width
    return 2.0 * 3 * gates * width * inputs


class Rivals:
    """The same layer three times on the same sequences; each call is one forward and backward.

    A backward is the gradients of the input and of every parameter for a random gradient of the
    output. Padding and packing the data is not charged to torch.
    """

    def __init__(self, task: Task, lengths: Sequence[int], *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.task, self.lengths = task, list(lengths)
        self.ours: Any = getattr(nn, task.cell)(task.features, task.width, task.layers)
        self.torch: Any = getattr(torch.nn, task.cell)(task.features, task.width, task.layers)
        self.ours.load_state_dict(self.torch.state_dict())
        # Listed once, as an optimizer does.
        self.our_weights = tuple(self.ours.parameters())
        self.torch_weights = tuple(self.torch.parameters())
        self.sequences = [torch.randn(n, task.features) for n in lengths]
        self.pull = [torch.randn(n, task.width) for n in lengths]

    # Each form is made when its rival first runs: memory is measured one rival a process.

    @cached_property
    def ragged(self) -> tuple[Ragged, Tensor]:
        """The input and the gradient of the output, end to end."""
        return Ragged.from_list(self.sequences).requires_grad_(), torch.cat(self.pull)

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor]:
        """The same [S, B, features], padded with zeros."""
        return pad_sequence(self.sequences).requires_grad_(), pad_sequence(self.pull)

    @cached_property
    def packed(self) -> tuple[PackedSequence, Tensor]:
        """The same as a PackedSequence and its data."""
        packed = _packed(self.sequences)
        packed.data.requires_grad_()
        return packed, _packed(self.pull).data

    def calls(self) -> dict[str, Callable[[], Gradients]]:
        """The three by name."""
        return {"unpad": self.run_ours, "padded": self.run_padded, "packed": self.run_packed}

    def run_ours(self) -> Gradients:
        """Ours on the ragged batch."""
        x, pull = self.ragged
        output, _ = self.ours(x)
        return torch.autograd.grad(output.values, (x.values, *self.our_weights), pull)

    def run_padded(self) -> Gradients:
        """torch's on the batch padded with zeros to its longest sequence."""
        return self._train_padded(*self.padded)

    def run_packed(self) -> Gradients:
        """torch's on a PackedSequence."""
        x, pull = self.packed
        output, _ = self.torch(x)
        return torch.autograd.grad(output.data, (x.data, *self.torch_weights), pull)

    def exact(self) -> Gradients:
        """The gradients in float64, the input's in the order of the ragged batch.

        By the padded batch, whose pads get no gradient: a packed one takes torch a time that grows
        with the square of the length.
        """
        x, pull = (tensor.detach().double() for tensor in self.padded)
        self.torch.double()
        found = self._train_padded(x.requires_grad_(), pull)
        self.torch.float()
        return self._in_ragged_order("padded", found)

    def gradients(self, way: str) -> Gradients:
        """Those of one of the three, the input's in the order of the ragged batch."""
        return self._in_ragged_order(way, self.calls()[way]())

    def errors(self) -> dict[str, float]:
        """Relative error of our and of torch's float32 gradients against torch's float64 ones."""
        exact = self.exact()
        ways = {"unpad": "unpad", "torch": "padded"}
        return {name: relative_error(self.gradients(way), exact) for name, way in ways.items()}

    def _train_padded(self, x: Tensor, pull: Tensor) -> Gradients:
        output, _ = self.torch(x)
        return torch.autograd.grad(output, (x, *self.torch_weights), pull)

    def _in_ragged_order(self, way: str, gradients: Gradients) -> Gradients:
        x, *parameters = gradients
        if way == "padded":
            x = torch.cat([x[:n, row] for row, n in enumerate(self.lengths)])
        elif way == "packed":
            x = Ragged.from_packed(PackedSequence(x, *self.packed[0][1:])).values
        return (x, *parameters)


def _packed(sequences: list[Tensor]) -> PackedSequence:
    return pack_sequence(sequences, enforce_sorted=False)


def compare(
    task: Task,
    lengths: Sequence[int],
    *,
    threads: int,
    seconds: float,
    least: int = 7,
    each_round: Callable[[float], object] = lambda share: None,
) -> dict[str, Any]:
    """Time the three and return a row: times, gains, share of the machine's peak, errors.

    The ratio is to the faster of torch's two ways. It is the padding gain times the loop gain: what
    comes from leaving pads out, and what from running the loop faster.
    """
    torch.set_num_threads(threads)
    rivals = Rivals(task, lengths)
    errors = rivals.errors()
    times, foreign = alternate(rivals.calls(), seconds=seconds, least=least, each_round=each_round)
    peer = min(("padded", "packed"), key=lambda name: times[name].median)
    ours, ratio = times["unpad"].median, times[peer].median / times["unpad"].median
    return {
        **asdict(task),
        "batch": len(lengths),
        "threads": threads,
        "tokens": sum(lengths),
        "padding gain": padding_gain(lengths),
        **times,
        "peer": peer,
        "share of peak": share_of_peak(task.operations(sum(lengths)), ours, threads),
        "ratio": ratio,
        "loop gain": ratio / padding_gain(lengths),
        "error": errors["unpad"],
        "peer error": errors["torch"],
        "foreign load": foreign,
    }
