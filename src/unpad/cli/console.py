"""What the commands share: two consoles, column options, numbers as people read them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from unpad.data import Roles

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Sequence = Annotated[str | None, typer.Option(help="Column that holds the sequence or text.")]
Label = Annotated[str | None, typer.Option(help="Column that holds the label.")]
Id = Annotated[
    str | None, typer.Option("--id", help="Column with the sequence's id (one row a time step).")
]
Time = Annotated[str | None, typer.Option(help="Column to sort the time steps of a sequence by.")]
Features = Annotated[str | None, typer.Option(help="Feature columns, with commas between: a,b,c.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts.")]
Split = Annotated[
    str | None, typer.Option(help="Use the rows whose split column says this (all: every row).")
]


def roles_of(
    sequence: str | None,
    label: str | None,
    identity: str | None,
    time: str | None,
    features: str | None,
) -> Roles:
    """The columns as the user named them."""
    names = tuple(n.strip() for n in features.split(",") if n.strip()) if features else ()
    return Roles(sequence=sequence, label=label, id=identity, time=time, features=names)


def print_json(data: Any) -> None:
    """One JSON object on standard output, untouched by Rich."""
    typer.echo(json.dumps(data, ensure_ascii=False))


def percent(share: float) -> str:
    """A share as people read it.

    >>> percent(0.475)
    '47.5 %'
    """
    return f"{100 * share:.1f} %"
