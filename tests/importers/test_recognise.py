"""Layers of every kind are recognised, and give what TensorFlow gave; what is not is said."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import unpad
from engine.every_cell import TIERS
from importers import writer
from unpad import importers
from unpad.importers import Artefact, ArtefactError, Variable, recognise

pytest.importorskip("h5py")
FOLDER = Path(__file__).parent.parent / "golden" / "importers"  # written by make_golden.py
FILES = ["model.h5", "model.keras", "model.weights.h5", "ckpt"]
SETTINGS = {
    "full": {"enc": {"forget_bias": 0.5, "cell_clip": 0.4, "proj_clip": 0.3}},
    "named": {"rnn/mine": {"cell": "rnn", "activation": "relu"}},
}


def recorded(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "io.npz") as file:
        return dict(file)


def layers_in(path: Path, mapping=None) -> torch.nn.ModuleDict:
    model = recognise(importers.read(path), mapping)
    assert model.unrecognised == {}
    return model.build()


def close(found: torch.Tensor, wanted: np.ndarray) -> None:
    assert found.dtype == torch.from_numpy(wanted).dtype
    tolerance = 1e-12 if wanted.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found.detach().numpy(), wanted, atol=tolerance, rtol=tolerance)


def flat(name: str, value) -> dict[str, torch.Tensor]:
    """Nested states by path, as the recorded ones: an LSTM's (h, c) by letter."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    named = list(enumerate(value))
    if len(value) == 2 and all(isinstance(part, torch.Tensor) for part in value):
        named = list(zip("hc", value, strict=True))
    return {k: v for key, part in named for k, v in flat(f"{name}.{key}", part).items()}


@pytest.mark.parametrize("case", ["full", "named", "directions", "stacked", "double"])
@pytest.mark.parametrize("engine", ["torch", *(["native"] if TIERS else [])])
def test_a_checkpoint_of_tensorflow_1_gives_its_numbers(case, engine):
    wanted = recorded(FOLDER / "v1" / case)
    (layer,) = layers_in(FOLDER / "v1" / case / "model", SETTINGS.get(case)).values()
    x, lengths = torch.from_numpy(wanted.pop("x")), wanted.pop("lengths").tolist()
    with unpad.engine(engine):
        output, state = layer(x, lengths=lengths)
    found = flat("state", state)
    if "output.0" in wanted:
        found |= dict(zip(("output.0", "output.1"), output.chunk(2, -1), strict=True))
    else:
        found["output"] = output
    if case == "directions" or case == "double":
        # The state of the cells in each direction; ours of one layer is (forward, backward).
        assert {"state.0.0", "state.1.1.c"} <= set(found)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        close(found[key], value)


def run(layers: torch.nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
    for layer in layers.values():
        x, _ = layer(x)
    return x


KERAS = {
    "simple": lambda layers, x: run(layers, x)[:, -1],
    "before": run,
    "without_bias": lambda layers, x: run(layers, x)[:, -1],
    "sum": lambda layers, x: sum(run(layers, x).chunk(2, -1)),
    "backwards": lambda layers, x: run(layers, x.flip(1)),
    "cells": run,
    "nested": lambda layers, x: run(layers, x)[:, -1],
}
# Classes and counters don't tell the order of the layers.
ORDER = {
    "simple": ["simple_rnn", "lstm"],
    "without_bias": ["lstm", "gru"],
    "nested": ["sequential/simple_rnn", "lstm"],
}
SAID = {
    ("without_bias", "model.weights.h5"): {"gru": {"reset_after": False}},
    ("without_bias", "ckpt"): {"gru": {"reset_after": False}},
    ("nested", "model.weights.h5"): {"sequential/simple_rnn": {"activation": "relu"}},
    ("nested", "ckpt"): {"simple_rnn": {"activation": "relu"}},
}


@pytest.mark.parametrize(
    ("case", "file"),
    # Which of two stacked cells is the lower one, weights alone don't tell: see below.
    [(c, f) for c in KERAS for f in FILES if (c, f) != ("cells", "model.weights.h5")],
)
def test_a_keras_model_gives_its_numbers(case, file):
    wanted = recorded(FOLDER / "keras" / case)
    layers = layers_in(FOLDER / "keras" / case / file, SAID.get((case, file)))
    if case in ORDER and file == "model.weights.h5":
        layers = torch.nn.ModuleDict({name: layers[name] for name in ORDER[case]})
    close(KERAS[case](layers, torch.from_numpy(wanted["x"])), wanted["output"])


def test_stacked_cells_whose_order_no_file_tells_are_not_guessed():
    model = recognise(importers.read(FOLDER / "keras" / "cells" / "model.weights.h5"))
    assert model.layers == {}
    assert all("no word on their order" in reason for reason in model.unrecognised.values())


@pytest.mark.parametrize("file", ["model.h5", "model.keras"])
def test_a_cell_that_unpad_does_not_have_is_told_by_its_difference(file):
    model = recognise(importers.read(FOLDER / "keras" / "hard" / file))
    assert model.layers == {}
    assert all("recurrent_activation is hard_sigmoid" in r for r in model.unrecognised.values())


def test_every_dtype_of_a_bundle_that_tensorflow_wrote():
    wanted, found = recorded(FOLDER / "bundle"), importers.read(FOLDER / "bundle" / "model")
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        got = found[name].value
        if name == "string":
            got = np.array([[item.hex() for item in row] for row in got])
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        assert got.tobytes() == value.tobytes()
    assert found["bfloat16"].dtype == "bfloat16"


# Names, without a file ---------------------------------------------------------------------------


def artefact(shapes: dict[str, tuple[int, ...]], **more) -> Artefact:
    chance = np.random.default_rng(0)
    variables = [
        Variable(name, chance.normal(size=shape).astype(np.float32), "float32")
        for name, shape in shapes.items()
    ]
    return Artefact("some/model", "TF checkpoint", variables, **more)


RNN = {"rnn/basic_rnn_cell/kernel": (5, 2), "rnn/basic_rnn_cell/bias": (2,)}


def lstm(scope: str, taken: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {f"{scope}/kernel": (taken + hidden, 4 * hidden), f"{scope}/bias": (4 * hidden,)}


def test_what_no_layer_takes_is_listed_with_the_reason():
    found = recognise(artefact(RNN | {"dense/kernel/Adam": (3, 2), "gain": (3,)}))
    assert list(found.layers) == ["rnn"]
    assert found.unrecognised == {
        "dense/kernel/Adam": "optimizer, metric or counter",
        "gain": "no layer that is known",
    }


def test_two_cells_in_one_scope_are_two_layers():
    shapes = lstm("rnn/lstm_cell", 3, 2) | lstm("rnn/lstm_cell_1", 3, 2)
    found = recognise(artefact(shapes))
    assert list(found.layers) == ["rnn/lstm_cell", "rnn/lstm_cell_1"]


def test_cells_called_without_a_loop():
    found = recognise(artefact(lstm("multi_rnn_cell/cell_0/lstm_cell", 3, 2)))
    assert found.layers["multi_rnn_cell"].describe() == "Recurrent([LSTMCell(3, 2)])"
    found = recognise(artefact(lstm("basic_lstm_cell", 3, 2)))
    assert found.layers["basic_lstm_cell"].describe() == "Recurrent(LSTMCell(3, 2))"


def test_one_direction_alone_is_a_layer_that_says_so():
    found = recognise(artefact(lstm("bidirectional_rnn/bw/lstm_cell", 3, 2)))
    (layer,) = found.layers.values()
    assert layer.describe() == "Recurrent(LSTMCell(3, 2))"
    assert any("reads backwards" in note for note in layer.notes)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (lstm("rnn/multi_rnn_cell/cell_0/lstm_cell", 3, 2)
         | lstm("rnn/multi_rnn_cell/cell_2/lstm_cell", 2, 2), "some are missing"),
        (lstm("rnn/multi_rnn_cell/cell_0/lstm_cell", 3, 2)
         | lstm("rnn/multi_rnn_cell/cell_1/lstm_cell", 3, 2), "takes 3 features of one that"),
        (lstm("bidirectional_rnn/fw/lstm_cell", 3, 2)
         | lstm("bidirectional_rnn/bw/lstm_cell", 3, 4), "not of the same kinds and sizes"),
        ({f"stack_bidirectional_rnn/cell_{n}/bidirectional_rnn/{way}/multi_rnn_cell/cell_{n}/{k}": s
          for n in (0, 1) for way in ("fw", "bw") for k, s in lstm("lstm_cell", 2, 2).items()},
         "stacks of cells within"),
        ({"rnn/lstm_cell/kernel": (5, 7), "rnn/lstm_cell/bias": (7,)}, "fits no cell"),
        ({"rnn/lstm_cell/kernel": (2, 8), "rnn/lstm_cell/bias": (8,)}, "fits no cell"),
        (lstm("rnn/lstm_cell", 3, 2) | {"rnn/lstm_cell/w_f_diag": (2,)}, "peepholes missing"),
        (lstm("rnn/lstm_cell", 3, 2) | {"rnn/lstm_cell/norm/gamma": (2,)}, "which none here has"),
        (lstm("rnn/lstm_cell", 3, 2) | {"rnn/lstm_cell/extra": (2,)}, "which none here has"),
        ({"a/kernel": (3, 9), "a/recurrent_kernel": (3, 9)}, "before or after"),
        ({"a/kernel": (3, 24), "a/recurrent_kernel": (3, 24), "a/bias": (24,)}, "fits no cell"),
        ({"rnn/mine/kernel": (5, 8), "rnn/mine/bias": (8,)}, 'mapping, {"rnn/mine"'),
        ({"conv/kernel": (3, 3, 1, 2), "conv/bias": (2,)}, "no dense layer"),
    ],
)  # fmt: skip
def test_what_fits_no_layer_is_told_why(shapes, words):
    found = recognise(artefact(shapes))
    assert found.layers == {}
    assert set(found.unrecognised) == set(shapes)
    assert any(words in reason for reason in found.unrecognised.values())


def test_names_of_tensorflow_1_0():
    old = {
        name.replace("kernel", "weights").replace("bias", "biases"): s for name, s in RNN.items()
    }
    assert recognise(artefact(old)).layers["rnn"].describe() == "Recurrent(RNNCell(3, 2))"


def test_the_forget_bias_is_added_and_the_saved_bias_stays_as_it_was():
    found = artefact(lstm("rnn/lstm_cell", 3, 2))
    state = recognise(found).state_dict()
    i, j, f, o = np.split(found["rnn/lstm_cell/bias"].value, 4)
    assert np.array_equal(state["rnn.cells.0.bias_ih"].numpy(), np.concatenate([i, f, j, o]))
    assert state["rnn.cells.0.bias_hh"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    other = recognise(found, {"rnn": {"forget_bias": 0.25}}).state_dict()
    assert other["rnn.cells.0.bias_hh"].tolist() == [0, 0, 0.25, 0.25, 0, 0, 0, 0]


# The mapping -------------------------------------------------------------------------------------


def test_a_mapping_renames_leaves_out_and_takes_variables_as_they_are(tmp_path):
    found = artefact(RNN | {"dense/kernel": (2, 4), "gain": (3,), "step": ()})
    model = recognise(found, {"rnn": "net.encoder", "dense": None, "gain": "scale"})
    assert list(model.layers) == ["net.encoder", "scale"]
    assert model.unrecognised["dense/kernel"] == "left out by the mapping"
    state = model.state_dict()
    assert np.array_equal(state["scale"].numpy(), found["gain"].value)
    model.to_safetensors(tmp_path / "m.safetensors")
    loaded = importers.load(tmp_path / "m.safetensors")
    assert str(loaded) == str(model.build())

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Module()
            self.net.encoder = unpad.nn.Recurrent(unpad.nn.RNNCell(3, 2))
            self.scale = torch.nn.Parameter(torch.zeros(3))

    from safetensors.torch import load_file

    net = Net()
    net.load_state_dict(load_file(tmp_path / "m.safetensors"))
    assert torch.equal(
        net.net.encoder.cells[0].weight_ih, loaded["net"]["encoder"].cells[0].weight_ih
    )


def test_bfloat16_weights_stay_bfloat16(tmp_path):
    value = np.ones((2, 3), np.float32)
    writer.write(tmp_path / "m", {"embedding": (value, "bfloat16")})
    model = recognise(importers.read(tmp_path / "m"))
    assert model.state_dict()["embedding.weight"].dtype == torch.bfloat16
    assert model.build()["embedding"].weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"rn": "encoder"}, "which is not in it; did you mean: rnn"),
        ({"rnn": "a", "dense": "a"}, "2 layers of it would be named 'a'"),
        ({"rnn": 3}, "a name, an object of settings, or null"),
        ({"rnn": "a..b"}, "a name such as encoder.rnn"),
        ({"rnn": {"cell": "gru"}}, "rnn or lstm"),
        ({"rnn": {"forget_bias": "1"}}, "a number; remedy: change it"),
        ({"rnn": {"bias": 1}}, "use one of these settings"),
        ([], "a dict, or a JSON object"),
    ],
)
def test_a_mapping_that_cannot_be(mapping, words):
    with pytest.raises(unpad.UnpadError) as caught:
        recognise(artefact(RNN | {"dense/kernel": (2, 4)}), mapping)
    assert words in str(caught.value)


def test_a_layer_written_from_a_mapping_file(tmp_path):
    (tmp_path / "map.json").write_text(json.dumps({"rnn": "encoder"}))
    model = recognise(artefact(RNN), importers.read_mapping(tmp_path / "map.json"))
    assert list(model.layers) == ["encoder"]
    (tmp_path / "map.json").write_text("[")
    with pytest.raises(ArtefactError, match=r"map\.json"):
        importers.read_mapping(tmp_path / "map.json")


def test_safetensors_of_somebody_else_are_refused(tmp_path):
    from safetensors.torch import save_file

    for name, metadata in {
        "none": None, "odd": {"unpad.layers": "[]"}, "code": {"unpad.layers": '{"a": ["x", {}]}'},
        "cell": {"unpad.layers": json.dumps({"a": ["recurrent", {
            "form": "one", "backward": [], "cells": [{"cell": "Recurrent", "arguments": {}}]}]})},
        "rest": {"unpad.layers": "{}"},
    }.items():  # fmt: skip
        save_file({"a": torch.zeros(2)}, tmp_path / name, metadata)
        with pytest.raises(ArtefactError, match=name):
            importers.load(tmp_path / name)
    (tmp_path / "text").write_text("no tensors")
    for name in ("text", "absent"):
        with pytest.raises(ArtefactError, match=name):
            importers.load(tmp_path / name)
    with pytest.raises(ArtefactError, match="no layer in it was recognised"):
        recognise(artefact({"gain": (3,)})).to_safetensors(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_building_draws_no_random_number():
    before = torch.random.get_rng_state()
    recognise(artefact(RNN | {"dense/kernel": (2, 4), "embedding": (4, 3)})).build()
    assert torch.equal(before, torch.random.get_rng_state())


def test_names_by_the_ten_thousand_take_linear_time():
    shapes = {"a": (0,)}
    for number in range(20_000):
        shapes |= {f"s/stacked_rnn_cells/c{number}_cell/kernel": (1, 1)}
        shapes |= {f"s/stacked_rnn_cells/c{number}_cell/recurrent_kernel": (1, 1)}
    variables = [Variable(n, np.zeros(s, np.float32), "float32") for n, s in shapes.items()]
    start = time.process_time()
    model = recognise(Artefact("m", "k", variables), {"a": None})
    assert time.process_time() - start < 10
    assert len(model.layers["s"].plan["cells"]) == 20_000


# Dense layers of Keras ----------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.h5", "model.keras", "saved", "ckpt"])
def test_a_dense_layers_activation_is_noted_and_not_lost_without_a_word(file):
    wanted = recorded(FOLDER / "keras" / "dense")
    model = recognise(importers.read(FOLDER / "keras" / "dense" / file))
    assert model.unrecognised == {}
    layers = model.build()
    hidden = layers["each"](torch.from_numpy(wanted["x"])).relu()
    close(layers["top"](hidden).softmax(-1), wanted["output"])
    notes = {name: " ".join(layer.notes) for name, layer in model.layers.items()}
    for name, activation in ("each", "relu"), ("top", "softmax"):
        # A checkpoint alone does not say it.
        assert (f"activation {activation}:" in notes[name]) == (file != "ckpt")


def test_a_dense_layer_without_an_activation_has_no_note():
    value = np.ones((3, 2), np.float32)
    for settings in ({"activation": "linear"}, {"activation": None}, {}):
        layers = {"top": {"class_name": "Dense", **settings}}
        artefact = Artefact("m", "k", [Variable("top/kernel", value, "float32")], {}, layers)
        assert recognise(artefact).layers["top"].notes == ()


@pytest.mark.parametrize("damage", ["empty", "no variables"])
def test_half_a_saved_model_is_an_error_that_says_what_is_missing(tmp_path, damage):
    source = FOLDER / "keras" / "dense" / "saved"
    shutil.copytree(source, tmp_path / "m")
    if damage == "empty":
        (tmp_path / "m" / "saved_model.pb").write_bytes(b"")
    else:
        shutil.rmtree(tmp_path / "m" / "variables")
    says = {"empty": "is empty", "no variables": "no folder variables"}[damage]
    with pytest.raises(ArtefactError, match=says):
        importers.read(tmp_path / "m")


def test_directions_with_unlike_cells_are_refused_for_that():
    variables = []
    for direction, cell, shape in (
        ("fw", "cell_0/basic_lstm_cell", (7, 16)), ("bw", "cell_0/gru_cell/gates", (7, 8)),
        ("fw", "cell_1/basic_lstm_cell", (8, 16)), ("bw", "cell_1/basic_lstm_cell", (8, 16)),
    ):  # fmt: skip
        scope = f"bidirectional_rnn/{direction}/multi_rnn_cell/{cell}"
        variables.append(Variable(f"{scope}/kernel", np.ones(shape, np.float32), "float32"))
    scope = "bidirectional_rnn/bw/multi_rnn_cell/cell_0/gru_cell/candidate/kernel"
    variables.append(Variable(scope, np.ones((7, 4), np.float32), "float32"))
    reasons = recognise(Artefact("m", "k", variables)).unrecognised.values()
    assert all("two directions whose cells are not of the same kinds" in r for r in reasons)
    assert len(reasons) == len(variables)


def test_a_setting_of_the_wrong_type_says_how_each_cell_gets_its_own():
    with pytest.raises(unpad.ArgumentError, match=r"a number; remedy: .*multi_rnn_cell/cell_0"):
        recognise(Artefact("m", "k", []), {"rnn": {"forget_bias": [0.2, 1.0]}})
