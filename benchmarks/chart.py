"""The chart of docs/performance.md, made from the saved results: gains and share of peak.

A bar goes from 1 to the ratio to the faster of torch's ways; the mark is how much of that leaving
the padding out would give by itself. The file carries a digest of what it shows, so that it can be
told whether it is of these results (the picture's bytes differ between versions of matplotlib).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
CHART = Path(__file__).parent.parent / "docs" / "performance.svg"
TITLE = "Training against torch.nn by lengths, and share of the machine's peak by hidden size"
COLOURS = {"LSTM": "#33638d", "GRU": "#3fbc73", "RNN": "#d98b2b"}

Rows = list[dict[str, Any]]


def shown() -> dict[str, Rows]:
    """What the chart shows, of what was measured: a panel each."""
    found: dict[str, Rows] = {}
    for question in ("train_lengths", "train_sizes"):
        path = RESULTS / f"{question}.json"
        if path.exists():
            found[question] = json.loads(path.read_text())["rows"]
    if rows := found.get("train_lengths"):
        batch, threads = min(row["batch"] for row in rows), max(row["threads"] for row in rows)
        found["train_lengths"] = [r for r in rows if (r["batch"], r["threads"]) == (batch, threads)]
    return found


def is_current() -> bool:
    """Whether the chart is of the saved results, or missing as they are."""
    data = shown()
    if not data:
        return not CHART.exists()
    return CHART.exists() and _digest(data) in CHART.read_text()


def draw_chart() -> None:
    """Draw what there is; no file where there is nothing."""
    data = shown()
    CHART.unlink(missing_ok=True)
    if not data:
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "unpad", "font.size": 9})
    bars = len(dict.fromkeys(row["lengths"] for row in data.get("train_lengths", [])))
    figure = Figure(figsize=(10, max(4.5, 1.5 + 0.45 * bars)), layout="constrained")
    panels = figure.subplots(1, len(data), squeeze=False)[0]
    for panel, (question, rows) in zip(panels, data.items(), strict=True):
        {"train_lengths": _ratios, "train_sizes": _shares}[question](panel, rows)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(CHART, metadata={"Date": None, "Title": TITLE, "Description": _digest(data)})


def _digest(data: dict[str, Rows]) -> str:
    return "results " + hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def _ratios(panel: Any, rows: Rows) -> None:
    lengths = list(dict.fromkeys(row["lengths"] for row in rows))
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    height = 0.8 / len(cells)
    for number, cell in enumerate(cells):
        own = [row for row in rows if row["cell"] == cell]
        places = [lengths.index(row["lengths"]) + number * height for row in own]
        label = f"{cell}{' 3 layers' if own[0]['layers'] == 3 else ''}"
        ratios = [row["ratio"] for row in own]
        gained = [ratio - 1 for ratio in ratios]
        panel.barh(places, gained, height, left=1, color=COLOURS[cell], label=label)
        marks = [row["padding gain"] for row in own]
        panel.plot(marks, places, "|", color="black", markersize=6)
    panel.plot([], [], "|", color="black", label="padding gain")
    panel.axvline(1, color="grey", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["½", "1", "2", "5", "10", "20", "50"])
    panel.minorticks_off()
    panel.set_yticks([place + 0.4 - height / 2 for place in range(len(lengths))], lengths)
    panel.invert_yaxis()
    first = rows[0]
    threads = f"{first['threads']} thread{'s' * (first['threads'] > 1)}"
    panel.set_title(f"Training, width {first['width']}, batch {first['batch']}, {threads}")
    panel.set_xlabel("times as fast as the faster of torch's padded and packed")
    panel.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=4, frameon=False)


def _shares(panel: Any, rows: Rows) -> None:
    ragged = [row for row in rows if row["lengths"].startswith("uniform")]
    lines = dict.fromkeys((row["cell"], row["batch"], row["threads"]) for row in ragged)
    for cell, batch, threads in lines:
        own = [r for r in ragged if (r["cell"], r["batch"], r["threads"]) == (cell, batch, threads)]
        panel.plot(
            [row["width"] for row in own],
            [100 * row["share of peak"] for row in own],
            marker="o",
            color=COLOURS[cell],
            linestyle="-" if threads == 1 else "--",
            alpha=0.5 if batch == min(row["batch"] for row in ragged) else 1.0,
            label=f"{cell}, batch {batch}, {threads} thread{'s' * (threads > 1)}",
        )
    widths = sorted({row["width"] for row in ragged})
    panel.set_xscale("log", base=2)
    panel.set_xticks(widths, [str(width) for width in widths])
    panel.set_ylim(0, 100)
    panel.set_title("Training on lengths uniform from 10 to 100")
    panel.set_xlabel("hidden size")
    panel.set_ylabel("% of the multiply-add peak, on useful tokens")
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
