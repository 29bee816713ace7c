"""Saved models of TensorFlow and Keras give here the numbers that they gave there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unpad
from engine.every_cell import TIERS
from importers.artefacts import CASES, FOLDER, OWN, artefacts, path_of, recorded, truth, unnamed
from unpad import importers

FORMS = artefacts()
pytest.importorskip("h5py")


@pytest.fixture(params=["torch", *(["native"] if TIERS else [])])
def engine(request):
    with unpad.engine(request.param):
        yield request.param


@pytest.fixture(scope="module", params=FORMS, ids="/".join)
def artefact(request):
    case, form = request.param
    return case, form, importers.read(path_of(case, form))


def close(found: torch.Tensor, wanted: np.ndarray) -> None:
    """cases.json of the functions' golden files: |a - b| <= 1e-5 + 1e-5 |b| in float32."""
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.detach().numpy(), wanted, atol=1e-5, rtol=1e-5)


def test_every_artefact_is_looked_at():
    assert {case for case, _ in FORMS} == set(CASES)
    assert len(FORMS) == 16 or FOLDER != OWN


def test_every_variable_is_the_saved_one_to_the_bit(artefact):
    case, form, found = artefact
    # A Keras 2 file of weights alone holds no names.
    nameless = form == "model.weights.h5" and CASES[case]["kind"].startswith("Keras 2")
    paths = unnamed(list(truth(case))) if nameless else {}
    for name, value in truth(case).items():
        variable = found[paths.get(name, name)]
        assert (variable.value.dtype, variable.shape) == (value.dtype, value.shape)
        assert variable.value.tobytes() == value.tobytes()


def test_nothing_that_is_a_weight_goes_unrecognised(artefact):
    case, _, found = artefact
    model = importers.recognise(found)
    assert set(model.unrecognised.values()) <= {"optimizer, metric or counter"}
    weights = sum(v.size for name, v in truth(case).items() if is_weight(name))
    # The second bias is ours: as many numbers as the first, but for GRUs with reset after.
    second = sum(v.numel() for k, v in model.state_dict().items() if "bias_hh" in k)
    both = sum(v.size for n, v in truth(case).items() if n.endswith("bias") and v.ndim == 2)
    assert sum(v.numel() for v in model.state_dict().values()) == weights + second - both // 2


def is_weight(name: str) -> bool:
    slots = ("Adam", "RMSProp", "Momentum", "Ftrl", "Adagrad", "Adadelta")
    kept = tuple(f"/{slot}{more}" for slot in slots for more in ("", "_1"))
    return not name.endswith((*kept, "_power", "global_step"))


@pytest.mark.usefixtures("engine")
def test_what_was_recorded_comes_out(artefact):
    case, _, found = artefact
    layers = importers.recognise(found).build().eval()
    runs = run_keras if CASES[case]["kind"].startswith("Keras") else run_v1
    wanted = {k: v for k, v in recorded(case).items() if k not in ("tokens", "lengths")}
    results = runs(case, layers)
    for key, value in wanted.items():
        close(results[name_of(key)], value)


def name_of(key: str) -> str:
    """A recorded key without the signature's name, states named alike."""
    if key.startswith("layer/"):
        return key
    key = key.replace("final_state/", "final_state_").replace(".", "_").rpartition("/")[2]
    return "outputs" if key == "serving_default" else key


def test_safetensors_give_the_same_layers(artefact, tmp_path):
    _case, _, found = artefact
    model = importers.recognise(found)
    model.to_safetensors(tmp_path / "model.safetensors")
    built, read = model.build(), importers.load(tmp_path / "model.safetensors")
    assert str(built) == str(read)
    assert built.state_dict().keys() == read.state_dict().keys()
    assert all(torch.equal(v, read.state_dict()[k]) for k, v in built.state_dict().items())
    assert all(parameter.requires_grad for parameter in read.parameters())


def part(layers: torch.nn.ModuleDict, name: str) -> torch.nn.Module:
    """A layer by the end of its name: the scopes differ."""
    return next(layer for key, layer in layers.items() if key.rpartition("/")[2] == name)


def run_v1(case: str, layers: torch.nn.ModuleDict) -> dict[str, torch.Tensor]:
    """Embedding -> dynamic_rnn -> the last layer's h -> dense -> softmax."""
    given = recorded(case)
    tokens, lengths = torch.from_numpy(given["tokens"]).long(), given["lengths"].tolist()
    output, final = part(layers, "rnn")(part(layers, "embedding")(tokens), lengths=lengths)
    if isinstance(final, tuple) and all(isinstance(state, torch.Tensor) for state in final):
        named = [type(cell).__name__ for cell in part(layers, "rnn").cells]
        final = (final,) if named == ["LSTMCell"] else final
    last = final[-1] if isinstance(final, tuple) else final
    logits = part(layers, "dense")(last[0] if isinstance(last, tuple) else last)
    results = {"rnn_outputs": output, "logits": logits, "probs": logits.softmax(1)}
    if not isinstance(final, tuple):
        return results | {"final_state": final}
    for number, state in enumerate(final):
        named = zip("hc", state, strict=True) if isinstance(state, tuple) else [("", state)]
        results |= {f"final_state_{number}_{name}".rstrip("_"): value for name, value in named}
    return results


def run_keras(case: str, layers: torch.nn.ModuleDict) -> dict[str, torch.Tensor]:
    """Embedding with mask_zero -> recurrent layers -> dense. The pads stand at the end."""
    given = recorded(case)
    tokens = torch.from_numpy(given["tokens"]).long()
    lengths = (tokens != 0).sum(1)
    order = torch.arange(tokens.shape[1])
    assert torch.equal(tokens != 0, order < lengths[:, None]), "no holes in the recorded masks"
    kinds = {type(layer).__name__: layer for layer in layers.values()}
    names = [key.removeprefix("layer/") for key in given if key.startswith("layer/")]
    x = kinds["Embedding"](tokens)
    results = {f"layer/{names[0]}": x}
    recurrent = sorted(k for k, v in layers.items() if type(v).__name__ == "Recurrent")
    for key, name in zip(recurrent, names[1:-1], strict=True):
        x, final = layers[key](x, lengths=lengths)
        shape = given[f"layer/{name}"].shape
        if len(shape) == 2:
            sides = final if layers[key].bidirectional else (final,)
            x = torch.cat([each[0] if isinstance(each, tuple) else each for each in sides], 1)
        repeats = len(shape) == 3 and not layers[key].bidirectional
        results[f"layer/{name}"] = held(x, lengths) if repeats else x
    logits = kinds["Linear"](x)
    results["outputs"] = logits if case.startswith("keras3") else logits.softmax(1)
    results[f"layer/{names[-1]}"] = results["outputs"]
    return results


def held(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A bare Keras layer repeats its last output past the end; a Bidirectional gives 0 there."""
    steps = torch.minimum(torch.arange(x.shape[1])[None], (lengths - 1).clamp(min=0)[:, None])
    return x.gather(1, steps[..., None].expand_as(x))
