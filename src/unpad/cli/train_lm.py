"""``unpad train lm``: from texts to the run folder of a language model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unpad.cli import console
from unpad.cli.console import out
from unpad.cli.progress import Progress
from unpad.cli.train import end
from unpad.data import Roles
from unpad.tasks.language.settings import (
    PRESETS,
    LanguageSettings,
    LanguageTraining,
    preset,
)

_PRESETS = ", ".join(PRESETS)


def lm(
    data: Annotated[
        Path, typer.Argument(help="Folder with train.txt, valid.txt, test.txt; or one file.")
    ],
    run: Annotated[Path, typer.Option("--out", help="Folder of the run; made new.")],
    preset_name: Annotated[
        str | None, typer.Option("--preset", help=f"Settings to start from: {_PRESETS}.")
    ] = None,
    valid: Annotated[Path | None, typer.Option(help="File to validate on.")] = None,
    test: Annotated[Path | None, typer.Option(help="File to test on at the end.")] = None,
    valid_fraction: Annotated[
        float | None, typer.Option(help="Share of the text, its end, to validate on without one.")
    ] = None,
    sequence: console.Sequence = None,
    tokens: Annotated[
        str | None, typer.Option(help="characters, words, spaced (as cut by blanks), subwords.")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Most tokens to know.")] = None,
    min_count: Annotated[int | None, typer.Option(help="Rarer tokens are unknown.")] = None,
    lowercase: Annotated[bool | None, typer.Option(help="Text in lower case.")] = None,
    sequences: Annotated[
        str | None, typer.Option(help="stream (state goes on from text to text) or lines.")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="lstm, gru, rnn or layernorm_lstm.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Units of a layer.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers.")] = None,
    embedding: Annotated[
        int | None, typer.Option(help="Features of a token (0: as many as units).")
    ] = None,
    tied: Annotated[bool | None, typer.Option(help="One weight for embedding and softmax.")] = None,
    softmax: Annotated[
        str | None, typer.Option(help="full, hierarchical or adaptive (torch's).")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Of the hierarchical softmax: frequency or bigrams.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout in training.")] = None,
    same_mask: Annotated[
        bool | None, typer.Option(help="One dropout mask for all steps, or one for each.")
    ] = None,
    init: Annotated[
        float | None, typer.Option(help="Weights start within plus and minus this (0: torch's).")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Of products: float32 or bfloat16.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows of a stream, or most lines.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a stream's window.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Most tokens of lines.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam or sgd.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Decay, with adam.")] = None,
    schedule: Annotated[str | None, typer.Option(help="cosine, constant or decay.")] = None,
    decay: Annotated[float | None, typer.Option(help="Factor of the rate an epoch.")] = None,
    flat: Annotated[int | None, typer.Option(help="Epochs before the rate decays.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm (0: any).")] = None,
    loss_per: Annotated[
        str | None, typer.Option(help="Mean over tokens (token), or rows (sequence).")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without improvement before stopping (0: never).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    as_json: console.AsJson = False,
) -> None:
    """Train a language model on the texts of DATA: it tells each token from those before it.

    An option that is left out is the preset's, or the default of docs/language-models.md.
    """
    model, training = (
        (LanguageSettings(), LanguageTraining()) if preset_name is None else preset(preset_name)
    )
    model = _changed(
        model, cell=cell, hidden_size=hidden, layers=layers, embedding_size=embedding, tied=tied,
        dropout=dropout, same_mask=same_mask, softmax=softmax, classes=classes, init=init,
        tokens=tokens, lowercase=lowercase, min_count=min_count, vocabulary=vocabulary,
        sequences=sequences, precision=precision,
    )  # fmt: skip
    training = _changed(
        training, epochs=epochs, batch=batch, steps=steps, batch_tokens=batch_tokens,
        optimizer=optimizer, learning_rate=lr, weight_decay=weight_decay, schedule=schedule,
        decay=decay, flat=flat, clip=clip, loss_per=loss_per, patience=patience,
        valid_fraction=valid_fraction, seed=seed, device=device,
    )  # fmt: skip
    # Here, not above: Lightning takes seconds to import, and the other commands need none of it.
    from unpad.bench import tuned_malloc
    from unpad.tasks.language.training import LanguageJob, train_language_model

    tuned_malloc()  # gradients of large vocabularies: a fresh page costs more than its numbers
    command = ["unpad", *sys.argv[1:]]
    job = LanguageJob(data, run, valid, test, Roles(sequence=sequence), model, training, command)
    with Progress(training.epochs, silent=as_json) as progress:
        record = train_language_model(job, resume=resume, watcher=progress)
    end(run, record, command, as_json=as_json, show=_show)


def _changed(settings: Any, **chosen: Any) -> Any:
    return replace(settings, **{name: v for name, v in chosen.items() if v is not None})


def _show(run: Path, record: dict[str, Any]) -> None:
    results = record["results"]
    for part, name in (("valid", "validation"), ("test", "test")):
        if f"{part}_perplexity" in results:
            out.print(
                f"{name}: perplexity [bold]{results[f'{part}_perplexity']:.2f}[/bold], "
                f"{results[f'{part}_loss']:.4f} nats a token on "
                f"{results[f'{part}_tokens']:,} tokens, "
                f"{results[f'{part}_nats_per_character']:.4f} nats a character",
                highlight=False,
            )
    best = results["best_epoch"]
    out.print(
        f"{results['tokens_per_second']:,.0f} tokens/s, {results['seconds']:.1f} s of training; "
        f"best of {results['epochs']} epochs: {best + 1}",
        highlight=False,
    )
    out.print(f"saved in {run}", highlight=False)
