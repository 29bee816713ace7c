"""``unpad evaluate``: how a trained run does on labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from unpad.cli import console
from unpad.cli.console import out, percent
from unpad.cli.profile import chosen_split
from unpad.data import read
from unpad.tasks import scoring
from unpad.tasks.saved import Classifier


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    data: Annotated[Path, typer.Argument(help="File with labels, formed like the training data.")],
    sequence: console.Sequence = None,
    label: console.Label = None,
    identity: console.Id = None,
    time: console.Time = None,
    features: console.Features = None,
    split: console.Split = None,
    as_json: console.AsJson = False,
) -> None:
    """Score the classifier of RUN on the labelled sequences of DATA.

    Where DATA has a split column, its test rows are used; --split chooses others.
    """
    classifier = Classifier.load(run)
    roles = console.roles_of(sequence, label, identity, time, features)
    table = read(data, scoring.merge_roles(roles, classifier.roles))
    if split is None:
        table = scoring.part_of(table, "test")
    elif split != "all":
        table = chosen_split(table, split)
    scores = scoring.evaluate(classifier, table)
    if as_json:
        console.print_json({
            "accuracy": scores.accuracy, "loss": scores.loss, "sequences": scores.sequences,
            "by_label": scores.by_label(), "labels": scores.labels, "confusion": scores.confusion,
        })  # fmt: skip
        return
    out.print(_by_label(scores.by_label()))
    out.print(
        f"accuracy [bold]{percent(scores.accuracy)}[/bold] on {scores.sequences:,} sequences, "
        f"loss {scores.loss:.4f}",
        highlight=False,
    )


def _by_label(rows: list[dict[str, Any]]) -> Table:
    table = Table("label")
    for name in ("sequences", "precision", "recall", "F1"):
        table.add_column(name, justify="right")
    for row in rows:
        shares = (percent(row[name]) for name in ("precision", "recall", "f1"))
        table.add_row(row["label"], f"{row['sequences']:,}", *shares)
    return table
