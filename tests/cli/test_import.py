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
