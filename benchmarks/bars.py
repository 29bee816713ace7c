"""What the project set out to reach beside what was measured, from the saved results alone.

Where a bar on a ratio is missed, the share of the machine's multiply-add peak tells how far it
could be reached at all: the ratio to a peer grows with the share, and the share ends at 100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Data = dict[str, Any]
Value = tuple[float, float | None]
"""What was measured in a row, and the share of the peak that was reached there."""


@dataclass(frozen=True)
class Bar:
    """A bound on what some rows of a saved result say."""

    what: str
    asked: str
    """At least or at most what, in which unit: "≥ 1.6×", "≤ 12 µs", "≥ 88 %"."""
    question: str
    find: Callable[[Data], list[Value]]
    why: str = ""
    """What stands in the way, where it is missed."""

    @property
    def bound(self) -> float:
        return float(self.asked[1:].strip(" ×%µms"))

    def meets(self, value: float) -> bool:
        return value <= self.bound if self.asked[0] == "≤" else value >= self.bound

    def form(self, value: float) -> str:
        digits = 1 if value < 10 else 0
        if self.asked[-1] == "×":
            digits += 1
        if self.asked[-1] == "%":
            digits = 0
        return f"{value:.{digits}f}"

    def line(self, here: Data | None, elsewhere: Data | None) -> list[str]:
        """What, asked; the range found, whether it is met, the machine's peak; why not; the same on
        another machine.
        """
        values = self.find(here) if here else []
        missed = any(not self.meets(value) for value, _ in values)
        why = self._reason(values) if missed else ""
        return [self.what, self.asked, *self._found(here), why, *self._found(elsewhere)]

    def _found(self, data: Data | None) -> list[str]:
        values = sorted(self.find(data)) if data else []
        if data is None or not values:
            return ["", "not measured", ""]
        met = sum(self.meets(value) for value, _ in values)
        low, high = (self.form(end[0]) for end in (values[0], values[-1]))
        found = high if low == high else f"{low} to {high}"
        unit = self.asked[1:].strip(" 0123456789.")
        space = "" if unit == "×" else " "
        state = (
            "met" if met == len(values) else f"met in {met} of {len(values)}" if met else "not met"
        )
        return [f"{found}{space}{unit}", state, f"{data['machine']['peak GF/s a core']:.0f}"]

    def _reason(self, values: list[Value]) -> str:
        """Of a ratio: the shares of the peak that would do. No implementation exceeds 100 %."""
        if self.asked[0] == "≤" or self.asked[-1] != "×":
            return self.why
        asks = [
            share * self.bound / value
            for value, share in values
            if share is not None and not self.meets(value)
        ]
        if not asks:
            return self.why
        low, high = f"{min(asks):.0%}", f"{max(asks):.0%}"
        of = f"asks for {low if low == high else f'{low} to {high}'} of the peak"
        return f"{of}; {self.why}" if self.why else of


def rows_with(value: Callable[[Row], float], **wanted: Any) -> Callable[[Data], list[Value]]:
    """A value of the rows that have what is wanted: one value a column, or one of several."""

    def find(data: Data) -> list[Value]:
        return [
            (value(row), row.get("share of peak"))
            for row in data["rows"]
            if all(
                row.get(name) in (one if isinstance(one, tuple) else (one,))
                for name, one in wanted.items()
            )
        ]

    return find


def _peers(cell: str, lengths: str, *names: str) -> Callable[[Data], list[Value]]:
    """In train_peers: the fastest of the peers so named, by threads."""

    def find(data: Data) -> list[Value]:
        threads = {row["threads"] for row in data["rows"]}
        wanted = {"cell": cell, "lengths": lengths, "peer": names}
        found = [rows_with(ratio, **wanted, threads=n)(data) for n in threads]
        return [min(values) for values in found if values]

    return find


def _memory(peer: str) -> Callable[[Data], list[Value]]:
    """The peer's peak above its import over ours, on equal lengths."""

    def find(data: Data) -> list[Value]:
        peaks = {r["rival"]: r["peak MB"] for r in data["memory"] if r["lengths"] == EQUAL}
        return [(peaks[peer] / peaks["unpad"], None)] if {peer, "unpad"} <= peaks.keys() else []

    return find


def _starts(words: str, key: str) -> Callable[[Data], list[Value]]:
    """In overheads: rows whose question starts so."""

    def find(data: Data) -> list[Value]:
        return [(r[key], None) for r in data["rows"] if r["question"].startswith(words)]

    return find


def over(way: str) -> Callable[[Row], float]:
    """A way of torch's over ours."""
    return lambda row: row[way]["median"] / row["unpad"]["median"]


def percent(key: str) -> Callable[[Row], float]:
    return lambda row: 100 * row[key]


def column(key: str) -> Callable[[Row], float]:
    return lambda row: row[key]


ratio = column("ratio")
EQUAL, RAGGED, TANH = "equal 100", "uniform 10-100", "3 tanh layers"
JAX = ("jax scan", "jax by hand")
SHARE = percent("share of peak")
MEMORY = percent("share of memory")
PRODUCTS = "three products are all that either does, and torch's are near the peak too"
APART = "see where a step's time goes, below"
BESIDE = "torch's own kernel, on as many tokens, is that much nearer to the peak"
CALL = f"{APART}: batch 1"
LIBRARIES = "most of it is there after a step on one token: see other frameworks, below"


def _share(cell: str, least: int, question: str, what: str, **wanted: Any) -> Bar:
    rows = rows_with(SHARE, cell=cell, lengths=RAGGED, batch=(32, 128), **wanted)
    return Bar(f"{what}, ragged: share of the peak", f"≥ {least} %", question, rows, APART)


def _ragged(cell: str, least: float, question: str, what: str, **wanted: Any) -> Bar:
    rows = rows_with(ratio, cell=cell, lengths=RAGGED, **wanted)
    return Bar(f"{what}, ragged: torch", f"≥ {least:g}×", question, rows, APART)


def _equal(cell: str, least: float, question: str, what: str, why: str, **wanted: Any) -> Bar:
    rows = rows_with(ratio, cell=cell, lengths=EQUAL, **wanted)
    return Bar(f"{what}, equal lengths: torch", f"≥ {least:g}×", question, rows, why)


def _peer(what: str, cell: str, lengths: str, least: float, *names: str) -> Bar:
    return Bar(what, f"≥ {least:g}×", "train_peers", _peers(cell, lengths, *names))


def _one(cell: str, peer: str, least: float) -> Bar:
    rows = rows_with(ratio, cell=cell, peer=peer)
    return Bar(f"{cell} 64, one sequence of 100: {peer}", f"≥ {least:g}×", "batch_one", rows, CALL)


def _words(
    what: str, asked: str, way: str, peer: str, why: str = "", value: Any = ratio, **wanted: Any
) -> Bar:
    rows = rows_with(value, way=way, peer=peer, **wanted)
    return Bar(f"{what}: {peer}", asked, "large_vocabulary", rows, why)


def _over(what: str, words: str, most: float, why: str = "") -> Bar:
    return Bar(what, f"≤ {most:g}×", "overheads", _starts(words, "ratio"), why)


SHARES = {32: 55, 64: 72, 128: 84, 256: 88, 512: 88}
"""Of the peak, that the LSTM was to reach, in per cent, by hidden size."""
OTHERS = 80
"""Of GRU and RNN."""


def left_by_the_bar(row: Row) -> float | None:
    """In where_time_goes: what a step at its bar has for all but the products, as they are; ms."""
    if row["batch"] == 1 or (row["cell"], row["layers"]) == ("RNN", 1):
        return None
    asked = SHARES[row["width"]] if row["cell"] == "LSTM" else OTHERS
    return 100 * row["at the peak"] / asked - row["products"]


WIDTHS = (128, 256, 512)
BARS = (
    *(
        _share("LSTM", least, "train_sizes", f"LSTM {width}", width=width)
        for width, least in SHARES.items()
    ),
    Bar(
        "GRU 128, ragged: share of the peak",
        "≥ 80 %",
        "train_ragged",
        rows_with(SHARE, cell="GRU"),
        APART,
    ),
    _share("RNN", OTHERS, "train_lengths", "RNN 3×128"),
    Bar(
        "a user's LSTM, GRU, RNN over the shipped one",
        "≤ 1.03×",
        "user_cells",
        rows_with(ratio),
        "the engine takes as long for both: below; the rest is torch's, and Python's, for each of "
        "the user's parameters",
    ),
    Bar(
        "LSTM 32 to 512: error of the gradients over torch's",
        "≤ 2×",
        "train_sizes",
        rows_with(lambda row: row["error"] / row["peer error"]),
        "512 features in ragged batches; 2.0e-6 of the 5e-6 that were asked as well",
    ),
    _ragged("LSTM", 1.6, "train_sizes", "LSTM 128 to 512, batch 32", batch=32, width=WIDTHS),
    _ragged("LSTM", 1.9, "train_sizes", "LSTM 128 to 512, batch 128", batch=128, width=WIDTHS),
    Bar("GRU 128, ragged: torch", "≥ 5.5×", "train_ragged", rows_with(ratio, cell="GRU"), APART),
    _ragged("RNN", 6, "train_lengths", "RNN 3×128"),
    _equal("LSTM", 1, "train_sizes", "LSTM 32 to 512", BESIDE),
    _equal("GRU", 3.3, "train_lengths", "GRU 128", APART),
    _equal("RNN", 3.5, "train_lengths", "RNN 3×128", APART),
    Bar(
        "LSTM 128, ragged: PackedSequence",
        "≥ 5×",
        "train_ragged",
        rows_with(over("packed"), cell="LSTM", batch=32),
        APART,
    ),
    Bar(
        "LSTM 128, one of 1,000 steps and 31 of 5 to 15: padded",
        "≥ 20×",
        "train_lengths",
        rows_with(over("padded"), cell="LSTM", batch=32, lengths="one of 1,000, others 5-15"),
        "the long sequence is one row a step",
    ),
    _peer("3 tanh layers, equal lengths: dynamic_rnn", TANH, EQUAL, 3.2, "dynamic_rnn"),
    _peer("3 tanh layers, equal lengths: static_rnn", TANH, EQUAL, 2.7, "static_rnn"),
    _peer("3 tanh layers, ragged: dynamic_rnn", TANH, RAGGED, 5, "dynamic_rnn"),
    _peer("3 tanh layers, ragged: static_rnn", TANH, RAGGED, 6, "static_rnn"),
    Bar(
        "3 tanh layers, memory: dynamic_rnn",
        "≥ 3×",
        "train_peers",
        _memory("dynamic_rnn"),
        LIBRARIES,
    ),
    Bar(
        "3 tanh layers, memory: static_rnn", "≥ 3×", "train_peers", _memory("static_rnn"), LIBRARIES
    ),
    _peer("LayerNorm LSTM, ragged: eager torch loop", "LayerNorm LSTM", RAGGED, 11, "eager loop"),
    _peer("LayerNorm LSTM, ragged: jax.lax.scan", "LayerNorm LSTM", RAGGED, 9, *JAX),
    _peer(
        "a user's minimal GRU, ragged: eager torch loop", "minimal GRU", RAGGED, 11, "eager loop"
    ),
    _peer("a user's minimal GRU, ragged: jax.lax.scan", "minimal GRU", RAGGED, 9, *JAX),
    _one("RNN", "NumPy loop", 15),
    _one("RNN", "torch", 30),
    _one("LSTM", "torch", 3),
    _one("GRU", "torch", 40),
    Bar(
        "LSTM 128, a step of one stream",
        "≤ 12 µs",
        "streaming",
        rows_with(column("call us"), layer="LSTM 128"),
        "one row a product: the weights come from the second-level cache each time",
    ),
    Bar(
        "LSTM 128, a step of one stream: torch",
        "≥ 6×",
        "streaming",
        rows_with(ratio, layer="LSTM 128"),
    ),
    Bar(
        "time a token, 10 to 10,000 steps, over the fastest",
        "≤ 1.15×",
        "sequence_length",
        rows_with(column("over the fastest")),
    ),
    Bar("lean memory over fast", "≤ 6 %", "memory_lean", rows_with(percent("share of memory"))),
    Bar(
        "lean time over fast",
        "≤ 1.4×",
        "memory_lean",
        rows_with(column("time ratio")),
        "the forward pass again is a third of a step; then each stretch's calls: below",
    ),
    Bar(
        "bfloat16 at 256 and 512: float32", "≥ 1.6×", "precision", rows_with(column("over float32"))
    ),
    Bar("bfloat16 at 256 and 512: torch's bfloat16", "≥ 1×", "precision", rows_with(ratio)),
    *(
        _words(f"two levels, {words:,} words", f"≥ {least}×", "two levels", peer, vocabulary=words)
        for words, least, peer in (
            (10_000, 15, "torch full"),
            (50_000, 40, "torch full"),
            (200_000, 80, "torch full"),
            (50_000, 3, "torch adaptive"),
            (10_000, 15, "gathered"),
        )
    ),
    _words("two levels, memory", "≤ 1 %", "two levels", "gathered", value=MEMORY),
    _words(
        "LinearCrossEntropy, 50,000 words",
        "≥ 2×",
        "full",
        "torch full",
        PRODUCTS,
        vocabulary=50_000,
    ),
    _words(
        "LinearCrossEntropy, 50,000 words, memory",
        "≤ 5 %",
        "full",
        "torch full",
        value=MEMORY,
        vocabulary=50_000,
    ),
    Bar(
        "the likeliest of 50,000 words and more: all of them",
        "≥ 1×",
        "likeliest_word",
        rows_with(ratio),
        "random weights and one token on one thread: nothing can be left out, and all of the "
        "weights come from memory",
    ),
    _over("dropout", "dropout", 1.15),
    _over("zoneout", "zoneout", 1.15),
    _over("denormals", "denormals", 1.2),
    _over("LSTM right after torch's own", "LSTM right after", 1.1),
    _over(
        "RNN right after torch's own",
        "RNN right after",
        1.1,
        "not taken apart",
    ),
    _over("two processes at once over one", "two processes", 2.22),
    Bar("trace of a shipped cell", "≤ 150 ms", "overheads", _starts("trace", "with it ms")),
    Bar(
        "import beyond torch's",
        "≤ 150 ms",
        "overheads",
        _starts("import", "with it ms"),
        "Python's collector goes through torch's objects meanwhile; without: below",
    ),
)


def lines(
    read: Callable[[str], Data | None], elsewhere: Callable[[str], Data | None]
) -> Iterator[list[str]]:
    """A line a bar."""
    for bar in BARS:
        yield bar.line(read(bar.question), elsewhere(bar.question))


_FOUND = ["", "GF/s a core"]
HEADER = ["what", "asked", "found", *_FOUND, "where it is missed", "another machine", *_FOUND]
