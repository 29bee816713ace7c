"""``unpad score``: the log probability of every token of a text, a JSON line a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from unpad.cli import console
from unpad.cli.console import err
from unpad.cli.rows import write_rows
from unpad.data import Roles, stream
from unpad.data.corpus import texts_of
from unpad.tasks.language.model import LanguageModel
from unpad.tasks.language.reading import Reader


def score(
    run: Annotated[Path, typer.Argument(help="Folder of a run of `unpad train lm`.")],
    data: Annotated[
        Path, typer.Argument(help="Texts: a line or document each; - reads standard input.")
    ] = Path("-"),
    sequence: console.Sequence = None,
    result: Annotated[
        Path | None, typer.Option("--out", help="Write here instead of standard output.")
    ] = None,
) -> None:
    """Give the log probability of every token of FILE, in nats: a JSON line a text.

    A line has the text's number, its tokens (`<eos>` the last), their log probabilities and the
    sum. In a model of streams the state goes on from text to text. FILE is read as a stream.
    """
    model = LanguageModel.load(run)
    if str(data) == "-" and sys.stdin.isatty():
        err.print("reading what you type: a text a line, Ctrl-D at the end", highlight=False)
    rows = _scored(model, data, Roles(sequence=sequence))
    write_rows(rows, result, at_once=str(data) == "-")


def _scored(model: LanguageModel, data: Path, roles: Roles) -> Iterator[dict[str, Any]]:
    reader, number = Reader(model.network, model.vocabulary, model.settings.sequences), 0
    for table in stream(data, roles):
        for ids, found in reader.read(texts_of(table).rows):
            yield {
                "text": number,
                "log_probability": float(found.double().sum()),
                "tokens": [model.vocabulary.token(token) for token in ids.tolist()],
                "log_probabilities": found.tolist(),
            }
            number += 1
