"""TensorFlow's checkpoints ("tensor bundles"): PREFIX.index and PREFIX.data-0000i-of-0000n.

Every checksum is verified, and every byte of the data files belongs to one tensor at most, so that
memory follows the size of the files whatever the index claims.

Source: tensorflow/core/protobuf/tensor_bundle.proto and core/util/tensor_bundle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from unpad.importers import dtypes
from unpad.importers.artefact import Array, Variable
from unpad.importers.crc32c import crc32c, mask
from unpad.importers.errors import ArtefactError, MalformedError, naming
from unpad.importers.files import inside, open_regular, read_range, read_whole
from unpad.importers.hints import folder_without
from unpad.importers.places import BOOKKEEPING
from unpad.importers.slices import Extents, extents_in, fill, slice_key
from unpad.importers.table import read_table
from unpad.importers.wire import VARINT, fields, message_in, messages, number_in, signed, text

_MOST_DIMENSIONS = 32
_MOST_INDEX_BYTES = 1 << 31


@dataclass(frozen=True)
class Entry:
    """Where a tensor's bytes lie, and what they are."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[Extents, ...]


def read_bundle(prefix: Path) -> tuple[list[Variable], dict[str, str]]:
    """The variables of a checkpoint in the order of their names, and what was left out and why.

    A partitioned variable is one variable. Strings are an array of ``bytes`` objects.
    """
    index = prefix.with_name(prefix.name + ".index")
    with naming(index):
        table = read_table(read_whole(inside(prefix.parent, index), _MOST_INDEX_BYTES))
        shards = _header(table.pop(b"", None))
        entries = {key: _entry(value) for key, value in table.items()}
        whole = {text(key): entry for key, entry in entries.items() if key[:1] != b"\0"}
        parts = {key: entry for key, entry in entries.items() if key[:1] == b"\0"}
        left_out = {
            name: f"its dtype {dtypes.name_of(entry.dtype)} holds no numbers"
            for name, entry in whole.items()
            if not dtypes.is_readable(entry.dtype)
        }
        left_out |= {
            name: "its slices are only a part of it, as TensorFlow writes optimizers' slots of "
            "partitioned variables at times"
            for name, entry in whole.items()
            if BOOKKEEPING.search(name) and _lacks_parts(name, entry, parts)
        }
        _check_owners(whole, parts)
        _check_ranges(entries.values(), shards)
    with ExitStack() as stack:
        data = _Data(prefix, shards, stack)
        found = list[Variable]()
        for name, entry in whole.items():
            if name not in left_out:
                value = _value(name, entry, parts, data)
                found.append(Variable(name, value, dtypes.name_of(entry.dtype)))
    return found, left_out


class _Data:
    """The data files, each opened when its first tensor is read."""

    def __init__(self, prefix: Path, shards: int, stack: ExitStack) -> None:
        self.prefix, self.shards, self.stack = prefix, shards, stack
        self.files: dict[int, BinaryIO] = {}

    def path(self, shard: int) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self.shards:05d}")

    def read(self, name: str, entry: Entry) -> Array:
        """A tensor's array, with its checksum verified."""
        path = self.path(entry.shard)
        with naming(path):
            if entry.shard not in self.files:
                if not path.exists():
                    problem = f"it is missing, and {name!r} lies in it"
                    raise MalformedError(problem, "copy all files of the checkpoint")
                inside(self.prefix.parent, path)
                self.files[entry.shard] = self.stack.enter_context(open_regular(path))
            data = read_range(self.files[entry.shard], entry.offset, entry.size)
            try:
                return _decode(data, entry)
            except MalformedError as error:
                raise MalformedError(f"{name!r}: {error.problem}", error.remedy) from error


def _decode(data: bytearray, entry: Entry) -> Array:
    if entry.dtype == dtypes.STRING:
        found, crc = dtypes.strings(data, entry.shape)
    else:
        wanted = math.prod(entry.shape) * dtypes.item_size(entry.dtype)
        if wanted != len(data):
            raise MalformedError(f"shape {list(entry.shape)} wants {wanted} bytes, not {len(data)}")
        crc = crc32c(data)
        found = dtypes.numbers(data, entry.dtype, entry.shape)
    if mask(crc) != entry.crc:
        raise MalformedError("the checksum of its values is wrong")
    return found


def _value(name: str, entry: Entry, parts: dict[bytes, Entry], data: _Data) -> Array:
    if not entry.slices:
        return data.read(name, entry)
    with naming(data.prefix):
        read = [
            (extents, data.read(name, parts[slice_key(name, extents)])) for extents in entry.slices
        ]
        return fill(entry.shape, read, name)


def _lacks_parts(name: str, entry: Entry, parts: dict[bytes, Entry]) -> bool:
    """Whether the slices that an entry names are fewer numbers than its shape wants."""
    found = [parts.get(slice_key(name, extents)) for extents in entry.slices]
    sizes = [math.prod(part.shape) for part in found if part is not None]
    return bool(found) and len(sizes) == len(found) and sum(sizes) < math.prod(entry.shape)


def _header(value: bytes | None) -> int:
    """The number of data files."""
    if value is None:
        raise MalformedError("it has no header")
    if number_in(value, 2):
        remedy = "save the checkpoint on a little-endian machine"
        raise MalformedError("its numbers are big-endian, which is not supported", remedy)
    return number_in(value, 1)


def _entry(value: bytes) -> Entry:
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    for number, kind, found in fields(value):
        if number in numbers:
            if not isinstance(found, int):
                raise MalformedError(f"field {number} of an entry holds no number")
            numbers[number] = signed(found) if kind == VARINT else found
    dtype, shard, offset, size, crc = numbers.values()
    if min(numbers.values()) < 0:
        raise MalformedError("an entry has a negative number")
    shape = _shape(message_in(value, 2))
    slices = tuple(extents_in(part, len(shape)) for part in messages(value, 7))
    return Entry(dtype, shape, shard, offset, size, crc, slices)


def _shape(message: memoryview) -> tuple[int, ...]:
    sizes = tuple(signed(number_in(dimension, 1)) for dimension in messages(message, 2))
    if number_in(message, 3) or len(sizes) > _MOST_DIMENSIONS:
        raise MalformedError(f"a tensor has no known shape, or over {_MOST_DIMENSIONS} dimensions")
    # Of an array without elements no byte bounds the sizes, and NumPy cannot make every one.
    if min(sizes, default=0) < 0 or math.prod(filter(None, sizes)) >= 1 << 48:
        raise MalformedError(f"a tensor has the impossible shape {list(sizes)}")
    return sizes


def _check_owners(whole: dict[str, Entry], parts: dict[bytes, Entry]) -> None:
    """Each slice belongs to one variable, is there, and fits it."""
    owned = set[bytes]()
    for name, entry in whole.items():
        for extents in entry.slices:
            key = slice_key(name, extents)
            part = parts.get(key)
            if part is None or key in owned:
                raise MalformedError(f"a slice of {name!r} is missing, or named twice")
            if part.dtype != entry.dtype or part.slices:
                raise MalformedError(f"a slice of {name!r} is not of its kind")
            owned.add(key)
    if len(owned) != len(parts):
        raise MalformedError("it holds slices that belong to no variable")


def _check_ranges(entries: Iterable[Entry], shards: int) -> None:
    """No two tensors share a byte: else a small file could stand for any number of large ones."""
    end, last = 0, -1
    taken = [(e.shard, e.offset, e.size) for e in entries if not e.slices and e.size]
    for shard, offset, size in sorted(taken):
        if shard >= shards:
            raise MalformedError(f"a tensor lies in data file {shard}, and there are {shards}")
        if shard == last and offset < end:
            raise MalformedError("two of its tensors overlap in the data file")
        end, last = offset + size, shard


def newest_prefix(folder: Path) -> Path:
    """The prefix that a folder's file ``checkpoint`` names, or that of its only index.

    A name that leads outside of the folder is refused. Of an absolute one (of the machine that
    trained) only the last part counts, and it must be in this folder.
    """
    state = folder / "checkpoint"
    if state.exists():
        with naming(state):
            name = _named(read_whole(inside(folder, state), 1 << 20))
            prefix = folder / (Path(name).name if Path(name).is_absolute() else name)
            return inside(folder, prefix)
    found = sorted(folder.glob("*.index"))
    if not found:
        raise ArtefactError(
            folder, "it has no file `checkpoint` and no *.index", folder_without(folder)
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        remedy = f"give the prefix of one of them, such as {found[-1].with_suffix('')}"
        raise ArtefactError(folder, f"it has no file `checkpoint` but several: {names}", remedy)
    return found[0].with_suffix("")


def _named(data: bytes) -> str:
    """The value of ``model_checkpoint_path`` in a text protocol buffer."""
    for line in data.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        value = value.strip()
        if key.strip() == "model_checkpoint_path" and len(value) > 2 and value[0] == value[-1]:
            name = value[1:-1]
            if name.isprintable() and "\\" not in name:
                return name
    remedy = "give the prefix of the checkpoint itself"
    raise MalformedError("it names no checkpoint in plain letters", remedy)
