"""``unpad generate``: a language model goes on from a prompt."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from unpad.cli import console
from unpad.cli.rows import open_output
from unpad.tasks.language.model import LanguageModel


def generate(
    run: Annotated[Path, typer.Argument(help="Folder of a run of `unpad train lm`.")],
    prompt: Annotated[str, typer.Option(help="The beginning, which the model goes on from.")] = "",
    tokens: Annotated[int, typer.Option(help="Most tokens to write.")] = 200,
    top_k: Annotated[
        int | None, typer.Option(help="Draw among so many likeliest tokens (default: all).")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Below 1 bolder choices are rarer; 0 takes the likeliest.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="The same one gives the same text (default: chance).")
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Write a text with the language model of RUN, each token as soon as it is drawn.

    A model of lines stops at the end of a line; one of a stream goes on.
    """
    model = LanguageModel.load(run)
    chosen = secrets.randbits(31) if seed is None else seed
    pieces = model.generate(
        prompt, tokens=tokens, top_k=top_k, temperature=temperature, seed=chosen
    )
    if as_json:
        console.print_json({"prompt": prompt, "text": "".join(pieces), "seed": chosen})
        return
    with open_output():
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
