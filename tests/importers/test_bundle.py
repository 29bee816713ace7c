"""Tensor bundles of every kind come back as they were written."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from importers import writer
from unpad import importers
from unpad.importers.crc32c import crc32c
from unpad.importers.slices import slice_key

NARROW = [name for name in writer.NUMBERS if name == "bfloat16" or name.startswith("float8")]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 64, 65, 255, 1000, 4097])
def test_the_checksum_is_that_of_a_loop_over_the_bytes(size):
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == writer.crc32c(data)
    assert crc32c(data[7:], crc32c(data[:7])) == writer.crc32c(data)


def test_the_checksum_goes_on_from_block_to_block():
    data = np.random.default_rng(0).bytes(1 << 20)
    for end in (1, 5):
        long = data + data[: (1 << 20) - end]
        parts = crc32c(long[1 << 20 :], crc32c(long[: 1 << 20]))
        assert crc32c(long) == parts == crc32c(long[999:], crc32c(long[:999]))


def values(dtype: str):
    if dtype == "string":
        return SHAPES.flatmap(
            lambda shape: st.lists(
                st.binary(max_size=9), min_size=math.prod(shape), max_size=math.prod(shape)
            ).map(lambda items: boxed(items, shape))
        )
    return arrays.arrays("float32" if dtype in NARROW else dtype, SHAPES)


def boxed(items: list[bytes], shape: tuple[int, ...]) -> np.ndarray:
    value = np.empty(len(items), object)
    value[:] = items
    return value.reshape(shape)


@given(st.data(), st.integers(1, 3))
def test_every_dtype_and_shape_comes_back_to_the_bit(tmp_path_factory, data, shards):
    names = data.draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, unique=True))
    names = [name for name in names if name[0] != "\0"]
    kinds = [data.draw(st.sampled_from([*writer.NUMBERS, "string"])) for _ in names]
    tensors = {
        name: (data.draw(values(kind)), kind) for name, kind in zip(names, kinds, strict=True)
    }
    prefix = tmp_path_factory.mktemp("bundle") / "model.ckpt-1"
    writer.write(prefix, tensors, shards=shards)
    found = importers.read(prefix)
    assert set(found) == set(tensors)
    for name, (value, kind) in tensors.items():
        variable = found[name]
        assert (variable.dtype, variable.shape) == (kind, value.shape)
        if kind == "string":
            assert variable.value.tolist() == value.tolist()
        elif kind in NARROW:
            assert writer.octets(variable.value, kind) == writer.octets(value, kind)
        else:
            assert variable.value.dtype == value.dtype
            assert variable.value.tobytes() == value.tobytes()


@given(st.data())
def test_a_partitioned_variable_is_whole_again(tmp_path_factory, data):
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6))
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    cuts = [
        sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape
    ]
    sides = [list(itertools.pairwise(cut)) for cut in cuts]
    entries, stored, slices = [(b"", writer.header(2))], [b"", b""], []
    for turn, ranges in enumerate(itertools.product(*sides)):
        part = value[tuple(slice(a, b) for a, b in ranges)]
        extents = tuple(
            (0, -1) if (a, b) == (0, size) else (a, b - a)
            for (a, b), size in zip(ranges, shape, strict=True)
        )
        octets, shard = part.tobytes(), turn % 2
        place = {"shard": shard, "offset": len(stored[shard]), "size": len(octets)}
        crc = writer.masked(octets)
        entries.append((slice_key("v", extents), writer.entry(1, part.shape, crc=crc, **place)))
        slices.append(writer.slice_of(extents))
        stored[shard] += octets
    entries.append((b"v", writer.entry(1, shape, slices=slices)))
    prefix = tmp_path_factory.mktemp("bundle") / "model"
    writer.save(prefix, entries, stored)
    assert np.array_equal(importers.read(prefix)["v"].value, value)


@pytest.mark.parametrize(
    ("value", "octets"),
    # The lengths of OrderedCode's signed numbers: 6 bits in one byte, 13 in two, 20 in three.
    [(0, "80"), (63, "bf"), (64, "c040"), (8191, "dfff"), (8192, "e02000"), (-1, "7f"),
     (-64, "40"), (-65, "3fbf"), (1 << 40, "fd0000000000")],
)  # fmt: skip
def test_numbers_in_keys_of_slices_sort_as_numbers_do(value, octets):
    assert slice_key("v", ((value, 0),)).hex() == f"007600010101{octets}80"


def test_a_folder_gives_its_newest_checkpoint(tmp_path):
    for number in (1, 2):
        value = np.full(2, number, np.float32)
        writer.write(tmp_path / f"m-{number}", {"v": (value, "float32")})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "m-1"\n')
    assert importers.read(tmp_path)["v"].value.tolist() == [1, 1]
    # TensorFlow writes the absolute path on the machine that trained; the file is here.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/train/run/m-2"\n')
    assert importers.read(tmp_path)["v"].value.tolist() == [2, 2]
    for name in ("m-1", "m-1.index", "m-1.data-00000-of-00001"):
        assert importers.read(tmp_path / name)["v"].value.tolist() == [1, 1]


def test_a_dtype_without_numbers_is_left_out_with_the_reason(tmp_path):
    data = b"abcd1234"
    entries = [
        (b"", writer.header()),
        (b"table", writer.entry(21, (1,), size=4, crc=writer.masked(data[:4]))),
        (b"v", writer.entry(1, (1,), offset=4, size=4, crc=writer.masked(data[4:]))),
    ]
    writer.save(tmp_path / "m", entries, [data])
    found = importers.read(tmp_path / "m")
    assert list(found) == ["v"]
    assert found.left_out == {"table": "its dtype variant holds no numbers"}


@pytest.mark.parametrize("name", ["tower/kernel/part_0/Adam", "tower/kernel"])
def test_an_optimizers_slot_of_one_part_alone_costs_no_other_variable(tmp_path, name):
    """TensorFlow 2.15 writes these for partitioned variables in a scope, and cannot read them."""
    half, extents = np.zeros(2, np.float32).tobytes(), ((0, 2),)
    place = {"size": 8, "crc": writer.masked(half)}
    whole = writer.entry(1, (4,), slices=[writer.slice_of(extents)])
    bias = writer.entry(1, (2,), offset=8, **place | {"size": 8})
    part = writer.entry(1, (2,), **place)
    entries = [(slice_key(name, extents), part), (b"bias", bias), (name.encode(), whole)]
    writer.save(tmp_path / "m", [(b"", writer.header()), *entries], [half + half])
    if name == "tower/kernel":
        with pytest.raises(importers.ArtefactError, match="not as large as it is"):
            importers.read(tmp_path / "m")
        return
    found = importers.read(tmp_path / "m")
    assert list(found) == ["bias"]
    assert "only a part of it" in found.left_out[name]
    assert importers.recognise(found).bookkeeping == [name]
