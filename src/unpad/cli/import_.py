"""``unpad import``: what a saved model of TensorFlow or Keras holds, and its layers in Unpad."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unpad.cli import console
from unpad.cli.console import out
from unpad.importers import Artefact, Model, Variable, read, read_mapping, recognise
from unpad.importers.errors import writing


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            help="TF checkpoint (prefix or folder), SavedModel folder, or Keras .h5, .keras."
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(help="Write the recognised layers to this safetensors file.")
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            help="JSON: names in the model to new names, to null (left out), or to settings "
            '({"name": "encoder", "cell": "lstm", "forget_bias": 0, "cell_clip": 3}).'
        ),
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """List the variables of the saved model at PATH and the layers that they make.

    With --to, those layers are written as safetensors; unpad.importers.load builds them from that
    file. Neither TensorFlow nor Keras is needed, and nothing in the files is executed.
    """
    if to is not None:
        with writing(to):
            pass  # before the work, not after it
    artefact = read(path)
    model = recognise(artefact, None if mapping is None else read_mapping(mapping))
    if to is not None:
        model.to_safetensors(to)
    if as_json:
        console.print_json(_facts(artefact, model, to))
    else:
        _show(artefact, model, to)


def _uses(model: Model) -> dict[str, str]:
    """The layer that each variable is a part of, or why it is of none."""
    used = {source: layer for layer in model.layers.values() for source in layer.sources}
    return model.unrecognised | {name: layer.target for name, layer in used.items()}


def _facts(artefact: Artefact, model: Model, to: Path | None) -> dict[str, Any]:
    uses = _uses(model)
    return {
        "path": artefact.path,
        "kind": artefact.kind,
        "variables": [
            {
                "name": variable.name, "alias": variable.alias, "dtype": variable.dtype,
                "shape": list(variable.shape), "use": uses[variable.name],
                "recognised": variable.name not in model.unrecognised,
            }
            for variable in artefact.variables
        ],
        "bookkeeping": model.bookkeeping,
        "left_out": artefact.left_out,
        "layers": {
            name: {
                "source": layer.name, "module": layer.describe(), "notes": list(layer.notes),
                "parameters": {key: list(value.shape) for key, value in layer.state.items()},
            }
            for name, layer in model.layers.items()
        },
        "signatures": {
            name: {
                "inputs": {key: vars(tensor) for key, tensor in signature.inputs.items()},
                "outputs": {key: vars(tensor) for key, tensor in signature.outputs.items()},
            }
            for name, signature in artefact.signatures.items()
        },
        "written": None if to is None else str(to),
    }  # fmt: skip


def _show(artefact: Artefact, model: Model, to: Path | None) -> None:
    out.print(_plain(f"{artefact.path}: {artefact.kind}, {len(artefact)} variables"))
    uses, apart = _uses(model), set(model.bookkeeping)
    weights = [v for v in artefact.variables if v.name not in apart]
    others = [v for v in artefact.variables if v.name in apart]
    if weights:
        _table("variable", weights, [uses[v.name] for v in weights], model)
    if others:
        _table("optimizer, metrics and counters: no weights", others, [], model)
    for name, reason in artefact.left_out.items():
        out.print(_plain(f"not read: {name}: {reason}"))
    for name, signature in artefact.signatures.items():
        ways = f"{', '.join(signature.inputs)} -> {', '.join(signature.outputs)}"
        out.print(_plain(f"signature {name}: {ways}"))
    for name, layer in model.layers.items():
        out.print(_plain(f"{name}: {layer.describe()}"))
        for note in layer.notes:
            out.print(_plain(f"    {note}"))
    if to is not None:
        out.print(_plain(f"written to {to}; unpad.importers.load({str(to)!r}) builds the layers"))
    elif model.layers:
        out.print("--to FILE.safetensors writes these layers")
    else:
        out.print("no layer was recognised: give a --mapping")


def _table(heading: str, variables: list[Variable], uses: list[str], model: Model) -> None:
    table = Table(heading, "dtype", "shape", *(["part of"] if uses else []), box=None)
    table.columns[0].overflow = "fold"
    for number, variable in enumerate(variables):
        shape = " × ".join(map(str, variable.shape)) or "one number"
        row = [variable.alias or variable.name, variable.dtype, shape, *uses[number : number + 1]]
        dim = "dim" if variable.name in model.unrecognised else ""
        table.add_row(*map(_plain, row), style=dim)
    # In a file or a pipe a name that is cut in two cannot be searched for.
    (out if out.is_terminal else Console(width=1000)).print(table)


def _plain(text: str) -> Text:
    """A stranger's text as it is: no markup, and nothing that steers the terminal."""
    return Text("".join(c if c.isprintable() else "?" for c in text))
