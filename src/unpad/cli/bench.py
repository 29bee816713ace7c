"""``unpad bench``: training on the user's own lengths, against torch.nn, in under a minute."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich import box
from rich import progress as rich_progress
from rich.table import Table

from unpad.bench import (
    CELLS,
    Task,
    Timing,
    compare,
    draw,
    machine,
    padding_gain,
    place,
    tuned_malloc,
    typical_batch,
)
from unpad.cli import console
from unpad.cli.console import err, out, percent
from unpad.cli.profile import chosen_split, lengths_of
from unpad.data import read
from unpad.errors import ArgumentError

# Of a sequence, and of a padded batch: torch's GRU takes some 0.3 ms a step, and each of the three
# is called about eight times.
_LONGEST, _MOST_STEPS = 2_000, 20_000
# Of all cores, by other processes: rows measured meanwhile are marked.
_DISTURBED, _MARK = 0.05, "(!)"
_WITHOUT_DATA = "uniform 10-100"


def bench(
    data: Annotated[
        Path | None,
        typer.Argument(help="Parquet, JSONL, CSV, TSV or text file; none: lengths of 10 to 100."),
    ] = None,
    sequence: console.Sequence = None,
    label: console.Label = None,
    identity: console.Id = None,
    time: console.Time = None,
    features: console.Features = None,
    split: console.Split = None,
    tokens: Annotated[str, typer.Option(help="Text as: auto, characters, words.")] = "auto",
    hidden: Annotated[int, typer.Option(min=1, help="Units of a layer, and its inputs.")] = 128,
    layers: Annotated[int, typer.Option(min=1, help="Layers.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of the batch.")] = 32,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads (default: as many as torch uses).")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="To measure each layer for.")] = 4.0,
    as_json: console.AsJson = False,
) -> None:
    """Time a training step of LSTM, GRU and RNN on the lengths of DATA, against torch.nn.

    The batch is the one of median padding in a shuffled epoch; its values are random. torch runs
    padded and packed; the ratio to the faster one is the padding gain times the loop gain. Long
    sequences are cut and large batches made smaller, so that it takes no more than a minute.
    """
    roles = console.roles_of(sequence, label, identity, time, features)
    lengths, unit = draw(_WITHOUT_DATA, batch_size), "steps"
    if data is not None:
        table = read(data, roles)
        if split not in (None, "all"):
            table = chosen_split(table, split)
        found, unit = lengths_of(table, tokens)
        cut = np.minimum(found, _LONGEST)
        lengths = typical_batch(cut, batch_size, most=_MOST_STEPS)
    if not lengths:
        raise ArgumentError("data", str(data), "a sequence that is not empty", "give other data")
    used = _threads(threads)
    tuned_malloc()
    tasks = [Task(cell, hidden, layers) for cell in CELLS]
    rows = _measure(tasks, lengths, used, seconds, silent=as_json)
    facts = {
        "path": None if data is None else str(data),
        "unit": unit,
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "padding_gain": padding_gain(lengths),
        "machine": machine(),
    }
    if as_json:
        console.print_json({**facts, "rows": [_plain(row) for row in rows]})
    else:
        _show(facts, rows, batch_size)


def _threads(wanted: int | None) -> int:
    cores = os.cpu_count() or 1
    if wanted is not None and wanted > cores:
        raise ArgumentError("threads", wanted, f"1 to {cores}, one a core", "choose fewer")
    return wanted or min(torch.get_num_threads(), cores)


def _measure(
    tasks: list[Task], lengths: list[int], threads: int, seconds: float, *, silent: bool
) -> list[dict[str, Any]]:
    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=silent or not err.is_terminal,
    )
    rows: list[dict[str, Any]] = []
    with bar:
        shown = bar.add_task("", total=len(tasks))
        for done, task in enumerate(tasks):
            bar.update(shown, description=f"{task.cell} {task.width}", completed=done)

            def advance(share: float, done: int = done) -> None:
                bar.update(shown, completed=done + share)

            rows.append(
                compare(
                    task, lengths, threads=threads, seconds=seconds, least=3, each_round=advance
                )
            )
    return rows


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: names without blanks, null for what is not known."""
    plain = {name.replace(" ", "_"): value for name, value in row.items()}
    for name, value in plain.items():
        if isinstance(value, Timing):
            plain[name] = asdict(value)
        elif isinstance(value, float) and math.isnan(value):
            plain[name] = None
    return plain


def _show(facts: dict[str, Any], rows: list[dict[str, Any]], batch_size: int) -> None:
    source = f"a typical batch of [bold]{facts['path']}[/bold]" if facts["path"] else _WITHOUT_DATA
    first = rows[0]
    out.print(
        f"{source}: {facts['sequences']} sequences, {facts['tokens']:,} {facts['unit']}, the "
        f"longest {facts['longest']:,}; padded it has {facts['padding_gain']:.2f} times the steps",
        highlight=False,
    )
    if facts["path"] and facts["sequences"] < batch_size:
        _warn(
            f"not {batch_size} sequences: there are no more, or their padded batch would have over "
            f"{_MOST_STEPS:,} steps"
        )
    if facts["longest"] == _LONGEST:
        _warn(f"sequences are cut after {_LONGEST:,} {facts['unit']}, so that torch ends in time")
    foreign = max(row["foreign load"] for row in rows)
    if foreign > _DISTURBED:
        _warn(
            f"other processes used up to {percent(foreign)} of this machine meanwhile: rows marked "
            f"{_MARK} are not to be relied on, measure again when it is quiet"
        )
    out.print(_table(rows))
    out.print(
        f"{first['layers']} layer{'s' * (first['layers'] > 1)} of {first['width']}, "
        f"{first['threads']} thread{'s' * (first['threads'] > 1)}; forward and backward. "
        "Errors of all gradients, against float64.",
        highlight=False,
    )
    out.print(place(facts["machine"]), highlight=False)


def _warn(text: str) -> None:
    out.print(f"[yellow]{text}[/yellow]", highlight=False)


def _short(value: float) -> str:
    """In five characters, from 0.01 up to 99,999: 1.23, 12.34, 123.4, 1234."""
    decimals = 2 if value < 99.995 else 1 if value < 999.95 else 0
    return f"{value:.{decimals}f}"


def _table(rows: list[dict[str, Any]]) -> Table:
    """As wide as a terminal of 80 columns."""
    table = Table(box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    table.title = "Training step in ms: Unpad, torch.nn padded and packed"
    table.add_column("layer", no_wrap=True)
    headings = ("unpad", "padded", "packed", "ratio", "padding\ngain", "loop\ngain", "of\npeak")
    for name in (*headings, "error", "torch's\nerror"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        share = row["share of peak"]
        table.add_row(
            f"[yellow]{row['cell']} {_MARK}[/yellow]"
            if row["foreign load"] > _DISTURBED
            else row["cell"],
            *(_short(row[name].median) for name in ("unpad", "padded", "packed")),
            f"[bold]{_short(row['ratio'])}×[/bold]",
            f"{_short(row['padding gain'])}×",
            f"{_short(row['loop gain'])}×",
            "" if math.isnan(share) else f"{share:.0%}",
            f"{row['error']:.0e}",
            f"{row['peer error']:.0e}",
        )
    return table
