"""What the project set out to reach beside what was measured, from the saved results alone.

Where a bar is missed, the share of the machine's multiply-add peak tells how far it could be
reached at all: the ratio to a peer grows with the share, and the share ends at 100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Found = dict[int, tuple[float, float | None]]
"""By threads: how many times, and the share of the peak that was reached."""


@dataclass(frozen=True)
class Bar:
    """How many times a peer's time or memory is ours, and what it should be at least."""

    what: str
    least: float
    question: str
    find: Callable[[dict[str, Any]], Found]


def _peers(cell: str, lengths: str, *names: str) -> Callable[[dict[str, Any]], Found]:
    """In train_peers: the fastest of the peers so named."""

    def find(data: dict[str, Any]) -> Found:
        found: Found = {}
        for row in data["rows"]:
            if (row["cell"], row["lengths"]) == (cell, lengths) and row["peer"] in names:
                ratio = min(row["ratio"], found.get(row["threads"], (row["ratio"],))[0])
                found[row["threads"]] = ratio, row["share of peak"]
        return found

    return find


def _torch(way: str, **wanted: Any) -> Callable[[dict[str, Any]], Found]:
    """Where torch is timed in each of its ways: the rows with these values."""

    def find(data: dict[str, Any]) -> Found:
        return {
            row["threads"]: (row[way]["median"] / row["unpad"]["median"], row["share of peak"])
            for row in data["rows"]
            if all(row[name] == value for name, value in wanted.items())
        }

    return find


def _memory(lengths: str, peer: str) -> Callable[[dict[str, Any]], Found]:
    def find(data: dict[str, Any]) -> Found:
        peaks = {r["rival"]: r["peak MB"] for r in data["memory"] if r["lengths"] == lengths}
        return {2: (peaks[peer] / peaks["unpad"], None)} if {peer, "unpad"} <= peaks.keys() else {}

    return find


EQUAL, RAGGED, TANH = "equal 100", "uniform 10-100", "3 tanh layers"
JAX = ("jax scan", "jax by hand")
BARS = (
    Bar(
        "3 tanh layers, equal lengths: dynamic_rnn",
        3.2,
        "train_peers",
        _peers(TANH, EQUAL, "dynamic_rnn"),
    ),
    Bar(
        "3 tanh layers, equal lengths: static_rnn",
        2.7,
        "train_peers",
        _peers(TANH, EQUAL, "static_rnn"),
    ),
    Bar(
        "3 tanh layers, ragged: dynamic_rnn", 5, "train_peers", _peers(TANH, RAGGED, "dynamic_rnn")
    ),
    Bar("3 tanh layers, ragged: static_rnn", 6, "train_peers", _peers(TANH, RAGGED, "static_rnn")),
    Bar(
        "3 tanh layers, equal lengths, memory: dynamic_rnn",
        3,
        "train_peers",
        _memory(EQUAL, "dynamic_rnn"),
    ),
    Bar(
        "3 tanh layers, equal lengths, memory: static_rnn",
        3,
        "train_peers",
        _memory(EQUAL, "static_rnn"),
    ),
    Bar(
        "LayerNorm LSTM, ragged: eager torch loop",
        11,
        "train_peers",
        _peers("LayerNorm LSTM", RAGGED, "eager loop"),
    ),
    Bar(
        "LayerNorm LSTM, ragged: jax.lax.scan, the faster form",
        9,
        "train_peers",
        _peers("LayerNorm LSTM", RAGGED, *JAX),
    ),
    Bar(
        "the README's minimal GRU, ragged: eager torch loop",
        11,
        "train_peers",
        _peers("minimal GRU", RAGGED, "eager loop"),
    ),
    Bar(
        "the README's minimal GRU, ragged: jax.lax.scan, the faster form",
        9,
        "train_peers",
        _peers("minimal GRU", RAGGED, *JAX),
    ),
    Bar("LSTM, ragged: PackedSequence", 5, "train_ragged", _torch("packed", cell="LSTM", batch=32)),
    Bar(
        "LSTM, one of 1,000 steps and 31 of 5 to 15: padded",
        20,
        "train_lengths",
        _torch("padded", cell="LSTM", batch=32, lengths="one of 1,000, others 5-15"),
    ),
)


def lines(read: Callable[[str], dict[str, Any] | None]) -> Iterator[list[str]]:
    """A line a bar: what, least, found at 1 and 2 threads, the share of peak now and wanted."""
    for bar in BARS:
        data = read(bar.question)
        found = bar.find(data) if data else {}
        times = [f"{found[n][0]:.1f}×" if n in found else "" for n in (1, 2)]
        best = max(found.values(), key=lambda pair: pair[0], default=(0.0, None))
        ratio, share = best
        state = "not measured" if not found else "met" if ratio >= bar.least else "not met"
        shares = ["", ""] if share is None else [f"{share:.0%}", f"{share * bar.least / ratio:.0%}"]
        yield [bar.what, f"{bar.least:g}×", *times, state, *shares]


HEADER = [
    "what, against which peer",
    "at least",
    "1 thread",
    "2 threads",
    "",
    "share of peak",
    "share that the bar asks for",
]
