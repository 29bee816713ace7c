"""``unpad predict``: labels for new sequences, a JSON line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unpad.cli import console
from unpad.cli.console import err
from unpad.cli.rows import write_rows
from unpad.tasks import scoring
from unpad.tasks.saved import Classifier


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    data: Annotated[
        Path, typer.Argument(help="File formed like the training data; - reads standard input.")
    ] = Path("-"),
    sequence: console.Sequence = None,
    identity: console.Id = None,
    time: console.Time = None,
    features: console.Features = None,
    result: Annotated[
        Path | None, typer.Option("--out", help="Write here instead of standard output.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Give those of all labels.")
    ] = False,
) -> None:
    """Label every sequence of DATA: JSON lines with id, label and probability.

    DATA is read as a stream, so that a file of any size takes the same memory. Standard input is
    JSON lines or plain text, one sequence a line, and each line is answered as it comes.
    """
    classifier = Classifier.load(run)
    roles = scoring.merge_roles(
        console.roles_of(sequence, None, identity, time, features), classifier.roles
    )
    if str(data) == "-" and sys.stdin.isatty():
        err.print("reading what you type: a sequence a line, Ctrl-D at the end", highlight=False)
    rows = scoring.predict(classifier, data, roles, probabilities=probabilities)
    write_rows(rows, result, at_once=str(data) == "-")
