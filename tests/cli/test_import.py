"""``unpad import``: what people and scripts see."""

from __future__ import annotations

import json

import numpy as np
import pytest

from importers import writer
from importers.artefacts import OWN
from unpad import importers
from unpad.cli import main

pytest.importorskip("h5py")
CHECKPOINT = OWN / "tf1_lstm_classifier"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["import", *map(str, arguments)])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def test_people_see_variables_layers_and_signatures(capsys):
    code, out, _ = run(capsys, OWN / "savedmodel_v1_lstm_basic" / "model")
    assert code == 0
    assert "SavedModel, 23 variables" in out
    assert "rnn: Recurrent([LSTMCell(6, 6), RNNCell(6, 5)])" in out
    assert "forget_bias 1" in out
    assert "signature classify_sequence: lengths, tokens -> logits, probs" in out
    assert "--to FILE.safetensors" in out


def test_a_pipe_gets_every_name_whole(capsys):
    _, out, _ = run(capsys, CHECKPOINT)
    (line,) = [line for line in out.splitlines() if "cell_0/lstm_cell/kernel " in line]
    assert line.split() == [
        "rnn/multi_rnn_cell/cell_0/lstm_cell/kernel",
        "float32",
        "14",
        "×",
        "32",
        "rnn",
    ]


def test_what_an_optimizer_kept_stands_apart_from_the_weights(capsys):
    for kind in (CHECKPOINT, OWN / "keras_bilstm" / "model.h5", OWN / "keras_bilstm/tf_checkpoint"):
        _, out, _ = run(capsys, kind)
        weights, others = out.split("optimizer, metrics and counters: no weights")
        assert "dense/kernel" in weights
        assert "Adam" not in weights
        assert others.count("Adam") >= 14
        assert "dense: Linear" in others, "the layers come after both"


def test_an_optimizer_that_nobody_knows_is_seen_by_what_it_stands_below(tmp_path, capsys):
    kernel = np.ones((3, 2), np.float32)
    saved = {"dense/kernel": kernel, "dense/kernel/Wonder": kernel, "tower/other": kernel}
    writer.write(tmp_path / "m", {name: (value, "float32") for name, value in saved.items()})
    model = importers.recognise(importers.read(tmp_path / "m"))
    assert model.bookkeeping == ["dense/kernel/Wonder"]
    assert model.unrecognised["tower/other"] == "no layer that is known"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("absent/model.safetensors", "its folder {0}/absent does not exist; make it (mkdir -p"),
        ("", "it is a folder, not a file to write; name a file in it, such as {0}/model.safe"),
    ],
)
def test_a_target_that_cannot_be_written_is_told_before_any_work(capsys, tmp_path, target, words):
    code, out, err = run(capsys, tmp_path / "no-such-model", "--to", tmp_path / target)
    assert code == 3
    assert words.format(tmp_path) in err
    assert out == ""
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"rnn": "a",\n "dense" null}', "at line 2, column 10"),
        ('["rnn"]', "it holds a JSON array, not an object"),
        ("3", "it holds a JSON number, not an object"),
        ("", "at line 1, column 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"rnn": "a", "rnn": "b"}', "'rnn' stands in it 2 times"),
        ('{"rnm": "a"}', "did you mean: rnn?"),
        (b"\xff\xfe{", "no text in UTF-8"),
    ],
)
def test_a_broken_mapping_is_told_to_the_line(capsys, tmp_path, text, words):
    path = tmp_path / "map.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, _, err = run(capsys, CHECKPOINT, "--mapping", path)
    assert code in (2, 3)
    assert words in err
    assert "damaged" not in err


def test_a_mapping_as_windows_writes_it_is_read(capsys, tmp_path):
    path = tmp_path / "map.json"
    path.write_text('{"rnn": "encoder"}', encoding="utf-8-sig")
    _, out, _ = run(capsys, CHECKPOINT, "--mapping", path)
    assert "encoder: Recurrent" in out


def test_scripts_get_every_variable_with_its_use(capsys):
    code, out, _ = run(capsys, CHECKPOINT, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["kind"] == "TF checkpoint"
    variables = {v["name"]: v for v in found["variables"]}
    assert len(variables) == 24
    assert variables["dense/kernel"] == {
        "name": "dense/kernel", "alias": None, "dtype": "float32", "shape": [5, 3],
        "use": "dense", "recognised": True,
    }  # fmt: skip
    assert not variables["global_step"]["recognised"]
    assert len(found["bookkeeping"]) == 17
    assert {"global_step", "beta1_power", "dense/kernel/Adam_1"} < set(found["bookkeeping"])
    assert found["layers"]["rnn"]["parameters"]["cells.0.weight_ih"] == [32, 6]
    assert found["written"] is None


def test_what_is_written_is_what_python_builds(capsys, tmp_path):
    (tmp_path / "map.json").write_text('{"rnn": {"name": "encoder", "forget_bias": 0}}')
    target = tmp_path / "model.safetensors"
    code, out, _ = run(capsys, CHECKPOINT, "--to", target, "--mapping", tmp_path / "map.json")
    assert code == 0
    assert "unpad.importers.load" in out
    found = importers.load(target)
    assert list(found) == ["dense", "embedding", "encoder"]
    assert not found["encoder"].cells[0].bias_hh.any()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.json", "model.safetensors"]


def test_a_file_that_cannot_be_read_is_one_line_and_leaves_no_output(capsys, tmp_path):
    (tmp_path / "m.index").write_bytes(b"no index")
    target = tmp_path / "out.safetensors"
    target.write_text("old")
    code, _, err = run(capsys, tmp_path / "m", "--to", target)
    assert code == 3
    assert err.startswith(f"error: {tmp_path / 'm'}.index: it has 8 bytes")
    assert err.count("\n") == 1
    assert target.read_text() == "old"
    code, _, err = run(capsys, CHECKPOINT, "--mapping", tmp_path / "absent.json")
    assert (code, "absent.json" in err) == (3, True)
    code, _, err = run(capsys, CHECKPOINT, "--to", tmp_path / "no" / "folder.safetensors")
    assert (code, "folder.safetensors" in err) == (3, True)


def test_names_of_a_stranger_steer_no_terminal(capsys, tmp_path):
    name = "\x1b[2J[red]x\x07\nrnn: forged"
    writer.write(tmp_path / "m", {name: (np.zeros(1, np.float32), "float32")})
    code, out, _ = run(capsys, tmp_path / "m")
    assert code == 0
    assert "?[2J[red]x??rnn: forged" in out
    assert "\x1b[2J" not in out
    code, out, _ = run(capsys, tmp_path / "m", "--json")
    assert json.loads(out)["variables"][0]["name"] == name
    assert "\x1b" not in out
