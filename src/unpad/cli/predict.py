"""``unpad predict``: labels for new sequences, a JSON line each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from unpad.cli import console
from unpad.cli.console import err
from unpad.tasks import scoring
from unpad.tasks.atomic import write_atomically
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
    if result is None:
        _to_standard_output(rows, at_once=str(data) == "-")
        return

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            _write(rows, file)

    write_atomically(result, write)


def _write(rows: Iterable[dict[str, Any]], file: IO[str], *, at_once: bool = False) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if at_once:
            file.flush()


def _to_standard_output(rows: Iterable[dict[str, Any]], *, at_once: bool) -> None:
    try:
        try:
            _write(rows, sys.stdout, at_once=at_once)
        finally:  # before an error, too, come the answers to what was right
            sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, say) has had enough: that is no error
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
