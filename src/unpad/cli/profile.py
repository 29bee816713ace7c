"""``unpad profile``: lengths of a data file and what padding them would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from unpad.cli import console
from unpad.cli.console import out, percent
from unpad.data import LengthProfile, SequenceTable, profile_lengths, read
from unpad.data.vocabulary import choose_tokens, text_lengths
from unpad.errors import ArgumentError
from unpad.tasks.settings import TOKENS


def profile(
    data: Annotated[Path, typer.Argument(help="Parquet, JSONL, CSV, TSV or text file.")],
    sequence: console.Sequence = None,
    label: console.Label = None,
    identity: console.Id = None,
    time: console.Time = None,
    features: console.Features = None,
    split: console.Split = None,
    tokens: Annotated[str, typer.Option(help="Text as: auto, characters, words.")] = "auto",
    plot: Annotated[Path | None, typer.Option(help="Write the histogram to this PNG.")] = None,
    as_json: console.AsJson = False,
) -> None:
    """Show the lengths of the sequences in DATA and what padding them would waste."""
    table = read(data, console.roles_of(sequence, label, identity, time, features))
    if split not in (None, "all"):
        table = chosen_split(table, split)
    lengths, unit = lengths_of(table, tokens)
    found = profile_lengths(lengths)
    if plot is not None:
        _plot(found, unit, plot)
    facts = _facts(table, unit)
    if as_json:
        console.print_json({"path": str(data), **facts, **found.to_dict()})
    else:
        _show(data, found, facts)


def chosen_split(table: SequenceTable, split: str) -> SequenceTable:
    """The rows of a split; an unknown name is an error that lists what there is."""
    if split not in table.splits():
        there = ", ".join(table.splits()) or "none: the file has no split column"
        raise ArgumentError("split", split, there, "choose one of these, or all")
    return table.of_split(split)


def lengths_of(table: SequenceTable, tokens: str) -> tuple[Any, str]:
    """The length of every sequence, and what it counts."""
    if tokens not in TOKENS[:-1]:
        raise ArgumentError("tokens", tokens, ", ".join(TOKENS[:-1]), "choose one of them")
    if table.kind == "numbers":
        return table.lengths(), "steps"
    if table.kind == "tokens":
        return table.lengths(), "tokens"
    chosen = choose_tokens(table) if tokens == "auto" else tokens
    return text_lengths(table, chosen), chosen  # pyright: ignore[reportArgumentType]


def _facts(table: SequenceTable, unit: str) -> dict[str, Any]:
    labels = {name for name in table.strings("label") if name is not None}
    bad = table.first_non_finite()
    facts: dict[str, Any] = {"unit": unit, "column": table.source.column}
    if table.kind == "numbers":
        facts["features"] = table.feature_count
        facts["non_finite"] = bad[3] if bad else 0
    if bad:
        facts["first_non_finite"] = f"{table.place(bad[0])}, step {bad[1]}, feature {bad[2]}"
    return facts | {"labels": len(labels)}


def _show(data: Path, found: LengthProfile, facts: dict[str, Any]) -> None:
    unit = facts["unit"]
    features = f" of {facts['features']} features" if "features" in facts else ""
    out.print(
        f"[bold]{data}[/bold]: {found.sequences:,} sequences, {found.tokens:,} {unit}{features}, "
        f"{facts['labels']} labels, {found.empty} empty",
        highlight=False,
    )
    if facts.get("non_finite"):
        out.print(
            f"[yellow]{facts['non_finite']} values are NaN or infinite, the first at "
            f"{facts['first_non_finite']}: training refuses them[/yellow]",
            highlight=False,
        )
    out.print(_quantiles(found, unit))
    out.print(_histogram(found, unit))
    out.print(_padding(found))
    out.print(
        f"A padded run with shuffled batches of 32 computes [bold]{found.waste:.2f}[/bold] times "
        "the steps; unpad computes each once.",
        highlight=False,
    )


def _quantiles(found: LengthProfile, unit: str) -> Table:
    table = Table(title=f"Length in {unit}")
    names = {0.0: "min", 0.5: "median", 1.0: "max"}
    for q in found.quantiles:
        table.add_column(names.get(q, f"{100 * q:g} %"), justify="right")
    table.add_column("mean", justify="right")
    table.add_row(*(f"{n:,}" for n in found.quantiles.values()), f"{found.mean:.1f}")
    return table


def _histogram(found: LengthProfile, unit: str) -> Table:
    table = Table(unit, "sequences", "", title="Histogram", box=None)
    table.columns[0].justify = table.columns[1].justify = "right"
    most = max(n for _, _, n in found.histogram)
    for low, high, n in found.histogram:
        bar = "█" * round(40 * n / most) or ("▏" if n else "")
        table.add_row(f"{low}" if low == high else f"{low}-{high}", f"{n:,}", bar)
    return table


def _padding(found: LengthProfile) -> Table:
    table = Table(title="Share of padding in a padded run")
    for name in ("batch size", "shuffled", "sorted", "token budget"):
        table.add_column(name, justify="right")
    for share in found.padding:
        table.add_row(
            str(share.batch_size),
            percent(share.shuffled),
            percent(share.sorted),
            percent(share.token_budget),
        )
    return table


def _plot(found: LengthProfile, unit: str, path: Path) -> None:
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ArgumentError("plot", path, "a name ending in .png, .svg or .pdf", "rename it")
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    starts, widths, counts = zip(*((a, b - a + 1, n) for a, b, n in found.histogram), strict=True)
    left.bar(starts, counts, width=widths, align="edge", edgecolor="white")
    left.set(xlabel=f"length in {unit}", ylabel="sequences")
    sizes = [str(share.batch_size) for share in found.padding]
    for name in ("shuffled", "sorted", "token_budget"):
        shares = [100 * getattr(share, name) for share in found.padding]
        right.plot(sizes, shares, marker="o", label=name.replace("_", " "))
    right.set(xlabel="batch size", ylabel="padding in %", ylim=(0, 100))
    right.legend()
    figure.savefig(path, dpi=120)
