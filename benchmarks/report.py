"""Write docs/performance.md and the README's table from the saved results, and from nothing else.

python benchmarks/report.py          # write
python benchmarks/report.py --check  # exit 1 where the pages and the results differ
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bars
from chart import CHART, TITLE, draw_chart, is_current

from unpad.bench import place

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "performance.md"
TABLE = re.compile(r"(<!-- performance:.*?-->\n).*?(<!-- /performance -->)", re.DOTALL)


def read(question: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    path = folder / f"{question}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _elsewhere(question: str) -> dict[str, Any] | None:
    return read(question, RESULTS / "elsewhere")


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


Row = dict[str, Any]
Columns = dict[str, Callable[[Row], str]]


def text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(key, ""))


def number(key: str, form: str, factor: float = 1) -> Callable[[Row], str]:
    """A number in a format; empty where the row has none (a peer that is not there)."""
    return lambda row: format(factor * row[key], form) if row.get(key) is not None else ""


def median(key: str, form: str = ".2f", factor: float = 1) -> Callable[[Row], str]:
    return lambda row: format(factor * row[key]["median"], form) if key in row else ""


def times(key: str, form: str = ".2f") -> Callable[[Row], str]:
    """How many times: a ratio or a gain."""
    return lambda row: f"{row[key]:{form}}×" if key in row else ""


def left_by_the_bar(row: Row) -> str:
    left = bars.left_by_the_bar(row)
    return "" if left is None else f"{left:.2f}"


def cell(row: Row) -> str:
    """LSTM, or RNN 3×128 where there are several layers."""
    return (
        f"{row['cell']} {row['layers']}×{row['width']}" if row.get("layers", 1) > 1 else row["cell"]
    )


def bar(row: Row) -> str:
    """What a ratio, or a time that has none, may be at most."""
    return f"{row['bar']:.2f}×" if "ratio" in row else f"{row['bar']} ms"


def loop_gain(row: Row) -> str:
    return f"{row['ratio'] / row['padding gain']:.2f}×"


WORK: Columns = {"batch": text("batch"), "threads": text("threads"), "tokens": text("tokens")}
SHARE: Columns = {"share of peak": number("share of peak", ".0%")}
GAINS: Columns = {
    "ratio": times("ratio"),
    "padding gain": times("padding gain"),
    "loop gain": loop_gain,
}
TRUST: Columns = {
    "error": number("error", ".1e"),
    "error of the peer": number("peer error", ".1e"),
    "foreign load": number("foreign load", ".0%"),
}


def milliseconds(*rivals: str) -> Columns:
    return {f"{'Unpad' if name == 'unpad' else name} ms": median(name) for name in rivals}


TORCH = milliseconds("unpad", "padded", "packed")


def summary() -> str:
    """The README's table: a row a cell, the ratio at each batch size and number of threads."""
    found = [
        (read("train_ragged"), {"padded": "torch.nn, padded", "packed": "torch.nn, packed"}),
        (
            read("train_custom_cell"),
            {
                "eager": "an eager torch loop",
                "by hand": "an eager loop, improved by hand",
                "compiled": "a loop over a compiled step",
            },
        ),
    ]
    rows = [row for data, _ in found if data for row in data["rows"]]
    if not rows:
        return "\nNot measured yet on this version: `make bench`.\n\n"
    names = {key: name for _, peers in found for key, name in peers.items()}
    columns = sorted({(row["batch"], row["threads"]) for row in rows})
    header = ["cell", *(f"batch {b}, {t} thread{'s' * (t > 1)}" for b, t in columns), "against"]
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        own = {(row["batch"], row["threads"]): row for row in rows if row["cell"] == cell}
        peers = dict.fromkeys(names[row["peer"]] for row in own.values())
        ratios = [f"{own[c]['ratio']:.1f}×" if c in own else "" for c in columns]
        lines.append([cell, *ratios, " or ".join(peers)])
    machine = next(data["machine"] for data, _ in found if data)
    return f"\n{table(header, lines)}\n{place(machine)}\n\n"


def page() -> str:
    """docs/performance.md, whole."""
    chart = f"![{TITLE}]({CHART.name})\n" if CHART.exists() else ""
    return "\n".join(
        [
            INTRODUCTION,
            *filter(None, [chart]),
            f"{AIMS}\n{table(bars.HEADER, list(bars.lines(read, _elsewhere)))}",
            *map(_section, SECTIONS),
            _memory(),
            _lean(),
        ]
    )


def _section(question: str) -> str:
    words, columns = SECTIONS[question]
    data = read(question)
    if data is None:
        return f"{words}\nNot measured yet: `python benchmarks/{question}.py`.\n"
    lines = [[form(row) for form in columns.values()] for row in data["rows"]]
    parts = [words, table(list(columns), lines)]
    if data.get("memory"):
        header = ["lengths", "", "peak MB above the import", "of one token", "the rest"]
        parts.append(table(header, [_peak(row) for row in data["memory"]]))
    return "\n".join([*parts, f"{place(data['machine'])}\n"])


def _peak(row: Row) -> list[str]:
    peak, least = row["peak MB"], row["one token MB"]
    return [row["lengths"], row["rival"], *(f"{mb:.1f}" for mb in (peak, least, peak - least))]


def _memory() -> str:
    data = read("memory_flat")
    if data is None:
        return f"{MEMORY}\nNot measured yet: `python benchmarks/memory_flat.py`.\n"
    row = data["rows"][0]
    lines = [
        ["calls", f"{row['calls']:,}"],
        ["traces", str(row["traces"])],
        ["resident memory after a tenth of the calls", f"{row['early MB']:.1f} MB"],
        ["after all of them", f"{row['late MB']:.1f} MB ({row['growth']:+.2%})"],
        [
            "first call of new lengths / the same again",
            f"{row['first call / second call']:.3f} (medians)",
        ],
    ]
    return f"{MEMORY}\n{table(['', ''], lines)}\n{place(data['machine'])}\n"


def _lean() -> str:
    data = read("memory_lean")
    if data is None:
        return f"{LEAN}\nNot measured yet: `python benchmarks/memory_lean.py`.\n"
    header = ["cell", "batch", "steps", "threads", "fast MB", "lean MB", "share of memory"]
    header += ["fast ms", "lean ms", "time ratio", "error", "error of fast", "foreign load"]
    rows = [
        [
            f"{row['cell']} {row['width']}",
            *(f"{row[name]:,}" for name in ("batch", "steps", "threads")),
            *(f"{row[name]:.1f}" for name in ("fast MB", "lean MB")),
            f"{row['share of memory']:.1%}",
            *(f"{row[name]['median']:.0f}" for name in ("fast", "lean")),
            f"{row['time ratio']:.2f}×",
            *(f"{row[name]:.1e}" for name in ("error", "fast error")),
            f"{row['foreign load']:.0%}",
        ]
        for row in data["rows"]
    ]
    return f"{LEAN}\n{table(header, rows)}\n{_lean_parts(data)}{place(data['machine'])}\n"


def _lean_parts(data: Row) -> str:
    """The passes of both ways, in milliseconds; what a result has no parts of is left out."""
    names = ("forward", "saving", "backward", "outside")
    rows = [
        [f"{row['threads']}", way, *(f"{row[f'{way} {name}']:.0f}" for name in names)]
        for row in data["rows"]
        if "stretches" in row
        for way in ("fast", "lean")
    ]
    if not rows:
        return ""
    stretches = ", ".join(f"{row['stretches']:.0f}" for row in data["rows"])
    header = ["threads", "", "forward ms", "forward, saving", "backward", "outside of the engine"]
    return f"{PARTS.format(stretches)}\n{table(header, rows)}\n"


INTRODUCTION = """# Performance

Written by `benchmarks/report.py` from `benchmarks/results/*.json`; `make bench` measures again.

How the figures are made:

- The rivals run in one process, in turn, in an order drawn anew for each round; times are medians.
- torch runs at its best: the faster of its ways, glibc's malloc told to keep its memory
  (`unpad.bench.tuned_malloc`), since by default page faults slow its training down by up to 1.6×;
  padding and packing the data is not charged to it.
- Unpad packs its weights inside every call, and the call is the public one.
- The error stands beside the time: the largest deviation of any gradient from torch's in float64,
  relative to the largest value; torch's own float32 error beside it.
- The ratio is to the fastest peer, and is given in two parts. The padding gain is the number of
  padded steps over the number of tokens: what a machine that is as fast on pads as on tokens would
  gain from leaving them out. The loop gain is the rest. On equal lengths the padding gain is 1, and
  torch's LSTM kernel is as near to the machine's limit there as ours is meant to be.
- A peer from another framework runs in an environment and a process of its own, takes its turns in
  the same run and times its own calls. Where such peers are, a turn of any rival is 0.1 seconds of
  calls in a row, of which the median counts, and a pause around each turn lets the other's threads
  go to sleep.
- The share of peak is what the products alone need, on useful tokens, at the multiply-add peak that
  `unpad.machine_peak` measures in registers right after the row, over the time taken.
- The foreign load is the share of all cores that other processes used meanwhile; a row with more
  than a few per cent is worth little.
"""
AIMS = """## What was aimed at

Every bar that the project set itself (`benchmarks/bars.py`), beside what the tables below hold,
from the worst to the best of their rows. A ratio is to the peer named, training, with hidden size
128, batch 32, 1 and 2 threads where nothing else is said; memory is the peer's peak over Unpad's.
Where a bar on a ratio is missed, it says at which share of the machine's multiply-add peak it would
be met: nothing exceeds 100 %. The last columns are what was measured before on a machine of another
peak: a kernel loses less of a lower peak to memory, and gains less on a peer that spends its time
elsewhere. The shares were asked of a peak that a first prototype took for 250 GF/s a core on a
machine whose registers reach 267; here they are of what the registers reach.
"""
MEMORY = """## Memory, traces and first calls

Forward and backward of an LSTM, with batch size and lengths drawn anew at each call
(`benchmarks/memory_flat.py`, which fails where a promise is broken).
"""
LEAN = """## Long sequences in little memory

One forward and backward with `memory="lean"` beside `"fast"` (`benchmarks/memory_lean.py`). The
memory is what a fresh process's resident peak rises by, less the output and the input's gradient;
the errors are the largest of any gradient against float64.
"""
PARTS = """Where it goes: lean runs forward once without saving, then each stretch again and back
({} stretches). Each of their calls packs the weights and starts the threads, and between two calls
Python and torch run with cold caches.
"""
SECTIONS: dict[str, tuple[str, Columns]] = {
    "train_ragged": (
        """## Training on ragged batches

One forward and backward of a layer 128 -> 128, lengths uniform from 10 to 100
(`benchmarks/train_ragged.py`).
""",
        {"cell": cell, **WORK, **TORCH, **SHARE, **GAINS, **TRUST},
    ),
    "train_lengths": (
        """## What the lengths make of it

The same on lengths of other kinds, drawn and real; of a data set, the batch of median padding in a
shuffled epoch (`benchmarks/train_lengths.py`).
""",
        {"lengths": text("lengths"), "cell": cell, **WORK, **TORCH, **SHARE, **GAINS, **TRUST},
    ),
    "train_sizes": (
        """## Hidden sizes, batches, threads

One forward and backward of a layer H -> H (`benchmarks/train_sizes.py`).
""",
        {
            "cell": cell,
            "H": text("width"),
            "lengths": text("lengths"),
            **WORK,
            **TORCH,
            **SHARE,
            **GAINS,
            **TRUST,
        },
    ),
    "train_custom_cell": (
        """## A cell that torch has no kernel for

A LayerNorm LSTM and the README's minimal GRU, 128 -> 128, on lengths uniform from 10 to 100,
against an eager loop of the same cell over the padded batch, against that loop improved by hand,
and against the loop over the step that `torch.compile` makes (`benchmarks/train_custom_cell.py`).
The ratio is to the fastest of the three. The first cell is chaotic with random weights, so the
errors are medians of root-mean-square ones.
""",
        {
            "cell": cell,
            **WORK,
            **milliseconds("unpad", "eager", "by hand", "compiled"),
            "over the eager loop": times("over the eager loop"),
            **SHARE,
            **GAINS,
            **TRUST,
        },
    ),
    "user_cells": (
        """## The same cells, written by a user

LSTM, GRU and RNN as their equations read, a `torch.nn.Linear` for every gate, against the shipped
layers; the ratio is the user's time over the shipped one's (`benchmarks/user_cells.py`). What is
not the engine's is timed beside it: torch, autograd and Python, which a user's LSTM asks for
sixteen parameters instead of four.
""",
        {
            "cell": cell,
            **WORK,
            "padding gain": times("padding gain"),
            "user's ms": median("user"),
            "shipped ms": median("shipped"),
            "outside of the engine": median("user, outside"),
            "of the shipped": median("shipped, outside"),
            **SHARE,
            "ratio": times("ratio", ".3f"),
            "error": number("error", ".1e"),
            "error of the shipped": number("peer error", ".1e"),
            "foreign load": number("foreign load", ".0%"),
        },
    ),
    "train_peers": (
        """## Other frameworks

One forward and backward of three tanh layers of 128 on 64 inputs, and of a LayerNorm LSTM and the
README's minimal GRU, 128 -> 128; batch 32. Each framework has an environment and a process of its
own and takes its turns in the same run (`benchmarks/train_peers.py`, `make bench-peers`), in the
form in which it was fastest: TensorFlow without oneDNN and XLA; jax jitted, padded without a mask,
with one, two or four steps a turn of the scan; "by hand" takes what depends on the input alone out
of the scan. The gradients themselves are fetched. The memory is of three training steps in a fresh
process; a step on one token alone shows what each sets up whatever the batch.
""",
        {
            "cell": cell,
            "lengths": text("lengths"),
            "threads": text("threads"),
            "peer": text("peer"),
            "version": text("version"),
            "Unpad ms": median("unpad"),
            "peer ms": median("theirs"),
            **SHARE,
            **GAINS,
            **TRUST,
        },
    ),
    "where_time_goes": (
        """## Where a step's time goes

The step of an H -> H layer on lengths uniform from 10 to 100, and of one sequence of 100, taken
apart (`benchmarks/where_time_goes.py`). Both passes are run again on the same memory with the
products alone, with all else alone and with neither: the plan, packing the weights, adding up the
sums of the threads, copying the states. "Neither" is taken off the other two. "Counted twice" is
what these make together beyond the two whole passes: data that each fetches where it is alone.
"Outside" is torch, autograd and Python around the engine, in place, where caches are cold; the same
on one token again and again is warm. An empty `autograd.Function` of as many tensors, right after
the same passes, is the least that is possible. "Left by the bar" is what a step at the share of the
peak that was asked of it (above) would have for all but the products as they are: where it is less
than an empty function takes, or below zero, the bar asks for faster products.
""",
        {
            "cell": cell,
            "H": text("width"),
            **WORK,
            "step, ms": number("step", ".2f"),
            "at the peak": number("at the peak", ".2f"),
            "neither": number("neither", ".2f"),
            "products": number("products", ".2f"),
            "their share of peak": number("share of products", ".0%"),
            "left by the bar": left_by_the_bar,
            "else": number("else", ".2f"),
            "counted twice": number("twice", ".2f"),
            "outside": number("outside", ".2f"),
            "of one token": number("outside, one token", ".2f"),
            "an empty function": number("empty function", ".2f"),
            "foreign load": number("foreign load", ".0%"),
        },
    ),
    "batch_one": (
        """## One sequence

Forward and backward over one sequence of 100 tokens, H = 64, each rival with the number of threads
that suits it best (`benchmarks/batch_one.py`). There is nothing to pad: the padding gain is 1.
""",
        {
            "cell": cell,
            "peer": text("peer"),
            "version": text("version"),
            "Unpad µs": median("unpad", ".0f", 1e3),
            "peer µs": median("theirs", ".0f", 1e3),
            **SHARE,
            "ratio": times("ratio"),
            **TRUST,
        },
    ),
    "streaming": (
        """## One token at a time

A `Stepper` called with the next token of one stream, against `torch.nn`'s layer on a sequence of
length 1 with its state; one thread (`benchmarks/streaming.py`).
""",
        {
            "layer": text("layer"),
            "Unpad µs": number("call us", ".1f"),
            "state in and out µs": number("step us", ".1f"),
            "arrays µs": number("arrays us", ".1f"),
            "torch µs": number("torch us", ".1f"),
            **SHARE,
            "ratio": times("ratio"),
            **TRUST,
        },
    ),
    "sequence_length": (
        """## Short and long sequences

Forward and backward of an LSTM 128 -> 128 on batches of equal tokens and equal lengths
(`benchmarks/sequence_length.py`).
""",
        {
            "steps": text("steps"),
            **WORK,
            "Unpad, ns a token": number("ns a token", ".0f"),
            "over its fastest": times("over the fastest"),
            "torch padded, ns a token": number("torch, ns a token", ".0f"),
            "over its own fastest": times("torch over its fastest"),
            **SHARE,
            "ratio": times("ratio"),
            "error": number("error", ".1e"),
            "foreign load": number("foreign load", ".0%"),
        },
    ),
    "precision": (
        """## Products in bfloat16

A layer H -> H with `precision="bfloat16"` on lengths uniform from 10 to 100, against itself in
float32, and against torch's layer in the fastest of its bfloat16 forms: padded or packed, in
autocast or converted (`benchmarks/precision.py`).
""",
        {
            "cell": cell,
            "pass": text("pass"),
            "H": text("width"),
            **WORK,
            "bfloat16 ms": median("unpad"),
            "float32 ms": median("float32"),
            "over float32": times("over float32"),
            "torch ms": lambda row: median(row["peer"])(row),
            "torch's form": text("peer"),
            "ratio": times("ratio"),
            "padding gain": times("padding gain"),
            "error of float32": number("float32 error", ".1e"),
            **TRUST,
        },
    ),
    "large_vocabulary": (
        """## Softmax over many words

Forward and backward of the loss of tokens of 256 features, 50 a sequence: `HierarchicalSoftmax`
("two levels") and `LinearCrossEntropy` ("full"), against `linear` and `cross_entropy`, against
`nn.AdaptiveLogSoftmaxWithLoss`, and against two levels with the class weights gathered for every
token (`benchmarks/large_vocabulary.py`). Uniform targets are the worst for two levels: every row of
the gradient is touched. The memory is what a step adds to a fresh process, less the gradients.
""",
        {
            "words": number("vocabulary", ",d"),
            **WORK,
            "targets": text("targets"),
            "Unpad's way": text("way"),
            "peer": text("peer"),
            "Unpad ms": median("unpad"),
            "peer ms": median("theirs"),
            "ratio": times("ratio", ".1f"),
            "share of peak": number("share of peak", ".0%"),
            "Unpad MB": number("MB", ".1f"),
            "peer MB": number("peer MB", ".1f"),
            "share of memory": number("share of memory", ".1%"),
            **TRUST,
        },
    ),
    "likeliest_word": (
        """## The likeliest of many words

`HierarchicalSoftmax.predict` for tokens of 256 features, against the arg-max of torch's `linear`
with as many words (`benchmarks/likeliest_word.py`). The surer the softmax, the sooner it may stop:
weights are scaled for the entropy given; random weights have the largest one. Of the cases, in
float64 with a tenth of the words, "equal" have the word of the largest log probability of all.
""",
        {
            "words": number("vocabulary", ",d"),
            "threads": text("threads"),
            "tokens": text("tokens"),
            "entropy, nats": number("entropy", ".1f"),
            "Unpad ms": median("unpad", ".1f"),
            "torch ms": median("theirs", ".1f"),
            "ratio": times("ratio"),
            "cases": number("cases", ",d"),
            "equal": number("equal", ",d"),
            "foreign load": number("foreign load", ".0%"),
        },
    ),
    "overheads": (
        """## What benchmarks usually leave out

The ratio is the time with it over the time without (`benchmarks/overheads.py`).
""",
        {
            "question": text("question"),
            "threads": text("threads"),
            "with it, ms": number("with it ms", ".2f"),
            "without, ms": number("base ms", ".2f"),
            "ratio": times("ratio", ".3f"),
            "at most": bar,
            "padding gain": times("padding gain"),
            "error": number("error", ".1e"),
            "foreign load": number("foreign load", ".0%"),
        },
    ),
    "forward_peers": (
        """## Forward alone, against other engines

Inference of a layer 128 -> 128 on the same lengths, against ONNX Runtime's operators (which skip
pads), and torch padded and packed (`benchmarks/forward_peers.py`, `make bench-peers`).
""",
        {
            "cell": cell,
            **WORK,
            **milliseconds("unpad", "onnxruntime", "padded", "packed"),
            **SHARE,
            **GAINS,
            **TRUST,
        },
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, tell if up to date")
    options = parser.parse_args()
    chart = is_current()
    if not chart and not options.check:
        draw_chart()
    readme = README.read_text()
    wanted = {
        README: TABLE.sub(lambda match: match[1] + summary() + match[2], readme),
        PAGE: page(),
    }
    stale = [path for path, new in wanted.items() if not path.exists() or path.read_text() != new]
    if not chart:
        print(f"{CHART.name} {'is not of these results' if options.check else 'drawn'}")
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} {'differs from the results' if options.check else 'written'}"
        )
        if not options.check:
            path.write_text(wanted[path])
    return 1 if options.check and (stale or not chart) else 0


if __name__ == "__main__":
    sys.exit(main())
