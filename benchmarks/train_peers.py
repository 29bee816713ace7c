"""How fast do other frameworks train the same cells, each from an environment of its own?

Three jobs, on equal lengths and on lengths uniform from 10 to 100 (one forward and backward):

- three tanh layers of 128, 64 inputs, batch 32: TensorFlow's dynamic_rnn and static_rnn, Keras
  padded with a mask and ragged, jax.lax.scan, torch padded and packed (and as the job "memory", the
  peak of each above its import, in a process by itself);
- a LayerNorm LSTM of 128 (chaotic: errors are medians of root-mean-square ones), and
- the README's minimal GRU of 128, as a user's own cell: jax.lax.scan, jitted, the same with what
  depends on the input alone taken out of the scan by hand, and an eager loop in torch.

`make bench-peers` installs the peers; one that is not there is left out, with the reason. Peers
take their turns in processes of their own, which time themselves, with a pause around each turn.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from measure import (
    alternate,
    arguments,
    gains,
    relative_error,
    rms_error,
    save,
    share_of_peak,
    start,
)
from peer import Peer, PeerError, turn
from readme_cell import MinimalGRU
from torch.nn.utils.rnn import pad_sequence
from train_custom_cell import eager

import unpad
from unpad.bench import Rivals, Task, draw, operations, padding_gain

Gradients = dict[str, torch.Tensor]
SPREADS = ("equal 100", "uniform 10-100")
TANH_PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dynamic_rnn": ("tensorflow", "tensorflow_rnn", {"way": "dynamic_rnn"}),
    "static_rnn": ("tensorflow", "tensorflow_rnn", {"way": "static_rnn"}),
    "Keras masked": ("tensorflow", "tensorflow_rnn", {"way": "keras_masked"}),
    "Keras ragged": ("tensorflow", "tensorflow_rnn", {"way": "keras_ragged"}),
    "jax scan": ("jax", "jax_scan", {"cell": "RNN", "hoisted": True}),
}
SCANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "jax scan": ("jax", "jax_scan", {"hoisted": False}),
    "jax by hand": ("jax", "jax_scan", {"hoisted": True}),
}


class Tanh:
    """Three tanh layers: ours, torch's, and what the peers need to make the same."""

    def __init__(self, width: int, features: int, lengths: list[int]) -> None:
        self.rivals = Rivals(Task("RNN", width, 3, features), lengths)
        self.lengths, self.weights = lengths, self.rivals.torch
        self.own = self.rivals.calls()
        self.sequences, self.pull = self.rivals.sequences, self.rivals.pull
        self.operations = self.rivals.task.operations(sum(lengths))

    def exact(self) -> Gradients:
        return self.named(self.rivals.exact())

    def found(self) -> dict[str, Gradients]:
        return {way: self.named(self.rivals.gradients(way)) for way in self.own}

    def named(self, gradients: tuple[torch.Tensor, ...]) -> Gradients:
        """By name, the input's padded, as the peers give them."""
        x, *rest = gradients
        if x.dim() == 2:
            x = pad_sequence(list(x.split(self.lengths)))
        return {"x": x, **dict(zip(dict(self.weights.named_parameters()), rest, strict=True))}

    def arrays(self) -> dict[str, np.ndarray]:
        """What a peer is given: the data padded, and the parameters."""
        x, pull = (pad_sequence(rows).numpy() for rows in (self.sequences, self.pull))
        parameters = {name: p.detach().numpy() for name, p in self.weights.named_parameters()}
        return {"x": x, "pull": pull, "lengths": np.array(self.lengths), **parameters}


class Custom(Tanh):
    """A cell that torch has no layer of."""

    cell: Callable[..., unpad.Cell]
    products: int
    """As many with the input and with the state, as an LSTM makes four."""

    def __init__(self, width: int, features: int, lengths: list[int]) -> None:
        torch.manual_seed(0)
        self.lengths = lengths
        self.operations = operations(self.products, features, width) * sum(lengths)
        self.weights = self.cell(features, width)
        self.layer = unpad.nn.Recurrent(self.weights)
        self.sequences = [torch.randn(n, features) for n in lengths]
        self.pull = [torch.randn(n, width) for n in lengths]
        self.ragged = unpad.Ragged.from_list(self.sequences).requires_grad_()
        self.ragged_pull = torch.cat(self.pull)
        self.padded = pad_sequence(self.sequences).requires_grad_()
        self.padded_pull = pad_sequence(self.pull)
        self.own = {"unpad": self.train, "eager loop": self.loop}

    def found(self) -> dict[str, Gradients]:
        return {way: self.named(run()) for way, run in self.own.items()}

    def train(self) -> tuple[torch.Tensor, ...]:
        output, _ = self.layer(self.ragged)
        wanted = (self.ragged.values, *self.weights.parameters())
        return torch.autograd.grad(output.values, wanted, self.ragged_pull)

    def loop(self) -> tuple[torch.Tensor, ...]:
        wanted = (self.padded, *self.weights.parameters())
        return torch.autograd.grad(eager(self.weights, self.padded), wanted, self.padded_pull)

    def exact(self) -> Gradients:
        """In float64, by the cell called step by step."""
        cell = self.weights.double()
        x = self.padded.detach().double().requires_grad_()
        wanted = (x, *cell.parameters())
        found = torch.autograd.grad(eager(cell, x), wanted, self.padded_pull.double())
        cell.float()
        return self.named(found)


class Norm(Custom):
    """A LayerNorm LSTM."""

    cell, products = unpad.nn.LayerNormLSTMCell, 4


class Readme(Custom):
    """The README's cell."""

    cell, products = MinimalGRU, 2


def compare(
    job: Tanh,
    table: dict[str, tuple[str, str, dict[str, Any]]],
    cell: str,
    options: Any,
    threads: int,
    error: Callable[..., float],
) -> Iterator[dict[str, Any]]:
    """A row for each peer that is there, all timed in one run."""
    torch.set_num_threads(threads)
    exact = job.exact()
    found = job.found()
    arrays = job.arrays()
    shared = {"threads": threads, "layers": 3, "ragged": len(set(job.lengths)) > 1, "cell": cell}
    versions: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        rivals: dict[str, Callable[[], object]] = {n: turn(run) for n, run in job.own.items()}
        for name, (environment, script, own) in table.items():
            if name not in options.peers:
                continue
            try:
                peer = Peer(script, {**shared, **own}, arrays, environment=environment)
                stack.callback(peer.close)
                results = peer.results()
            except PeerError as reason:
                print(f"left out, {name}: {reason}", flush=True)
                continue
            versions[name], rivals[name] = peer.version, peer
            found[name] = {key: torch.from_numpy(value) for key, value in results.items()}
        times, foreign = alternate(rivals, seconds=options.seconds, least=5)
    share = share_of_peak(job.operations, times["unpad"].median, threads)
    errors = {
        name: error([gradients[key] for key in exact], exact.values())
        for name, gradients in found.items()
    }
    for name in [name for name in rivals if name != "unpad"]:
        yield {
            **gains(times, [name], padding_gain(job.lengths)),
            "version": versions.get(name, f"torch {torch.__version__}"),
            "batch": len(job.lengths),
            "threads": threads,
            "tokens": sum(job.lengths),
            "unpad": times["unpad"],
            "theirs": times[name],
            "share of peak": share,
            "error": errors["unpad"],
            "peer error": errors[name],
            "foreign load": foreign,
        }


def memory(options: Any, lengths: list[int]) -> Iterator[dict[str, Any]]:
    """Peak memory of three training steps above the import, each in a fresh process.

    Beside it that of one token alone: what a framework sets up at its first step, whatever the
    batch.
    """
    for name in ("unpad", "padded", "packed", *TANH_PEERS):
        if name in {"unpad", "padded", "packed", *options.peers}:
            try:
                peaks = [_peak(name, options, batch) for batch in (lengths, [1])]
                yield {"rival": name, "peak MB": peaks[0], "one token MB": peaks[1]}
            except PeerError as reason:
                print(f"left out, {name}: {reason}", flush=True)


def _peak(name: str, options: Any, lengths: list[int]) -> float:
    job = Tanh(options.width, options.features, lengths)
    environment, script, how = TANH_PEERS.get(name, (None, "layers", {"way": name}))
    task = {"cell": "RNN", "width": options.width, "features": options.features, "layers": 3}
    own = {"lengths": lengths, "ragged": len(set(lengths)) > 1, "threads": max(options.threads)}
    given = job.arrays() if environment else {}
    # Default malloc: kept memory would be charged to whoever asked for it last.
    with Peer(script, {**task, **own, **how}, given, environment=environment, malloc=False) as peer:
        for _ in range(3):
            peer.ask("run")
        return peer.peak() / 1e6


def main() -> None:
    parser = arguments(
        __doc__,
        seconds=10.0,
        pieces=True,
        jobs=["tanh", "norm", "readme", "memory"],
        spreads=list(SPREADS),
        threads=[1, 2],
        peers=list({**TANH_PEERS, **SCANS}),
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    start()
    jobs = {
        "tanh": ("3 tanh layers", Tanh, options.features, TANH_PEERS, relative_error),
        "norm": ("LayerNorm LSTM", Norm, options.width, SCANS, rms_error),
        "readme": ("minimal GRU", Readme, options.width, SCANS, relative_error),
    }
    rows: list[dict[str, Any]] = []
    peaks: list[dict[str, Any]] = []
    for name, spread in itertools.product(options.jobs, options.spreads):
        lengths = draw(spread, options.batch)
        if name == "memory":
            for row in memory(options, lengths):
                peaks.append({"lengths": spread, **row})
                print(
                    f"{spread:15} {row['rival']:13} peak {row['peak MB']:8.1f} MB, "
                    f"one token's {row['one token MB']:8.1f}",
                    flush=True,
                )
            continue
        title, make, features, table, error = jobs[name]
        for threads in options.threads:
            job = make(options.width, features, lengths)
            for row in compare(job, table, title, options, threads, error):
                rows.append({"cell": title, "lengths": spread, "width": options.width, **row})
                print(line(rows[-1]), flush=True)
    if not options.no_save:
        by = ("cell", "lengths", "threads", "peer", "rival")
        save("train_peers", rows, keep=options.keep, by=by, memory=peaks)


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['cell']:15}{row['lengths']:15}{row['threads']:2} thr | unpad "
        f"{row['unpad'].median:8.2f} {row['peer']:13}{row['theirs'].median:9.2f} ms "
        f"{row['ratio']:6.2f}x {row['share of peak']:4.0%} | "
        f"{row['padding gain']:5.2f}x{row['loop gain']:6.2f}x | "
        f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:3.0%}"
    )


if __name__ == "__main__":
    main()
