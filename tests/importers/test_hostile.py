"""Files made to harm, or broken by hand: an error in words, in little memory and time."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from importers import writer
from importers.artefacts import OWN
from unpad import importers
from unpad.importers.slices import slice_key

h5py = pytest.importorskip("h5py")
LSTM = OWN / "tf1_lstm_classifier" / "model.ckpt-20"
FOUR = struct.pack("<f", 1.0)
MEGABYTES = 64


def refused(path: Path, *words: str) -> None:
    """Reading fails with our own error, which has these words, within bounds."""
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(importers.ArtefactError) as caught:
            importers.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTES << 20
    assert time.process_time() - start < 10
    text = str(caught.value)
    assert [word for word in words if word not in text] == [], text


def bundle(
    folder: Path, *entries: tuple[bytes, bytes], data: bytes = FOUR, shards: int = 1
) -> Path:
    writer.save(folder / "m", [(b"", writer.header(shards)), *entries], [data] * min(shards, 3))
    return folder / "m"


def tensor(name: str = "v", **changes) -> tuple[bytes, bytes]:
    wanted = {"dtype": 1, "shape": (1,), "size": 4, "crc": writer.masked(FOUR)} | changes
    return name.encode(), writer.entry(**wanted)


def index(folder: Path, data: bytes) -> Path:
    (folder / "m.index").write_bytes(data)
    (folder / "m.data-00000-of-00001").write_bytes(FOUR)
    return folder / "m"


def test_a_good_bundle_is_read(tmp_path):
    assert importers.read(bundle(tmp_path, tensor()))["v"].value.tolist() == [1.0]


HUGE = 1 << 60
CHANGES = {
    "a length of 2^60": ({"shape": (HUGE,)}, "impossible shape"),
    "a negative length": ({"shape": (-1,)}, "impossible shape"),
    "a product beyond 64 bits": ({"shape": (1 << 40, 1 << 40)}, "impossible shape"),
    "no elements but 2^60 rows": ({"shape": (HUGE, 0), "size": 0}, "impossible shape"),
    "more dimensions than NumPy has": ({"shape": (1,) * 65}, "dimensions"),
    "a size of 2^60": ({"size": HUGE, "shape": (HUGE // 4,)}, "impossible shape"),
    "2^40 bytes of a file of 4": ({"size": 1 << 40, "shape": (1 << 38,)}, "of a file of 4"),
    "an offset of 2^60": ({"offset": HUGE}, "of a file of 4"),
    "a negative offset": ({"offset": -4}, "negative"),
    "fewer bytes than the shape": ({"shape": (2,)}, "wants 8 bytes, not 4"),
    "a wrong checksum": ({"crc": 7}, "checksum of its values is wrong"),
    "a data file that is not counted": ({"shard": 1}, "data file 1, and there are 1"),
    "a data file of number 2^31": ({"shard": 1 << 31}, "data file"),
    "2^40 strings": ({"dtype": 7, "shape": (1 << 40,)}, "strings cannot lie in 4 bytes"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_entry_that_lies(tmp_path, name):
    changes, words = CHANGES[name]
    refused(bundle(tmp_path, tensor(**changes)), words)


def test_tensors_that_share_bytes(tmp_path):
    entries = [tensor(f"v{number:05}") for number in range(20_000)]
    refused(bundle(tmp_path, *entries), "overlap")


def test_a_data_file_that_is_missing(tmp_path):
    prefix = bundle(tmp_path, tensor(shard=1), shards=2)
    (tmp_path / "m.data-00001-of-00002").unlink()
    refused(prefix, "m.data-00001-of-00002: it is missing, and 'v' lies in it")


def test_more_data_files_than_there_are(tmp_path):
    refused(bundle(tmp_path, tensor(shard=(1 << 31) - 2), shards=(1 << 31) - 1), "it is missing")


def test_big_endian_numbers(tmp_path):
    writer.save(tmp_path / "m", [(b"", writer.header(1, endianness=1)), tensor()], [FOUR])
    refused(tmp_path / "m", "big-endian")


def test_strings_whose_lengths_lie(tmp_path):
    data, crc = writer.strings([b"ab", b"c"])
    good = {"dtype": 7, "shape": (2,), "size": len(data), "crc": crc}
    assert importers.read(bundle(tmp_path, tensor(**good), data=data))["v"].value[0] == b"ab"
    lengths = b"".join(map(writer.varint, [HUGE, HUGE]))
    summed = struct.pack("<QQ", HUGE, HUGE)
    check = struct.pack("<I", writer.masked(summed))
    bad = lengths + check + b"abc"
    lies = good | {"size": len(bad), "crc": writer.masked(summed + check + b"abc")}
    refused(bundle(tmp_path, tensor(**lies), data=bad), "not as long as their bytes")


def sliced(*extents, shape=(4,), parts=None):
    """A variable of these slices, each with the length that it claims."""
    entries, at = [], 0
    for each in parts or extents:
        size = max(0, each[0][1])
        data = np.zeros(size, np.float32).tobytes()
        key = slice_key("v", each)
        place = {"offset": at, "size": len(data), "crc": writer.masked(data)}
        entries.append((key, writer.entry(1, (size,), **place)))
        at += len(data)
    whole = writer.entry(1, shape, slices=[writer.slice_of(each) for each in extents])
    return [*entries, (b"v", whole)], b"\0" * at


SLICES = {
    "overlap": ([((0, 3),), ((2, 1),)], "overlap"),
    "leave a hole": ([((0, 1),), ((2, 2),)], "not as large"),
    "go beyond the end": ([((0, 2),), ((3, 2),)], "don't fit"),
    "are the same": ([((0, 4),), ((0, 4),)], "named twice"),
}


@pytest.mark.parametrize("name", SLICES)
def test_slices_that(tmp_path, name):
    extents, words = SLICES[name]
    entries, data = sliced(*extents)
    if name == "are the same":
        entries = entries[1:]
    refused(bundle(tmp_path, *entries, data=data), words)


def test_slices_that_are_missing_or_nobodys(tmp_path):
    entries, data = sliced(((0, 2),), ((2, 2),))
    refused(bundle(tmp_path, *entries[1:], data=data), "a slice of 'v' is missing")
    refused(bundle(tmp_path, *entries[:2], data=data), "belong to no variable")


def test_a_variable_of_2_to_the_60_made_of_small_slices(tmp_path):
    entries, data = sliced(((0, 2),), ((2, 2),), shape=(1 << 46,))
    refused(bundle(tmp_path, *entries, data=data), "not as large")


# The index ---------------------------------------------------------------------------------------


def test_an_index_block_that_names_itself(tmp_path):
    meta = writer.signed(writer.block([]))
    handle = writer.varint(len(meta)) + writer.varint(0)
    for _ in range(3):  # until the size that it names is its own
        names_itself = writer.block([(b"a", handle)])
        handle = writer.varint(len(meta)) + writer.varint(len(names_itself))
    out = meta + writer.signed(names_itself)
    footer = (writer.varint(0) + writer.varint(len(meta) - 5) + handle).ljust(40, b"\0")
    out += footer + struct.pack("<Q", 0xDB4775248B80FB57)
    refused(index(tmp_path, out), "m.index")


def test_a_block_named_again_and_again(tmp_path):
    data = writer.block([(b"", writer.header())])
    again = [(bytes([65 + n]), writer.varint(0) + writer.varint(len(data))) for n in range(20)]
    whole = writer.finish(writer.signed(data), writer.block(again, share=False))
    refused(index(tmp_path, whole), "overlap")


def test_keys_that_grow_without_end(tmp_path):
    """Each key of a few bytes repeats all of the one before it: a square of the file's size."""
    out = b"".join(writer.varint(length) + b"\1\0k" for length in range(60_000))
    data = out + struct.pack("<II", 0, 1)
    end = writer.block([(b"z", writer.varint(0) + writer.varint(len(data)))])
    refused(index(tmp_path, writer.finish(writer.signed(data), end)), "keys are")


@pytest.mark.parametrize("kind", [1, 2, 77])
def test_a_compressed_block(tmp_path, kind):
    refused(index(tmp_path, writer.table([(b"", writer.header())], kind=kind)), "is compressed")


def test_a_varint_without_end(tmp_path):
    data = b"\xff" * 4000 + struct.pack("<II", 0, 1)
    end = writer.block([(b"z", writer.varint(0) + writer.varint(len(data)))])
    refused(index(tmp_path, writer.finish(writer.signed(data), end)), "more than 64 bits")
    refused(bundle(tmp_path, (b"v", b"\x08" + b"\xff" * 100)), "more than 64 bits")


def test_more_restart_points_than_bytes(tmp_path):
    data = struct.pack("<I", (1 << 32) - 1)
    end = writer.block([(b"z", writer.varint(0) + writer.varint(len(data)))])
    refused(index(tmp_path, writer.finish(writer.signed(data), end)), "restart points")


def test_an_index_that_is_none(tmp_path):
    refused(index(tmp_path, b""), "has 0 bytes")
    refused(index(tmp_path, b"\0" * 48), "magic number")
    refused(index(tmp_path, writer.table([])), "no header")
    refused(index(tmp_path, writer.table([(b"b", b""), (b"a", b"")])), "not in order")


# Folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../elsewhere/m", "..", "a/../../elsewhere/m", "link/m"])
def test_a_checkpoint_file_that_leads_out_of_its_folder(tmp_path, name):
    inside, outside = tmp_path / "inside", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    bundle(outside, tensor())
    (inside / "link").symlink_to(outside)
    (inside / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')
    refused(inside, "outside of the folder")


def test_a_data_file_that_is_a_link_to_somewhere_else(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    prefix = bundle(inside, tensor())
    data = inside / "m.data-00000-of-00001"
    data.rename(tmp_path / "secret")
    data.symlink_to(tmp_path / "secret")
    refused(prefix, "outside of the folder")


def test_a_link_to_itself(tmp_path):
    (tmp_path / "m.index").symlink_to("m.index")
    refused(tmp_path, "m.index")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "loop/m"\n')
    refused(tmp_path, str(tmp_path))


def test_a_pipe_instead_of_a_file(tmp_path):
    os.mkfifo(tmp_path / "model.h5")
    refused(tmp_path / "model.h5", "no regular file")
    prefix = bundle(tmp_path, tensor())
    (tmp_path / "m.data-00000-of-00001").unlink()
    os.mkfifo(tmp_path / "m.data-00000-of-00001")
    refused(prefix, "no regular file")


@pytest.mark.parametrize("text", ["", "nonsense", 'model_checkpoint_path: "\\x00"', "a: b"])
def test_a_checkpoint_file_that_names_nothing(tmp_path, text):
    (tmp_path / "checkpoint").write_text(text)
    refused(tmp_path, "names no checkpoint")


def test_what_is_no_saved_model(tmp_path):
    refused(tmp_path, "no file `checkpoint` and no *.index")
    (tmp_path / "notes.txt").write_text("no model at all")
    refused(tmp_path / "notes.txt", "no saved model that is known", ".keras")
    (tmp_path / "old.ckpt").write_bytes(writer.table([]))
    refused(tmp_path / "old.ckpt", "first format (V1)", "tf.train.Saver")
    (tmp_path / "saved_model.pbtxt").write_text("")
    refused(tmp_path, "is text")


# Keras -------------------------------------------------------------------------------------------


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name.replace("_", "."), data)
    return path


def test_a_zip_bomb(tmp_path):
    zeros = b"\0" * (300 << 20)
    bomb = archive(tmp_path / "b.keras", config_json=b"{}", metadata_json=b"{}",
                   model_weights_h5=zeros)  # fmt: skip
    assert bomb.stat().st_size < 1 << 20
    del zeros
    refused(bomb, "zip bomb")


def test_an_archive_that_understates_what_it_holds(tmp_path):
    weights = (OWN / "keras_bilstm" / "model.weights.h5").read_bytes()
    path = archive(tmp_path / "m.keras", config_json=b"{}", metadata_json=b"{}",
                   model_weights_h5=weights)  # fmt: skip
    size = struct.pack("<I", len(weights))
    path.write_bytes(path.read_bytes().replace(size, struct.pack("<I", 1000)))
    refused(path, "m.keras")


def test_members_of_an_archive_are_not_unpacked_by_their_names(tmp_path):
    (tmp_path / "in").mkdir()
    buffer = io.BytesIO((OWN / "keras_bilstm" / "model.keras").read_bytes())
    with zipfile.ZipFile(buffer, "a") as file:
        file.writestr("../outside", b"x")
        file.writestr("/outside", b"x")
    (tmp_path / "in" / "m.keras").write_bytes(buffer.getvalue())
    assert len(importers.read(tmp_path / "in" / "m.keras")) == 30
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "m.keras"]


def test_settings_nested_without_end(tmp_path):
    deep = b'{"config": {"layers": [' * 3000 + b"]}}" * 3000
    weights = (OWN / "keras_bilstm" / "model.weights.h5").read_bytes()
    for config in (deep, b"[1]", b"{", b"\xff", b'{"config": {"layers": [{"config": 3}, 4]}}'):
        path = archive(tmp_path / "m.keras", config_json=config, metadata_json=b"{}",
                       model_weights_h5=weights)  # fmt: skip
        if config.startswith(b'{"config": {"layers": [{"config": 3'):
            assert len(importers.read(path)) == 30
        else:
            refused(path, "m.keras")


def hdf5(path: Path, make) -> Path:
    with h5py.File(path, "w") as file:
        make(file)
    return path


def cycle(file) -> None:
    group = file.create_group("a")
    group["again"] = group


def deep(file) -> None:
    for _ in range(200):
        file = file.create_group("a")


HDF5 = {
    "a group within itself": (cycle, "stands in it twice"),
    "a link to another file": (
        lambda file: file.update({"v": h5py.ExternalLink("secret.h5", "/v")}),
        "link to another place",
    ),
    "a link to nothing": (lambda f: f.update({"v": h5py.SoftLink("/v")}), "link to another place"),
    "an array in another file": (
        lambda file: file.create_dataset("v", (4,), "u1", external="secret.h5"),
        "in another file",
    ),
    "2^60 numbers that were never written": (
        lambda file: file.create_dataset("v", (HUGE,), "f4", chunks=(1024,)),
        "claims shape",
    ),
    "zeros that unpack to 512 MB": (
        lambda file: file.create_dataset(
            "v", (1 << 27,), "f4", chunks=(1 << 20,), compression="gzip", fillvalue=1
        ),
        "claims shape",
    ),
    "groups nested 200 deep": (deep, "nested more than"),
}


@pytest.mark.parametrize("name", HDF5)
def test_an_hdf5_file_with(tmp_path, name):
    make, words = HDF5[name]
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["v"] = np.arange(4)
    refused(hdf5(tmp_path / "m.h5", make), words)


def test_an_hdf5_file_cut_off(tmp_path):
    data = (OWN / "keras_bilstm" / "model.h5").read_bytes()
    (tmp_path / "m.h5").write_bytes(data[: len(data) // 2])
    refused(tmp_path / "m.h5", "m.h5")


def test_a_name_that_would_steer_the_terminal_is_only_a_name(tmp_path):
    name = "\x1b[31mred\x07"
    writer.write(tmp_path / "m", {name: (np.zeros(1, np.float32), "float32")})
    assert list(importers.read(tmp_path / "m")) == [name]


# SavedModel --------------------------------------------------------------------------------------


@pytest.fixture
def saved_model(tmp_path):
    shutil.copytree(OWN / "savedmodel_v1_lstm_basic" / "model", tmp_path / "model")
    return tmp_path / "model"


def test_signatures_are_told_by_name_dtype_and_shape(saved_model):
    cases = json.loads((OWN / "cases.json").read_text())["cases"]
    wanted = next(c["signatures"] for c in cases if c["id"] == "savedmodel_v1_lstm_basic")
    found = importers.read(saved_model).signatures
    assert {
        name: {
            side: {key: [t.name, t.dtype, list(t.shape)] for key, t in getattr(one, side).items()}
            for side in ("inputs", "outputs")
        }
        for name, one in found.items()
    } == wanted


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\x0b", "wire type"), (b"\x12\xff\xff\xff\x7f", "beyond the end"), (b"\x12", "ends within"),
     (b"\x10\x05", "holds a number"), (b"\x12\x03\x2a\x01\x0b", "wire type")],
)  # fmt: skip
def test_a_graph_that_is_none(saved_model, data, words):
    (saved_model / "saved_model.pb").write_bytes(data)
    refused(saved_model, "saved_model.pb", words)


# Packages that are not there ---------------------------------------------------------------------


@pytest.mark.parametrize("package", ["h5py", "safetensors"])
def test_without_its_packages_checkpoints_are_read_and_the_rest_says_what_to_install(
    package, tmp_path, monkeypatch
):
    for module in (package, f"{package}.torch"):
        monkeypatch.setitem(sys.modules, module, None)
    model = importers.recognise(importers.read(LSTM))
    if package == "h5py":
        refused(OWN / "keras_bilstm" / "model.h5", "h5py is missing", "pip install 'unpad[tf]'")
        refused(OWN / "keras_bilstm" / "model.keras", "h5py is missing", "model.keras")
        return
    for use in (model.to_safetensors, importers.load):
        with pytest.raises(importers.ArtefactError, match=r"pip install 'unpad\[tf\]'"):
            use(tmp_path / "m.safetensors")
