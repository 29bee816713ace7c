"""A TF1 checkpoint into the cells of the old names, as docs/porting-from-tensorflow.md shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unpad
from tf1.golden_files import OWN
from unpad import importers, tf1

FOLDER = OWN / "checkpoints" / "tf1_lstm_classifier"


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_the_recorded_outputs_come_out_of_the_cells(engine):
    checkpoint = importers.read(FOLDER / "model.ckpt-20")
    cell = tf1.MultiRNNCell([tf1.LSTMCell(8), tf1.LSTMCell(5)])
    cell.build(6)
    with torch.no_grad():
        for name, parameter in cell.variables().items():
            parameter.copy_(torch.from_numpy(checkpoint[f"rnn/{name}"].value))
    with np.load(FOLDER / "io.npz") as arrays:
        io = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    embedded = torch.from_numpy(checkpoint["embedding"].value)[io["tokens"].long()]
    with unpad.engine(engine):
        outputs, state = tf1.dynamic_rnn(cell, embedded, io["lengths"])
    torch.testing.assert_close(outputs, io["rnn_outputs"], atol=1e-5, rtol=1e-5)
    for layer, (c, h) in enumerate(state):
        torch.testing.assert_close(c, io[f"final_state/{layer}.c"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(h, io[f"final_state/{layer}.h"], atol=1e-5, rtol=1e-5)
    kernel, bias = (torch.from_numpy(checkpoint[f"dense/{k}"].value) for k in ("kernel", "bias"))
    torch.testing.assert_close(state[-1].h @ kernel + bias, io["logits"], atol=1e-5, rtol=1e-5)


def test_the_imported_modules_run_as_the_page_says(tmp_path):
    found = importers.read(FOLDER / "model.ckpt-20")
    assert repr(found).endswith("TF checkpoint, 24 variables)")
    importers.recognise(found).to_safetensors(tmp_path / "model.safetensors")
    model = importers.load(tmp_path / "model.safetensors")
    with np.load(FOLDER / "io.npz") as arrays:
        io = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    outputs, states = model["rnn"](model["embedding"](io["tokens"].long()), lengths=io["lengths"])
    logits = model["dense"](states[-1][0])
    torch.testing.assert_close(outputs, io["rnn_outputs"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, io["logits"], atol=1e-5, rtol=1e-5)
