"""Is a cell that somebody writes as fast as the same one that Unpad ships?

LSTM, GRU and RNN written with `unpad.Cell` as their equations read, a torch.nn.Linear for every
gate, against `unpad.nn`'s layer with the same weights: one forward and backward, lengths uniform
from 10 to 100. The ratio is the user's time over the shipped one's; the compiler should make it 1.
What is not the engine's is timed beside it: a user's LSTM has four times as many parameters.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from measure import (
    alternate,
    arguments,
    outside,
    relative_error,
    save,
    share_of_peak,
    start,
)
from torch import Tensor, nn

import unpad
from unpad.bench import Rivals, Task, draw, padding_gain


class User(unpad.Cell):
    """What the three have alike: a Linear from the input and one from the state, for each gate."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.state_size = input_size, hidden_size
        self.x = nn.ModuleList(nn.Linear(input_size, hidden_size) for _ in range(self.gates))
        self.h = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(self.gates))

    def take(self, layer: nn.Module) -> None:
        """The weights of a layer that is shipped, gate by gate."""
        with torch.no_grad():
            for name, linears in (("ih", self.x), ("hh", self.h)):
                weights = getattr(layer, f"weight_{name}_l0").chunk(self.gates)
                biases = getattr(layer, f"bias_{name}_l0").chunk(self.gates)
                for linear, weight, bias in zip(linears, weights, biases, strict=True):
                    linear.weight.copy_(weight)
                    linear.bias.copy_(bias)

    def like_shipped(self, gradients: list[Tensor]) -> list[Tensor]:
        """Gradients by parameter, in the order and form of the layer's."""
        found = dict(zip(dict(self.named_parameters()), gradients, strict=True))
        return [
            torch.cat([found[f"{part}.{gate}.{kind}"] for gate in range(self.gates)])
            for kind in ("weight", "bias")
            for part in ("x", "h")
        ]


class UserRNN(User):
    """h' = tanh(W x + R h + b)."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        h = torch.tanh(self.x[0](x) + self.h[0](h))
        return h, h


class UserGRU(User):
    """Cho et al. 2014, with the reset gate after the product."""

    gates = 3

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        r = torch.sigmoid(self.x[0](x) + self.h[0](h))
        z = torch.sigmoid(self.x[1](x) + self.h[1](h))
        n = torch.tanh(self.x[2](x) + r * self.h[2](h))
        h = (1 - z) * n + z * h
        return h, h


class UserLSTM(User):
    """Hochreiter and Schmidhuber 1997, with a forget gate."""

    gates = 4

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.state_size = (hidden_size, hidden_size)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step."""
        h, c = state
        i = torch.sigmoid(self.x[0](x) + self.h[0](h))
        f = torch.sigmoid(self.x[1](x) + self.h[1](h))
        g = torch.tanh(self.x[2](x) + self.h[2](h))
        o = torch.sigmoid(self.x[3](x) + self.h[3](h))
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, (h, c)


CELLS: dict[str, type[User]] = {"LSTM": UserLSTM, "GRU": UserGRU, "RNN": UserRNN}


def measure(name: str, width: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    lengths, task = draw("uniform 10-100", batch), Task(name, width)
    shipped = Rivals(task, lengths)
    cell = CELLS[name](width, width)
    cell.take(shipped.ours)
    layer = unpad.nn.Recurrent(cell)
    ragged, pull = shipped.ragged
    weights = tuple(cell.parameters())

    def user() -> tuple[Tensor, ...]:
        output, _ = layer(ragged)
        return torch.autograd.grad(output.values, (ragged.values, *weights), pull)

    exact = shipped.exact()
    x, *rest = user()
    errors = {
        "user": relative_error([x, *cell.like_shipped(rest)], exact),
        "shipped": relative_error(shipped.gradients("unpad"), exact),
    }
    ways = {"user": user, "shipped": shipped.run_ours}
    around = {f"{name}, outside": partial(outside, call) for name, call in ways.items()}
    times, foreign = alternate({**ways, **around}, seconds=seconds)
    median = {way: times[way].median for way in times}
    return {
        "cell": name,
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        "padding gain": padding_gain(lengths),
        **times,
        "share of peak": share_of_peak(task.operations(sum(lengths)), median["user"], threads),
        "ratio": median["user"] / median["shipped"],
        "error": errors["user"],
        "peer error": errors["shipped"],
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(__doc__, seconds=4.0, cells=list(CELLS), batches=[32, 128], threads=[1, 2])
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    start()
    rows = []
    for cell, batch, threads in itertools.product(options.cells, options.batches, options.threads):
        row = measure(cell, options.width, batch, threads, options.seconds)
        rows.append(row)
        print(
            f"{cell:5}{batch:4}{threads:3} thr, padding {row['padding gain']:.2f}x | user's "
            f"{row['user'].median:8.2f} ms, shipped {row['shipped'].median:8.2f} ms "
            f"{row['ratio']:5.3f}x | outside of the engine {row['user, outside'].median:.2f} "
            f"{row['shipped, outside'].median:.2f} ms | {row['share of peak']:4.0%} of peak | "
            f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:3.0%}",
            flush=True,
        )
    if not options.no_save:
        save("user_cells", rows)


if __name__ == "__main__":
    main()
