"""Layers recognised in a saved model: to build, to write as safetensors, and to read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from unpad import nn as unpad_nn
from unpad.importers.artefact import Array
from unpad.importers.errors import ArtefactError, MalformedError, naming, writing
from unpad.importers.files import open_regular
from unpad.importers.hints import no_safetensors
from unpad.importers.layouts import Cell
from unpad.importers.places import BOOKKEPT
from unpad.importers.saved_model import parse_json
from unpad.tasks.atomic import write_atomically

_KEY = "unpad.layers"
_CELLS = ("RNNCell", "LSTMCell", "GRUCell")


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a saved model as Unpad has it; see `recognise` for how one comes about.

    ``name`` is the saved model's name for it, ``target`` the one it gets; ``kind`` is
    ``"recurrent"``, ``"linear"``, ``"embedding"`` or ``"tensor"``. ``plan`` is what it takes to
    build it, as JSON has it; ``state`` its parameters as a ``state_dict`` has them; ``sources`` the
    variables that they came from; ``notes`` what its user has to know.

    >>> plan = {"in": 5, "out": 3, "bias": False}
    >>> Layer("dense", "head", "linear", plan, {"weight": torch.zeros(3, 5)}, ()).describe()
    'Linear(5, 3, bias=False)'
    """

    name: str
    target: str
    kind: str
    plan: dict[str, Any]
    state: dict[str, Tensor]
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """The module in a line, as one would write it."""
        return describe(self.kind, self.plan)


@dataclass(frozen=True, eq=False)
class Model:
    """What was recognised of an artefact, and what was not; see `unpad.importers.recognise`.

    ``path`` is the artefact's; ``layers`` are by the names they get; ``unrecognised`` are the other
    variables, each with the reason.

    >>> plan = {"in": 5, "out": 3, "bias": False}
    >>> head = Layer("dense", "head", "linear", plan, {"weight": torch.zeros(3, 5)}, ())
    >>> model = Model("model.ckpt-20", {"head": head})
    >>> list(model.state_dict()), model.build()["head"]
    (['head.weight'], Linear(in_features=5, out_features=3, bias=False))
    """

    path: str
    layers: dict[str, Layer]
    unrecognised: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def bookkeeping(self) -> list[str]:
        """The variables that are no weights of the model: an optimizer's, metrics', counters'."""
        return [name for name, reason in self.unrecognised.items() if reason == BOOKKEPT]

    def state_dict(self) -> dict[str, Tensor]:
        """Every parameter by its name, in the type it was saved in."""
        return {
            key: tensor
            for layer in self.layers.values()
            for key, tensor in _named(layer.target, layer.state).items()
        }

    def build(self) -> nn.ModuleDict:
        """Modules with the weights in them, by the names they get; tensors alone are left out.

        A name with dots is a ModuleDict within a ModuleDict. Every parameter wants gradients; a
        recurrent layer treats sequences of length 0 as `unpad.nn.Recurrent` does. No random number
        is drawn.

        Raises:
            ArtefactError: a layer whose module refuses its sizes, or two names within each other.
        """
        plans = {layer.target: (layer.kind, layer.plan) for layer in self.layers.values()}
        return _assemble(plans, self.state_dict(), self.path)

    def to_safetensors(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters, and how to build the layers, so that `load` gives `build` again.

        The file is replaced as a whole or not at all. A length of 0 and gradients play no part.

        Raises:
            ArtefactError: nothing was recognised, the file cannot be written (its folder does not
                exist), or safetensors is not installed.
        """
        try:
            from safetensors.torch import save_file
        except ModuleNotFoundError as error:
            remedy = "install it with: pip install 'unpad[tf]'"
            raise ArtefactError(str(path), "safetensors is missing", remedy) from error
        if not self.layers:
            raise ArtefactError(self.path, "no layer in it was recognised", "give a mapping")
        plans = {layer.target: [layer.kind, layer.plan] for layer in self.layers.values()}
        state = {key: tensor.contiguous() for key, tensor in self.state_dict().items()}
        where = Path(path)
        with writing(where):
            write_atomically(
                where, lambda temporary: save_file(state, temporary, {_KEY: json.dumps(plans)})
            )


def load(path: str | os.PathLike[str]) -> nn.ModuleDict:
    """The layers of a safetensors file that `Model.to_safetensors` wrote.

    Args:
        path: the file.

    Returns:
        Modules by name, with the weights in them, as `Model.build` gave them; a name with dots is
        a ModuleDict within a ModuleDict. They take what each module takes (rows of length 0 too)
        and train like any other. A variable that a mapping gave a name is no module: it stands in
        the file under that name, for ``safetensors.torch.load_file``.

    Raises:
        ArtefactError: no such file, or one that holds something else.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        remedy = "install it with: pip install 'unpad[tf]'"
        raise ArtefactError(str(path), "safetensors is missing", remedy) from error
    where = Path(path)
    with naming(where):
        try:
            with safe_open(where, "pt") as file:
                metadata = file.metadata() or {}
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            with open_regular(where) as opened:
                remedy = no_safetensors(opened.read(64))
            raise MalformedError(f"it is no safetensors file ({error})", remedy) from error
        if _KEY not in metadata:
            raise MalformedError("it was not written by unpad import", "see its keys by hand")
        plans = parse_json(metadata[_KEY])
        return _assemble(_checked(plans), state, str(path))


def _checked(plans: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    pairs = {name: (pair[0], pair[1]) for name, pair in plans.items() if _is_pair(pair)}
    if len(pairs) != len(plans):
        raise MalformedError("its description of the layers is damaged")
    return pairs


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, list) or len(cast("list[Any]", pair)) != 2:
        return False
    return isinstance(pair[0], str) and isinstance(pair[1], dict)


def _assemble(
    plans: Mapping[str, tuple[str, dict[str, Any]]], state: dict[str, Tensor], path: str
) -> nn.ModuleDict:
    """Build on no device, so that no random number is drawn, then put the weights in."""
    whole = nn.ModuleDict()
    try:
        for target, (kind, plan) in plans.items():
            if kind == "tensor":
                continue
            *above, own = target.split(".")
            home = whole
            for name in above:
                if name not in home:
                    home[name] = nn.ModuleDict()
                home = cast("nn.ModuleDict", home[name])
            home[own] = _module(kind, plan)
        tensors = {target for target, (kind, _) in plans.items() if kind == "tensor"}
        weights = {key: value for key, value in state.items() if key not in tensors}
        whole.load_state_dict(weights, assign=True)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        problem = f"its layers cannot be built ({' '.join(str(error).split())[:200]})"
        raise ArtefactError(path, problem, "import the saved model again") from error
    return whole.requires_grad_(True)


def _module(kind: str, plan: dict[str, Any]) -> nn.Module:
    if kind == "linear":
        return nn.Linear(plan["in"], plan["out"], bias=plan["bias"], device="meta")
    if kind == "embedding":
        return nn.Embedding(plan["rows"], plan["columns"], device="meta")
    if kind != "recurrent":
        raise MalformedError(f"a layer of the unknown kind {kind}")
    backward = _cell(plan["backward"], plan) if plan["backward"] else None
    cell = _cell(plan["cells"], plan)
    return unpad_nn.Recurrent(cell, bidirectional=backward is not None, backward_cell=backward)


def _cell(plans: list[dict[str, Any]], plan: dict[str, Any]) -> Any:
    """What `Recurrent` takes: a cell, a list of them, or a stack that is one cell."""
    cells = [_one(part) for part in plans]
    if plan["form"] == "one":
        return cells[0]
    return unpad_nn.Stack(cells) if plan["form"] == "stack" else cells


def _one(part: dict[str, Any]) -> nn.Module:
    if part["cell"] not in _CELLS:
        raise MalformedError(f"a cell of the unknown kind {part['cell']}")
    return getattr(unpad_nn, part["cell"])(**part["arguments"], device="meta")


def describe(kind: str, plan: dict[str, Any]) -> str:
    """A layer in a line.

    >>> describe("linear", {"in": 5, "out": 3, "bias": True})
    'Linear(5, 3)'
    """
    if kind == "linear":
        return f"Linear({plan['in']}, {plan['out']}{'' if plan['bias'] else ', bias=False'})"
    if kind == "embedding":
        return f"Embedding({plan['rows']}, {plan['columns']})"
    if kind == "tensor":
        return "tensor"
    cells = ", ".join(_call(part) for part in plan["cells"])
    inner = {"one": cells, "list": f"[{cells}]", "stack": f"Stack([{cells}])"}[plan["form"]]
    return f"Recurrent({inner}{', bidirectional=True' if plan['backward'] else ''})"


def _call(part: dict[str, Any]) -> str:
    arguments = dict(part["arguments"])
    shown = f"{arguments.pop('input_size')}, {arguments.pop('hidden_size')}"
    usual = {"bias": True, "reset_after": True, "nonlinearity": "tanh"}
    others = [f", {k}={v!r}" for k, v in arguments.items() if usual.get(k) != v]
    return f"{part['cell']}({shown}{''.join(others)})"


def plan_of(cell: Cell) -> dict[str, Any]:
    """A cell as JSON has it."""
    return {"cell": cell.name, "arguments": cell.arguments}


def tensor_of(value: Array, dtype: str) -> Tensor:
    """An array as a tensor of the type it was saved in, where torch can compute with that."""
    if value.dtype == object or value.dtype.kind not in "biufc":
        raise MalformedError("it holds no numbers")
    made = torch.from_numpy(np.require(value, requirements=["C", "W"]))
    return made.to(torch.bfloat16) if dtype == "bfloat16" else made


def _named(target: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{target}.{key}" if key else target: value for key, value in state.items()}
