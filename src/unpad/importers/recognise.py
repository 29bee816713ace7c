"""From names and shapes to layers."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from unpad.importers.artefact import Artefact, Variable
from unpad.importers.claims import Group, Groups, claim_cells, dense_notes
from unpad.importers.errors import ArtefactError, MalformedError
from unpad.importers.gather import gather, layer_of
from unpad.importers.mapping import parse_mapping
from unpad.importers.model import Layer, Model, tensor_of
from unpad.importers.places import BOOKKEEPING, BOOKKEPT, OWN_NAME

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_OLD = {"weights": "kernel", "biases": "bias"}  # TensorFlow 1.0 and 1.1


def recognise(artefact: Artefact, mapping: dict[str, Any] | None = None) -> Model:
    """Find the layers of a saved model by the names and shapes of its variables.

    Args:
        artefact: what `read` gave.
        mapping: names of layers, scopes or variables (a layer's name is its scope: ``tower/rnn``
            for ``tower/rnn/lstm_cell/kernel``) to what they become: a new name; None, which leaves
            them out; or settings: ``name``; ``cell`` ("rnn" or "lstm", for a scope that the
            cell's ``name=`` chose); what no variable holds of a TensorFlow 1 cell, as it was
            built: ``forget_bias`` (else 1.0, its default), ``cell_clip``, ``proj_clip``,
            ``activation``; ``reset_after`` of a Keras GRU without bias. A variable that is mapped
            to a name is written as it is.

    Returns:
        A `Model`: recurrent layers (`unpad.nn.Recurrent`, whose results for sequences of length 0
        and whose gradients are its own), ``Linear`` and ``Embedding`` layers, and the rest by name.
        Cells on each other in one scope become one layer, as do the two directions.

    Raises:
        ArgumentError: a mapping of another form.
        ArtefactError: a name in the mapping that is not in the artefact, or two of the same target.

    >>> import numpy as np
    >>> kernel = Variable("rnn/gru_cell/gates/kernel", np.zeros((5, 4), np.float32), "float32")
    >>> other = Variable("rnn/gru_cell/candidate/kernel", np.zeros((5, 2), np.float32), "float32")
    >>> model = recognise(Artefact("m", "TF checkpoint", [kernel, other]), {"rnn": "encoder"})
    >>> model.layers["encoder"].describe()
    'Recurrent(GRUCell(3, 2, bias=False, reset_after=False))'
    """
    return _Search(artefact, mapping).model()


class _Search:
    """One artefact's layers as they are found, and the reasons why the rest is none."""

    def __init__(self, artefact: Artefact, mapping: dict[str, Any] | None) -> None:
        self.artefact, self.mapping = artefact, parse_mapping(mapping)
        self.reasons: dict[str, str] = {}
        self.layers = list[Layer]()

    def model(self) -> Model:
        """All layers, in the order of the artefact's variables."""
        groups = self._groups()
        claims = claim_cells(groups, self.mapping.of, self.artefact.layers)
        for name, cells in gather(claims):
            used = [v for claim in cells for v in claim.variables.values()]
            target = self.mapping.target(name, cells[0].path)
            self._try(cells[0].path, used, lambda n=name, c=cells, t=target: layer_of(n, c, t))
        for path, group in groups.items():
            self._plain(path, group)
        self._check_names()
        order = {variable.name: number for number, variable in enumerate(self.artefact.variables)}
        self.layers.sort(key=lambda layer: order[layer.sources[0]])
        used = {source for layer in self.layers for source in layer.sources}
        others = {
            variable.name: self.reasons.get(variable.name, "no layer that is known")
            for variable in self.artefact.variables
            if variable.name not in used
        }
        named = {layer.target: layer for layer in self.layers}
        lost = {
            name: BOOKKEPT if BOOKKEEPING.search(name) else reason
            for name, reason in self.artefact.left_out.items()
        }
        return Model(self.artefact.path, named, others | lost)

    def _try(self, path: str, used: Iterable[Variable], make: Callable[[], Layer]) -> None:
        """Add a layer, or keep the reason why there is none."""
        try:
            self.layers.append(make())
        except MalformedError as error:
            remedy = "" if error.remedy.startswith("the file") else f"; {error.remedy}"
            self.reasons |= {v.name: f"{path}: {error.problem}{remedy}" for v in used}

    def _groups(self) -> Groups:
        """The variables of the model by their scope, without those that the mapping settles."""
        groups = defaultdict[str, Group](dict)
        shapes = {_name(variable): variable.shape for variable in self.artefact.variables}
        for variable in self.artefact.variables:
            name = _name(variable)
            path, _, role = name.rpartition("/")
            if self.mapping.leaves_out(variable.name, name):
                self.reasons[variable.name] = "left out by the mapping"
            elif target := self.mapping.target(variable.name, name):
                self._try(name, [variable], lambda v=variable, t=target: _tensor(v, t))
            elif BOOKKEEPING.search(name) or BOOKKEEPING.search(variable.name):
                self.reasons[variable.name] = BOOKKEPT
            elif variable.shape and shapes.get(path) == variable.shape:
                # Below a variable stands what an optimizer keeps for each of its numbers.
                self.reasons[variable.name] = BOOKKEPT
            else:
                groups[path][_OLD.get(role, role)] = variable
        return dict(groups)

    def _plain(self, path: str, group: Group) -> None:
        """A dense layer or embeddings."""
        kernel = group.get("kernel")
        if kernel is not None and OWN_NAME.fullmatch(path):
            wanted = f'give a mapping, {{"{path}": {{"cell": "lstm"}}}} or "rnn"'
            reason = f"{path}: a cell with a name of its own; {wanted}"
            self.reasons |= {variable.name: reason for variable in group.values()}
        elif kernel is not None and set(group) <= {"kernel", "bias"} and path:
            target = self._target(path)
            notes = dense_notes(path, self.artefact.layers)
            self._try(path, group.values(), lambda: _linear(path, target, group, notes))
        for role, variable in group.items():
            if "embedding" in role.lower() and len(variable.shape) == 2:
                own = role == "embeddings" and len(group) == 1 and path
                name = path if own else f"{path}/{role}".removeprefix("/")
                target = self._target(name)
                self._try(
                    name, [variable], lambda n=name, t=target, v=variable: _embedding(n, t, v)
                )

    def _target(self, name: str) -> str:
        return self.mapping.target(name) or name.replace(".", "_")

    def _check_names(self) -> None:
        path, layers = self.artefact.path, {layer.name for layer in self.layers}
        names = layers.union(self.artefact, map(_name, self.artefact.variables))
        for name in self.mapping.strangers(names):
            close = ", ".join(difflib.get_close_matches(name, list(names)[:1000], 3, 0.5))
            problem = f"the mapping speaks of {name!r}, which is not in it"
            raise ArtefactError(path, problem, f"did you mean: {close or 'no name is near'}?")
        counts = Counter(layer.target for layer in self.layers)
        for target, count in counts.items():
            if count > 1:
                problem = f"{count} layers of it would be named {target!r}"
                raise ArtefactError(path, problem, "give them different names in the mapping")


def _name(variable: Variable) -> str:
    """The name that the model's code gave it, else the path of the object that holds it."""
    return (variable.alias or variable.name).removesuffix(_SUFFIX)


def _tensor(variable: Variable, target: str) -> Layer:
    value = tensor_of(variable.value, variable.dtype)
    return Layer(variable.name, target, "tensor", {}, {"": value}, (variable.name,))


def _linear(name: str, target: str, group: Group, notes: tuple[str, ...]) -> Layer:
    kernel, bias = group["kernel"], group.get("bias")
    if len(kernel.shape) != 2 or kernel.value.dtype.kind != "f" or 0 in kernel.shape:
        raise MalformedError(f"a kernel of shape {list(kernel.shape)}: no dense layer")
    state = {"weight": tensor_of(kernel.value.T, kernel.dtype)}
    if bias is not None:
        if bias.shape != kernel.shape[1:]:
            raise MalformedError(f"a bias of shape {list(bias.shape)}: no dense layer")
        state["bias"] = tensor_of(bias.value, bias.dtype)
    plan = {"in": kernel.shape[0], "out": kernel.shape[1], "bias": bias is not None}
    sources = tuple(v.name for v in group.values())
    return Layer(name, target, "linear", plan, state, sources, notes)


def _embedding(name: str, target: str, variable: Variable) -> Layer:
    if variable.value.dtype.kind != "f":
        raise MalformedError("embeddings that are no floating-point numbers")
    plan = {"rows": variable.shape[0], "columns": variable.shape[1]}
    state = {"weight": tensor_of(variable.value, variable.dtype)}
    return Layer(name, target, "embedding", plan, state, (variable.name,))
