"""``unpad evaluate``: how a trained run does on labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from unpad.cli import console
from unpad.cli.console import out, percent
from unpad.cli.profile import chosen_split
from unpad.data import Roles, SequenceTable, read
from unpad.data.corpus import text_file, texts_of
from unpad.data.splits import part_of
from unpad.tasks import scoring
from unpad.tasks.language.model import LanguageModel
from unpad.tasks.language.reading import evaluate_texts
from unpad.tasks.model_files import LANGUAGE, read_config
from unpad.tasks.saved import Classifier


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    data: Annotated[Path, typer.Argument(help="Labelled sequences; for a language model texts.")],
    sequence: console.Sequence = None,
    label: console.Label = None,
    identity: console.Id = None,
    time: console.Time = None,
    features: console.Features = None,
    split: console.Split = None,
    as_json: console.AsJson = False,
) -> None:
    """Score the model of RUN: a classifier on labelled sequences, a language model on texts.

    Where DATA has a split column, its test rows are used; --split chooses others.
    """
    roles = console.roles_of(sequence, label, identity, time, features)
    if read_config(run)["task"] == LANGUAGE:
        _perplexity(run, data, roles, split, as_json=as_json)
        return
    classifier = Classifier.load(run)
    table = _rows(read(data, scoring.merge_roles(roles, classifier.roles)), split)
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


def _rows(table: SequenceTable, split: str | None) -> SequenceTable:
    if split is None:
        return part_of(table, "test")
    return table if split == "all" else chosen_split(table, split)


def _perplexity(run: Path, data: Path, roles: Roles, split: str | None, *, as_json: bool) -> None:
    model = LanguageModel.load(run)
    path = text_file(data, "test") if data.is_dir() else data
    rows = texts_of(_rows(read(path, roles), split)).rows
    scores = evaluate_texts(model.network, model.vocabulary, model.settings.sequences, rows)
    facts = scores.to_dict()
    if as_json:
        console.print_json(facts)
        return
    out.print(
        f"perplexity [bold]{facts['perplexity']:.2f}[/bold] ({facts['loss']:.4f} nats a token) on "
        f"{scores.tokens:,} tokens of {scores.texts:,} texts, {scores.unknown:,} unknown; "
        f"{facts['nats_per_character']:.4f} nats a character",
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
