"""Files that are whole or not there, and that hold no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from unpad.tasks.atomic import write_atomically, write_json, write_text
from unpad.tasks.checkpoint import SafetensorsIO, flatten, unflatten
from unpad.tasks.run_error import RunError


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def tree() -> dict[str, Any]:
    weight = torch.randn(3, 2)
    return {
        "state": {0: {"step": torch.tensor(3.0), "m": weight.t()}, 1: {}},
        "betas": (0.9, 0.1 + 0.2),
        "names": ["a", None, True, 7, float("inf")],
        "$tensor": "not one",
        "tied": [weight, weight],
        "empty": torch.zeros(0, 4, dtype=torch.int64),
    }


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    state = tree()
    SafetensorsIO().save_checkpoint(state, tmp_path / "a.safetensors")
    assert equal(SafetensorsIO().load_checkpoint(tmp_path / "a.safetensors"), state)


def test_a_checkpoint_is_safetensors_with_json_in_its_header(tmp_path: Path) -> None:
    SafetensorsIO().save_checkpoint(tree(), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        names = [name for name, _ in json.loads(file.metadata()["checkpoint"])["$dict"]]
        assert names == list(tree())
        assert file.get_tensor("/state/0/step").item() == 3


@pytest.mark.parametrize("thing", [np.float32(1), {1, 2}, object(), print])
def test_things_that_need_pickle_are_refused_with_their_place(thing: Any) -> None:
    with pytest.raises(TypeError, match="checkpoint/a/0: "):
        flatten({"a": [thing]})


def test_plain_data_need_no_tensors() -> None:
    tensors, plain = flatten({"a": [1, (2.5, "x")]})
    assert tensors == {}
    assert unflatten({}, json.loads(json.dumps(plain))) == {"a": [1, (2.5, "x")]}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not this", b"\x80\x04K\x01."])
def test_a_broken_checkpoint_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(RunError, match="no usable checkpoint"):
        SafetensorsIO().load_checkpoint(tmp_path / "a.safetensors")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"n": 1})

    def write(temporary: Path) -> None:
        temporary.write_text('{"n": 2}')
        assert json.loads(path.read_text()) == {"n": 1}

    write_atomically(path, write)
    assert json.loads(path.read_text()) == {"n": 2}
    assert path.stat().st_mode & 0o777 == (tmp_path / "a.json").stat().st_mode & 0o777
