"""`unpad.tf1.keras` against the numbers of Keras 2.15's own layers, on both engines.

``UNPAD_GOLDEN`` names another folder of the same format; what a case asks for and is not known here
fails, by name.
"""

from __future__ import annotations

import pytest
import torch

import unpad
from engine.every_cell import TIERS
from tf1.golden_files import Golden, cases
from unpad.tf1 import keras

ENGINES = ["torch", *(["native"] if TIERS else [])]
CASES = cases("keras")
KNOWN = {"initial_state", "mask", "ragged_input", "calls"}


def cell_of(name, args):
    return getattr(keras, name.removeprefix("tfa."))(**args)


def layer_of(name, args):
    """The layer that a case describes."""
    args = dict(args)
    if name == "Bidirectional":
        if "backward" in args:
            args["backward_layer"] = layer_of(*args.pop("backward"))
        return keras.Bidirectional(layer_of(*args.pop("inner")), **args)
    if name == "RNN":
        cells = [cell_of(*each) for each in args.pop("cells")]
        return keras.RNN(cells if len(cells) > 1 else cells[0], **args)
    return getattr(keras, name)(**args)


class KerasCase(Golden):
    """One case as a layer with Keras's weights, and its calls; every array must be used."""

    def __init__(self, case):
        super().__init__(case)
        assert case["call"].keys() <= KNOWN, case["call"]
        self.unused = set(self.arrays)
        self.layer = layer_of(case["cell"]["class"], case["cell"]["args"])
        self.layer.to(getattr(torch, case["dtype"]))
        names = [f"weights/{name}" for name in case["weight_order"]]
        self.layer.set_weights([self.take(name).detach() for name in names])
        parameters = list(self.layer.named_parameters())
        self.leaves = {key: value for key, (_, value) in zip(names, parameters, strict=True)}
        for key, (name, _) in zip(names, parameters, strict=True):
            assert key.rpartition("/")[2] == name.rpartition(".")[2], "Keras's own name"

    def take(self, key):
        self.unused.discard(key)
        return self.arrays[key]

    def inputs(self, key):
        if not self.case["call"]["ragged_input"]:
            self.leaves[key] = self.take(key)
            return self.leaves[key]
        self.leaves[f"{key}/values"] = values = self.take(f"{key}/values")
        return unpad.Ragged.from_lengths(values, self.take(f"{key}/row_lengths"))

    def states(self):
        keys = sorted(self.keys("initial_state"), key=lambda key: int(key.split("/")[1]))
        self.leaves.update({key: self.take(key) for key in keys})
        return [self.arrays[key] for key in keys] or None

    def results(self, prefix, given):
        """What a call returned, by the manifest's keys."""
        given = list(given) if isinstance(given, list) else [given]
        merged = self.case["cell"]["args"].get("merge_mode", "")
        outputs = [given.pop(0) for _ in range(2 if merged is None else 1)]
        keys = ["outputs"] if len(outputs) == 1 else ["outputs/0", "outputs/1"]
        states = torch.utils._pytree.tree_leaves(given)
        keys += [f"final_state/{number}" for number in range(len(states))]
        return {prefix + key: value for key, value in zip(keys, outputs + states, strict=True)}

    def run(self):
        mask = self.take("mask") if "mask" in self.arrays else None
        assert (mask is None) == (self.case["call"]["mask"] is None)
        found, count = {}, self.case["call"]["calls"]
        for number in range(count):
            here = f"/{number}" if count > 1 else ""
            given = self.layer(self.inputs(f"inputs{here}"), self.states(), mask=mask)
            found.update(self.results(f"{number}/" if count > 1 else "", given))
        return found

    def check_all(self, found):
        results = {key.removesuffix("/values").removesuffix("/row_lengths") for key in self.arrays}
        wanted = {key for key in results if key.lstrip("0123456789/").startswith(("outputs", "fi"))}
        assert found.keys() == wanted
        loss = 0.0
        for key, value in found.items():
            loss = loss + (self.compare(key, value) * self.take(f"cotangent/{key}")).sum()
        self.close("loss", loss)
        self.unused.discard("loss")
        gradients = torch.autograd.grad(loss, list(self.leaves.values()), materialize_grads=True)
        for key, gradient in zip(self.leaves, gradients, strict=True):
            self.close(f"grad/{key}", gradient)
            self.unused.discard(f"grad/{key}")
        assert self.unused == set(), "arrays of the case that nothing was compared with"

    def compare(self, key, value):
        """Compare one result; zeros that Keras wrote for masked steps must be zeros."""
        if isinstance(value, unpad.Ragged):
            assert value.lengths.tolist() == self.take(f"{key}/row_lengths").tolist()
            key, value = f"{key}/values", value.values
        wanted = self.take(key)
        self.close(key, value)
        silent = (wanted == 0).all(-1)
        assert (value[silent] == 0).all()
        return value


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_keras_layers_give_keras_numbers(case, engine):
    golden = KerasCase(case)
    with unpad.engine(engine):
        golden.check_all(golden.run())


MASKED = [case for case in CASES if case["call"]["mask"] is not None]


@pytest.mark.parametrize("case", MASKED, ids=[case["id"] for case in MASKED])
def test_what_a_masked_step_holds_changes_no_number(case):
    """NaN in every masked step, where TensorFlow's own gradients would be NaN."""
    golden = KerasCase(case)
    silent = ~golden.arrays["mask"]
    inputs = golden.keys("inputs")
    with torch.no_grad():
        for key in inputs:
            golden.arrays[key][silent] = torch.nan
    golden.check_all(golden.run())
    assert all((golden.arrays[f"grad/{key}"][silent] == 0).all() for key in inputs)
