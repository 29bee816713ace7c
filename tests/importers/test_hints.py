"""What is no saved model of TensorFlow or Keras is called by its name, with what to do."""

from __future__ import annotations

import io
import pickle
import shutil

import numpy as np
import pytest
import torch

from importers.artefacts import OWN
from unpad.importers import ArtefactError, load, read, recognise

pytest.importorskip("h5py")


def saved(save) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


FILES = {
    "model.pt": (saved(lambda f: torch.save({"a": torch.ones(2)}, f)), "torch.save"),
    "old.pt": (
        saved(lambda f: torch.save({}, f, _use_new_zipfile_serialization=False)),
        "it is a pickle",
    ),
    "model.pkl": (pickle.dumps({"a": 1}), "it is a pickle"),
    "arrays.npz": (saved(lambda f: np.savez(f, a=np.ones(2))), "it is a NumPy archive"),
    "array.npy": (saved(lambda f: np.save(f, np.ones(2))), "it is a NumPy array"),
    "model.tflite": (b"\x1c\0\0\0TFL3" + bytes(20), "TensorFlow Lite"),
    "graph.pb": (b"\n\x05hello", "a bare graph"),
    "model.onnx": (b"\x08\x07", "an ONNX model"),
    "notes.txt": (b"hello", "no saved model that is known; give a TF checkpoint"),
    "empty.bin": (b"", "no saved model that is known; give a TF checkpoint"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_called_by_its_name(name, tmp_path):
    data, words = FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArtefactError, match=words):
        read(tmp_path / name)


def test_a_saved_model_and_what_was_made_of_it_are_not_taken_for_each_other(tmp_path):
    target = tmp_path / "model.safetensors"
    recognise(read(OWN / "keras_bilstm" / "model.h5")).to_safetensors(target)
    with pytest.raises(ArtefactError, match=r"safetensors file; unpad\.importers\.load builds"):
        read(target)
    for name in ("model.h5", "model.keras"):
        with pytest.raises(ArtefactError, match=r"unpad import PATH --to FILE\.safetensors"):
            load(OWN / "keras_bilstm" / name)


def test_a_folder_of_saved_models_names_them():
    with pytest.raises(ArtefactError, match=r"name one of what lies in it: .*model\.h5") as caught:
        read(OWN / "keras_bilstm")
    assert all(name in str(caught.value) for name in ("model.keras", "saved_model", "weights_only"))


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path):
    for part in ("index", "data-00000-of-00001"):
        shutil.copy(OWN / "tf1_lstm_classifier" / f"model.ckpt-20.{part}", tmp_path)
    with pytest.raises(ArtefactError, match=r"did you mean model\.ckpt-20,"):
        read(tmp_path / "model.ckpt-200")
    with pytest.raises(ArtefactError, match=r"there is no folder .*absent either"):
        read(tmp_path / "absent" / "model.ckpt-20")
    for part in ("index", "data-00000-of-00001"):
        shutil.copy(tmp_path / f"model.ckpt-20.{part}", tmp_path / f"model.ckpt-30.{part}")
    with pytest.raises(ArtefactError, match=r"several: model\.ckpt-20\.index.*such as .*ckpt-30$"):
        read(tmp_path)


def test_a_target_in_a_folder_that_is_not_there_is_told(tmp_path):
    model = recognise(read(OWN / "keras_bilstm" / "model.h5"))
    with pytest.raises(ArtefactError, match="does not exist; make it"):
        model.to_safetensors(tmp_path / "absent" / "model.safetensors")
    with pytest.raises(ArtefactError, match="it is a folder, not a file to write"):
        model.to_safetensors(tmp_path)
    assert list(tmp_path.iterdir()) == []
