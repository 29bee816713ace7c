"""Does it cost anything how a batch is given, or that the cell is one's own?

What users of other libraries met: ragged input took a slow path, packing dominated the epoch, a
hand-written cell crawled, the states at every step forced a Python loop. Forward and backward, one
thread; the ratio is the peer's time over ours, or the plain call's over the one in question.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import alternate, machine, relative_error, save, tuned_malloc
from torch import Tensor

import unpad


class HandGRU(unpad.Cell):
    """A user's GRU cell, with a product for every gate."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.state_size = input_size, hidden_size
        self.x = torch.nn.ModuleList(torch.nn.Linear(input_size, hidden_size) for _ in range(3))
        self.h = torch.nn.ModuleList(torch.nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """One step."""
        r = torch.sigmoid(self.x[0](x) + self.h[0](h))
        z = torch.sigmoid(self.x[1](x) + self.h[1](h))
        n = torch.tanh(self.x[2](x) + r * self.h[2](h))
        h = (1 - z) * n + z * h
        return h, h


def like_torch(cell: HandGRU, layer: torch.nn.GRU) -> None:
    """Give torch's layer the weights of the cell."""
    with torch.no_grad():
        for name, parts in (("ih", cell.x), ("hh", cell.h)):
            getattr(layer, f"weight_{name}_l0").copy_(torch.cat([p.weight for p in parts]))
            getattr(layer, f"bias_{name}_l0").copy_(torch.cat([p.bias for p in parts]))


def batch(lengths: list[int], features: int) -> unpad.Ragged:
    """Random sequences of these lengths."""
    return unpad.Ragged.from_lengths(torch.randn(sum(lengths), features), lengths)


def train(call: Callable[[], Tensor]) -> Callable[[], object]:
    """Forward and backward of the sum of an output."""
    return lambda: call().sum().backward()


def own_cell() -> tuple[dict[str, Callable[[], object]], float]:
    x = torch.randn(200, 16, 64)
    cell, theirs = HandGRU(64, 64), torch.nn.GRU(64, 64)
    like_torch(cell, theirs)
    ours = unpad.nn.Recurrent(cell, batch_first=False)
    error = relative_error([ours(x)[0].detach()], [theirs(x)[0].detach()])
    jobs = {"unpad": train(lambda: ours(x)[0]), "peer": train(lambda: theirs(x)[0])}
    return jobs, error


def ragged_or_padded_by_hand() -> tuple[dict[str, Callable[[], object]], float]:
    lengths = torch.randint(1, 101, (32,)).tolist()
    ragged = batch(lengths, 64)
    padded = ragged.to_padded()
    mask = (torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None])[..., None]
    ours, theirs = unpad.nn.GRU(64, 64), torch.nn.GRU(64, 64, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    error = relative_error([ours(ragged)[0].to_padded()], [theirs(padded)[0] * mask])
    return {
        "unpad": train(lambda: ours(ragged)[0].values),
        "peer": train(lambda: theirs(padded)[0] * mask),
    }, error


def states_at_every_step() -> tuple[dict[str, Callable[[], object]], float]:
    ragged, layer = batch([100] * 32, 64), unpad.nn.Recurrent(unpad.nn.LSTMCell(64, 64))
    every, _, (h, _) = layer(ragged, return_states=True)
    return {
        "unpad": train(lambda: layer(ragged, return_states=True)[0].values),
        "peer": train(lambda: layer(ragged)[0].values),
    }, relative_error([every.values], [h.values])


def padded_or_packed_input(kind: str) -> tuple[dict[str, Callable[[], object]], float]:
    """Ours on ragged input (peer) against ours on the same batch in another form (unpad)."""
    ragged, layer = batch(torch.randint(1, 101, (32,)).tolist(), 64), unpad.nn.LSTM(64, 64)
    if kind == "packed":
        packed = ragged.to_packed()
        other: Callable[[], Tensor] = lambda: layer(packed)[0].data  # noqa: E731
    else:
        padded, lengths = ragged.to_padded(batch_first=False), ragged.lengths
        other = lambda: layer(padded, lengths=lengths)[0]  # noqa: E731
    plain = lambda: layer(ragged)[0].values  # noqa: E731
    error = relative_error([other().sum()[None]], [plain().sum()[None]])
    return {"unpad": train(other), "peer": train(plain)}, error


QUESTIONS: dict[str, Callable[[], tuple[dict[str, Callable[[], object]], float]]] = {
    "a user's GRU cell / torch.nn.GRU, equal lengths 200": own_cell,
    "ragged GRU / torch.nn.GRU padded and masked by hand": ragged_or_padded_by_hand,
    "all states at every step / the output alone": states_at_every_step,
    "packed input / ragged input": lambda: padded_or_packed_input("packed"),
    "padded input and lengths / ragged input": lambda: padded_or_packed_input("padded"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    tuned_malloc()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine())
    rows: list[dict[str, Any]] = []
    for question, build in QUESTIONS.items():
        jobs, error = build()
        times, foreign = alternate(jobs, seconds=options.seconds)
        ratio = times["peer"].median / times["unpad"].median
        rows.append({"question": question, **times, "ratio": ratio, "error": error})
        print(
            f"{question:55} {times['unpad'].median:8.2f} ms {times['peer'].median:8.2f} ms "
            f"{ratio:5.2f}x  error {error:.1e}  foreign {foreign:3.0%}",
            flush=True,
        )
    if not options.no_save:
        save("input_forms", rows)


if __name__ == "__main__":
    main()
