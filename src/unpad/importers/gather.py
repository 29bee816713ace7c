"""Cells on each other and in both directions, made one layer."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

from torch import Tensor

from unpad.importers.claims import Claim
from unpad.importers.errors import MalformedError
from unpad.importers.layouts import V1_FORGET_BIAS, Cell
from unpad.importers.model import Layer, plan_of, tensor_of
from unpad.importers.places import UNKNOWN


def gather(claims: Iterable[Claim]) -> list[tuple[str, list[Claim]]]:
    """The name and the cells of each layer. Two cells in one place are layers of their own."""
    layers = defaultdict[str, list[Claim]](list)
    for claim in claims:
        layers[claim.place.layer].append(claim)
    found = list[tuple[str, list[Claim]]]()
    for name, cells in layers.items():
        if _is_whole(cells):
            found.append((name, cells))
        else:
            found += [(claim.path, [claim]) for claim in cells]
    return found


def _is_whole(cells: list[Claim]) -> bool:
    """Whether these are a cell, or a stack, or two directions with the same cells each."""
    if any(claim.place.cell_number == UNKNOWN for claim in cells):
        return True  # which cannot be built; the reason is told where it is tried
    places = {claim.place for claim in cells}
    kinds = {(claim.place.direction == "", claim.kind == "keras") for claim in cells}
    if len(places) < len(cells) or len(kinds) > 1:
        return False
    sides = _sides(cells)
    if not all(sides) or (len(cells) > len(sides) and _form(cells[0]) == "one"):
        return len(cells) == 1 and cells[0].place.direction == ""
    return len({tuple(map(_number, side)) for side in sides}) == 1


def _sides(cells: list[Claim]) -> list[list[Claim]]:
    """Forward, and backward where there is one, each in the order of its cells."""
    if cells[0].place.direction == "":
        return [sorted(cells, key=_number)]
    return [
        sorted((claim for claim in cells if claim.place.direction == direction), key=_number)
        for direction in ("fw", "bw")
    ]


def _number(claim: Claim) -> tuple[int, int]:
    return claim.place.layer_number or 0, claim.place.cell_number or 0


def _form(claim: Claim) -> str:
    """How `unpad.nn.Recurrent` takes the cells: one, a list of layers, a stack within a step."""
    place = claim.place
    if place.layer_number is not None:
        return "list"
    if place.cell_number is None:
        return "one"
    return "stack" if place.direction else "list"


def layer_of(name: str, cells: list[Claim], target: str | None) -> Layer:
    """The layer that these cells make."""
    first = cells[0]
    lonely = len(cells) == 1 and first.place.direction != ""
    sides = [cells] if lonely else _sides(cells)
    form = "one" if lonely else _form(first)
    made = [[claim.cell() for claim in side] for side in sides]
    for side in sides:
        _check_numbers(side)
    if len({tuple((c.name, *_sizes(c)) for c in side) for side in made}) > 1:
        raise MalformedError("two directions whose cells are not of the same kinds and sizes")
    _check_widths(made, form)
    state: dict[str, Tensor] = {}
    for side, claims, built in zip(("cells", "backward_cells"), sides, made, strict=False):
        for number, (claim, cell) in enumerate(zip(claims, built, strict=True)):
            prefix = f"{side}.0.cells.{number}" if form == "stack" else f"{side}.{number}"
            for key, value in cell.parameters.items():
                state[f"{prefix}.{key}"] = tensor_of(value, claim.dtype)
    plan = {
        "form": form,
        "cells": [plan_of(cell) for cell in made[0]],
        "backward": [plan_of(cell) for cell in made[1]] if len(made) > 1 else [],
    }
    sources = tuple(v.name for claim in cells for v in claim.variables.values())
    notes = tuple(dict.fromkeys(note for claim in cells for note in _notes(claim, lonely)))
    return Layer(name, target or name.replace(".", "_"), "recurrent", plan, state, sources, notes)


def _check_numbers(side: list[Claim]) -> None:
    if not side:
        raise MalformedError("cells of one direction alone")
    if any(None not in (c.place.layer_number, c.place.cell_number) for c in side):
        raise MalformedError("stacks of cells within stacked directions, which no layer here has")
    numbers = [max(pair, key=abs) for pair in map(_number, side)]
    if len(side) > 1 and min(numbers) < 0:
        remedy = "read the .keras or .h5 file of the whole model"
        raise MalformedError("cells in a stack, and no word on their order", remedy)
    if len(side) > 1 and numbers != list(range(len(side))):
        raise MalformedError(f"cells number {numbers} of a stack: some are missing")


def _check_widths(sides: list[list[Cell]], form: str) -> None:
    directions = len(sides) if form == "list" else 1
    for side in sides:
        for below, above in itertools.pairwise(side):
            width, taken = directions * _sizes(below)[2], _sizes(above)[0]
            if taken != width:
                raise MalformedError(f"a cell takes {taken} features of one that gives {width}")


def _sizes(cell: Cell) -> tuple[int, int, int]:
    """What it takes, what it holds, and what it gives."""
    taken, held = cell.arguments["input_size"], cell.arguments["hidden_size"]
    return taken, held, cell.arguments.get("proj_size") or held


def _notes(claim: Claim, lonely: bool) -> list[str]:
    """What the files don't say, and what the layer leaves to its user."""
    settings, backward = claim.settings, claim.place.direction == "bw"
    notes = list[str]()
    if claim.kind == "lstm":
        forget = settings.get("forget_bias", V1_FORGET_BIAS)
        notes.append(f"forget_bias {forget:g} and no clipping but what a mapping gives")
    if claim.kind == "keras" and "class_name" not in settings:
        notes.append("the file does not say the activations: tanh and sigmoid are taken")
    if settings.get("merge_mode", "concat") != "concat":
        notes.append(f"merge_mode {settings['merge_mode']}: here both outputs lie side by side")
    if settings.get("go_backwards") and not backward:
        notes.append("go_backwards: give it the sequences reversed (Ragged.reverse)")
    if lonely and backward:
        notes.append("it reads backwards: give it the sequences reversed (Ragged.reverse)")
    return notes
