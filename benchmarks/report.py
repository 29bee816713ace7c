"""Write docs/performance.md and the README's table from the saved results, and from nothing else.

python benchmarks/report.py          # write
python benchmarks/report.py --check  # exit 1 where the pages and the results differ
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "performance.md"
TABLE = re.compile(r"(<!-- performance:.*?-->\n).*?(<!-- /performance -->)", re.DOTALL)


def read(question: str) -> dict[str, Any] | None:
    path = RESULTS / f"{question}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def where(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores{_peak(machine)}; {machine['engine']}; "
        f"torch {machine['torch']}, malloc {machine['malloc']}; {machine['date']}."
    )


def _peak(machine: dict[str, Any]) -> str:
    peak = machine.get("peak GF/s a core")
    return f" of {peak:g} GF/s" if peak else ""


def times(rows: list[dict[str, Any]], peers: tuple[str, ...]) -> str:
    header = ["cell", "batch", "threads", "tokens", "padding factor", "Unpad ms"]
    header += [f"{peer} ms" for peer in peers]
    header += [
        "share of peak",
        "ratio to the fastest",
        "error",
        "error of the peer",
        "foreign load",
    ]
    return table(header, [_time_row(row, peers) for row in rows])


def _time_row(row: dict[str, Any], peers: tuple[str, ...]) -> list[str]:
    return [
        row["cell"],
        str(row["batch"]),
        str(row["threads"]),
        str(row["tokens"]),
        f"{row['padding factor']:.2f}",
        *(f"{row[name]['median']:.2f}" for name in ("unpad", *peers)),
        f"{row['share of peak']:.0%}" if "share of peak" in row else "",
        f"{row['ratio']:.2f}×",
        f"{row['error']:.1e}",
        f"{row['peer error']:.1e}",
        f"{row['foreign load']:.0%}",
    ]


def summary() -> str:
    """The README's table: a row a cell, the ratio at each batch size and number of threads."""
    found = [
        (read("train_ragged"), {"padded": "torch.nn, padded", "packed": "torch.nn, packed"}),
        (
            read("train_custom_cell"),
            {"eager": "an eager torch loop", "by hand": "an eager loop, improved by hand"},
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
    return f"\n{table(header, lines)}\n{where(machine)}\n\n"


def page() -> str:
    """docs/performance.md, whole."""
    return "\n".join(
        [
            INTRODUCTION,
            _section("train_ragged", RAGGED, ("padded", "packed")),
            _section("train_custom_cell", CUSTOM, ("eager", "by hand")),
            _section("forward_peers", FORWARD, ("onnxruntime", "padded", "packed")),
            _memory(),
        ]
    )


def _section(question: str, text: str, peers: tuple[str, ...]) -> str:
    data = read(question)
    if data is None:
        return f"{text}\nNot measured yet: `python benchmarks/{question}.py`.\n"
    return f"{text}\n{times(data['rows'], peers)}\n{where(data['machine'])}\n"


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
    return f"{MEMORY}\n{table(['', ''], lines)}\n{where(data['machine'])}\n"


INTRODUCTION = """# Performance

Written by `benchmarks/report.py` from `benchmarks/results/*.json`; `make bench` measures again.

How the figures are made:

- The rivals run in one process, in turn, in an order drawn anew for each round; times are medians.
- torch runs at its best: the faster of its ways, glibc's malloc tuned (`MALLOC_MMAP_MAX_`,
  `MALLOC_TRIM_THRESHOLD_`, `MALLOC_TOP_PAD_`), since by default page faults slow its training down
  by up to 1.6×; padding and packing the data is not charged to it.
- Unpad packs its weights inside every call, and the call is the public one.
- The error stands beside the time: the largest deviation of any gradient from torch's in float64,
  relative to the largest value; torch's own float32 error beside it.
- The padding factor is the number of padded steps over the number of tokens: what a machine that
  is as fast on pads as on tokens would gain from leaving them out. On equal lengths it is 1, and
  torch's LSTM kernel is as near to the machine's limit there as ours is meant to be.
- The share of peak is what the products alone need, on useful tokens, at the multiply-add peak that
  `unpad.machine_peak` measures in registers right after the row, over the time taken.
- The foreign load is the share of all cores that other processes used meanwhile; a row with more
  than a few per cent is worth little.
"""
RAGGED = """## Training on ragged batches

One forward and backward of a layer 128 -> 128, lengths uniform from 10 to 100
(`benchmarks/train_ragged.py`).
"""
CUSTOM = """## A cell that torch has no kernel for

A LayerNorm LSTM 128 -> 128 on the same lengths, against an eager loop of the same cell over the
padded batch, and against that loop improved by hand (`benchmarks/train_custom_cell.py`). This cell
is chaotic with random weights, so the errors are medians of root-mean-square ones.
"""
FORWARD = """## Forward alone, against other engines

Inference of a layer 128 -> 128 on the same lengths, against ONNX Runtime's operators (which skip
pads), and torch padded and packed (`benchmarks/forward_peers.py`, `make bench-peers`).
"""
MEMORY = """## Memory, traces and first calls

Forward and backward of an LSTM, with batch size and lengths drawn anew at each call
(`benchmarks/memory_flat.py`, which fails where a promise is broken).
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, tell if up to date")
    options = parser.parse_args()
    text = README.read_text()
    wanted = {
        README: TABLE.sub(lambda match: match[1] + summary() + match[2], text),
        PAGE: page(),
    }
    stale = [path for path, new in wanted.items() if not path.exists() or path.read_text() != new]
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} {'differs from the results' if options.check else 'written'}"
        )
        if not options.check:
            path.write_text(wanted[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
