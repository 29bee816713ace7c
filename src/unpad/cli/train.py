"""``unpad train classify``: from a data file to a run folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from unpad.cli import console
from unpad.cli.console import err, out, percent
from unpad.cli.progress import Progress
from unpad.tasks.settings import ModelSettings, TrainingSettings

_MODEL, _TRAINING = ModelSettings(), TrainingSettings()


def classify(
    data: Annotated[Path, typer.Argument(help="Parquet, JSONL, CSV or TSV file with labels.")],
    run: Annotated[Path, typer.Option("--out", help="Folder of the run; made new.")],
    valid: Annotated[Path | None, typer.Option(help="File to validate on.")] = None,
    valid_fraction: Annotated[
        float, typer.Option(help="Share of DATA to validate on without --valid.")
    ] = _TRAINING.valid_fraction,
    sequence: console.Sequence = None,
    label: console.Label = None,
    identity: console.Id = None,
    time: console.Time = None,
    features: console.Features = None,
    cell: Annotated[str, typer.Option(help="lstm, gru, rnn or layernorm_lstm.")] = _MODEL.cell,
    hidden: Annotated[int, typer.Option(help="Units of a layer.")] = _MODEL.hidden_size,
    layers: Annotated[int, typer.Option(help="Layers.")] = _MODEL.layers,
    bidirectional: Annotated[bool, typer.Option(help="Read both ways.")] = _MODEL.bidirectional,
    dropout: Annotated[float, typer.Option(help="Dropout in training.")] = _MODEL.dropout,
    embedding: Annotated[
        int, typer.Option(help="Features of a token of text.")
    ] = _MODEL.embedding_size,
    tokens: Annotated[str, typer.Option(help="Text as: auto, characters, words.")] = _MODEL.tokens,
    lowercase: Annotated[bool, typer.Option(help="Text in lower case.")] = _MODEL.lowercase,
    min_count: Annotated[
        int, typer.Option(help="Rarer tokens of text are unknown.")
    ] = _MODEL.min_count,
    word_dropout: Annotated[
        float, typer.Option(help="Share of tokens of text hidden in training.")
    ] = _MODEL.word_dropout,
    subwords: Annotated[
        int | None,
        typer.Option(help="Buckets of the n-grams of words (0: none; default: 10,000)."),
    ] = _MODEL.subwords,
    frame: Annotated[
        int, typer.Option(help="Steps joined into one (0: long series of one feature).")
    ] = _MODEL.frame,
    per_series: Annotated[
        bool | None,
        typer.Option(help="Normalise each series by itself (default: where scales differ wildly)."),
    ] = _MODEL.per_series,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = _TRAINING.epochs,
    batch_tokens: Annotated[
        int, typer.Option(help="Most tokens of a batch.")
    ] = _TRAINING.batch_tokens,
    batch_sequences: Annotated[
        int, typer.Option(help="Most sequences of a batch.")
    ] = _TRAINING.batch_sequences,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = _TRAINING.learning_rate,
    weight_decay: Annotated[float, typer.Option(help="Decay.")] = _TRAINING.weight_decay,
    label_smoothing: Annotated[
        float, typer.Option(help="Smoothing of the labels.")
    ] = _TRAINING.label_smoothing,
    clip: Annotated[float, typer.Option(help="Largest gradient norm (0: any).")] = _TRAINING.clip,
    patience: Annotated[
        int, typer.Option(help="Epochs without improvement before stopping (0: never).")
    ] = _TRAINING.patience,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = _TRAINING.seed,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = _TRAINING.device,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    as_json: console.AsJson = False,
) -> None:
    """Train a classifier on the labelled sequences of DATA."""
    model = ModelSettings(
        cell=cell, hidden_size=hidden, layers=layers, bidirectional=bidirectional, dropout=dropout,
        embedding_size=embedding, tokens=tokens, lowercase=lowercase, min_count=min_count,
        word_dropout=word_dropout, subwords=subwords, frame=frame, per_series=per_series,
    )  # fmt: skip
    training = TrainingSettings(
        epochs=epochs, batch_tokens=batch_tokens, batch_sequences=batch_sequences,
        learning_rate=lr, weight_decay=weight_decay, label_smoothing=label_smoothing, clip=clip,
        patience=patience, valid_fraction=valid_fraction, seed=seed, device=device,
    )  # fmt: skip
    # Here, not above: Lightning takes seconds to import, and the other commands need none of it.
    from unpad.tasks.classify import Job, train_classifier

    roles = console.roles_of(sequence, label, identity, time, features)
    command = ["unpad", *sys.argv[1:]]
    job = Job(data, run, valid, roles, model, training, command)
    with Progress(epochs, silent=as_json) as progress:
        record = train_classifier(job, resume=resume, watcher=progress)
    end(run, record, command, as_json=as_json, show=_show)


def end(
    run: Path,
    record: dict[str, Any],
    command: list[str],
    *,
    as_json: bool,
    show: Callable[[Path, dict[str, Any]], None],
) -> None:
    """Say what became of a training: how to go on after Ctrl-C, the record, or the results."""
    if record["status"] == "interrupted":
        again = shlex.join([*(a for a in command if a != "--resume"), "--resume"])
        err.print(f"stopped; go on with: {again}", highlight=False)
        raise typer.Exit(130)
    if as_json:
        console.print_json({"run": str(run), **record})
    else:
        show(run, record)


def _show(run: Path, record: dict[str, Any]) -> None:
    results = record["results"]
    if "valid_accuracy" in results:
        out.print(
            f"accuracy [bold]{percent(results['valid_accuracy'])}[/bold] on "
            f"{record['data']['valid']['sequences']:,} validation sequences "
            f"(best of {results['epochs']} epochs: {results['best_epoch'] + 1})",
            highlight=False,
        )
    out.print(
        f"{results['tokens_per_second']:,.0f} tokens/s, {results['seconds']:.1f} s of training; "
        f"padding avoided: {percent(results['padding_avoided'])} of the steps of a padded run",
        highlight=False,
    )
    out.print(f"saved in {run}", highlight=False)
