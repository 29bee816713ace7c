"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from unpad.cli.bench import bench
from unpad.cli.console import out
from unpad.cli.evaluate import evaluate
from unpad.cli.generate import generate
from unpad.cli.import_ import import_
from unpad.cli.predict import predict
from unpad.cli.profile import profile
from unpad.cli.score import score
from unpad.cli.train import classify
from unpad.cli.train_lm import lm
from unpad.tasks.model_files import version

app = typer.Typer(
    help="Recurrent networks over sequences of any length, with no padding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",  # the other modes break a paragraph where its source does
)
train = typer.Typer(
    help="Train a model on a data file.", no_args_is_help=True, rich_markup_mode="markdown"
)
app.add_typer(train, name="train")
train.command("classify")(classify)
train.command("lm")(lm)
for command in (profile, bench, evaluate, predict, generate, score):
    app.command()(command)
app.command("import")(import_)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"unpad {version()}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...
