"""Which variables make a cell: by the names in their scope, before any shape is looked at."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from unpad.importers.artefact import Variable
from unpad.importers.errors import MalformedError
from unpad.importers.layouts import Cell, keras_cell, v1_cell, v1_gru
from unpad.importers.places import Place, keras_place, v1_kind, v1_place

Group = dict[str, Variable]  # the variables of a scope, by the last part of their names
Groups = dict[str, Group]
Settings = dict[str, Any]

_V1_ROLES = {"kernel", "bias", "projection", "w_i_diag", "w_f_diag", "w_o_diag"}
_GRU_ROLES = {f"{scope}/{role}" for scope in ("gates", "candidate") for role in ("kernel", "bias")}
_KERAS_ROLES = {
    "kernel", "recurrent_kernel", "bias", "input_gate_peephole_weights",
    "forget_gate_peephole_weights", "output_gate_peephole_weights",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Claim:
    """Variables that make a cell of a kind, and where it stands."""

    path: str
    kind: str
    place: Place
    variables: Group
    settings: Settings
    inner: tuple[str, ...]  # scopes within the cell's that no cell of this kind has

    def cell(self) -> Cell:
        """The cell, if the shapes fit it."""
        roles = {"keras": _KERAS_ROLES, "gru": _GRU_ROLES}.get(self.kind, _V1_ROLES)
        others = [*self.inner, *(role for role in self.variables if role not in roles)]
        if others:
            problem = f"a cell with {', '.join(sorted(others)[:4])} in it, which none here has"
            raise MalformedError(problem, "write it (unpad.Cell) and map the variables by name")
        found = {role: variable.value for role, variable in self.variables.items()}
        if any(value.dtype.kind != "f" for value in found.values()):
            raise MalformedError("a cell whose weights are no floating-point numbers")
        joint = np.result_type(*found.values())
        found = {role: value.astype(joint, copy=False) for role, value in found.items()}
        if self.kind == "keras":
            return keras_cell(found, self.settings)
        if self.kind == "gru":
            return v1_gru(found)
        return v1_cell(self.kind, found, self.settings)

    @property
    def dtype(self) -> str:
        """The type that the weights were saved in; of several kinds the one that holds them all."""
        names = {variable.dtype for variable in self.variables.values()}
        return names.pop() if len(names) == 1 else ""


def claim_cells(
    groups: Groups,
    given: Callable[[str], Settings],
    layers: Mapping[str, Settings] | None,
) -> list[Claim]:
    """Take the cells' variables out of the groups. ``given``: the user's settings of a scope."""
    found, taken, order = list[Claim](), Counter[tuple[str, str]](), sorted(groups)
    for path in list(groups):
        if path in groups and (claim := _claim(path, groups, given(path), layers, taken, order)):
            found.append(claim)
    return found


def _claim(
    path: str,
    groups: Groups,
    given: Settings,
    layers: Mapping[str, Settings] | None,
    taken: Counter[tuple[str, str]],
    order: list[str],
) -> Claim | None:
    group = groups[path]
    if "kernel" not in group:
        return None
    above, _, own = path.rpartition("/")
    if own == "gates" and "kernel" in groups.get(f"{above}/candidate", {}):
        scopes = ("gates", "candidate")
        joined = {
            f"{scope}/{role}": variable
            for scope in scopes
            for role, variable in groups.pop(f"{above}/{scope}").items()
        }
        return Claim(above, "gru", v1_place(above), joined, given, _inner(above, groups, order))
    if "recurrent_kernel" in group:
        place = keras_place(path, taken)
        settings = settings_of(layers, place) | given
        del groups[path]
        return Claim(path, "keras", place, group, settings, _inner(path, groups, order))
    kind = given.get("cell") or ("lstm" if "w_f_diag" in group else v1_kind(path))
    if kind is None:
        return None
    del groups[path]
    if set(groups.get(f"{path}/projection", {})) == {"kernel"}:
        group = {**group, "projection": groups.pop(f"{path}/projection")["kernel"]}
    return Claim(path, kind, v1_place(path), group, given, _inner(path, groups, order))


def _inner(path: str, groups: Groups, order: list[str]) -> tuple[str, ...]:
    """The first few scopes within a scope; ``order`` are all scopes there were, sorted."""
    start = bisect_left(order, f"{path}/")
    near = [name for name in order[start : start + 4] if name.startswith(f"{path}/")]
    return tuple(name[len(path) + 1 :] for name in near if name in groups)


def settings_of(layers: Mapping[str, Settings] | None, place: Place) -> Settings:
    """What Keras's configuration says of a cell: its own settings and its layer's.

    >>> lstm = {"class_name": "LSTM", "config": {"units": 3, "activation": "relu"}}
    >>> layers = {"enc": {"class_name": "Bidirectional", "merge_mode": "sum", "layer": lstm}}
    >>> settings_of(layers, Place("enc", "bw"))["activation"]
    'relu'
    """
    layers = layers or {}
    outer = layers.get(place.layer) or layers.get(place.layer.rpartition("/")[2]) or {}
    settings = dict(outer)
    if "layer" in outer:
        wrapped = outer.get("backward_layer") if place.direction == "bw" else None
        settings |= _config(wrapped or outer["layer"])
    if "cell" in settings:
        inner = _config(settings["cell"])
        if isinstance(inner.get("cells"), list):
            part = inner["cells"][place.cell_number or 0 :][:1]
            inner = _config(part[0]) if part else {}
        settings |= inner
    return settings


def dense_notes(path: str, layers: Mapping[str, Settings] | None) -> tuple[str, ...]:
    """What Keras's layer does after the product that its dense kernel is of.

    >>> dense_notes("model/top", {"top": {"class_name": "Dense", "activation": "relu"}})
    ('activation relu: the layer here ends with the product and the bias',)
    """
    parts = reversed(path.split("/"))
    settings = next(filter(None, (settings_of(layers, Place(part)) for part in parts)), {})
    found = settings.get("activation")
    name = found if isinstance(found, str) or found is None else "of its own kind"
    if name in (None, "linear"):
        return ()
    return (f"activation {name}: the layer here ends with the product and the bias",)


def _config(layer: Any) -> Settings:
    config = layer.get("config") if isinstance(layer, dict) else None
    return cast("Settings", config) if isinstance(config, dict) else {}
