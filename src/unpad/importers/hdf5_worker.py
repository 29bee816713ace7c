"""Reads an HDF5 file in a process of its own, and writes what is in it in a plain form.

The HDF5 library is written in C and trusts its files: one made to harm can crash it, keep it busy
for ever or make it allocate anything. Here that ends this process alone, whose memory and output
the system limits. Run by `unpad.importers.hdf5`; imports nothing of unpad.

The output is a line of JSON for each array, followed by its bytes, and a last line with the rest.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

MOST_OBJECTS = 1_000_000
MOST_DEPTH = 64


class RefusalError(Exception):
    """What is wrong with the file, in words."""


def limit(memory: int, output: int, seconds: int) -> None:
    """Let the system end this process where it takes more."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: output,
        resource.RLIMIT_CPU: seconds,
    }
    for kind, most in wanted.items():
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def dump(path: str, out: BinaryIO, most: int) -> None:
    """Write every array of a file, at most ``most`` bytes of them, and the names Keras keeps."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            rest = {"attributes": _texts(file), "groups": {}, "left_out": {}}
            for name, found in _walk(file, "", 0, set(), h5py):
                if isinstance(found, h5py.Dataset):
                    most -= _write(name, found, out, most, rest["left_out"])
                elif attributes := _texts(found):
                    rest["groups"][name] = attributes
            _line(out, rest)
    except RefusalError as error:
        _line(out, {"error": str(error)})
    except Exception as error:
        # h5py raises nearly any kind for a damaged file; each means that it cannot be read.
        _line(out, {"error": f"HDF5 cannot read it ({' '.join(str(error).split())[:200]})"})


def _line(out: BinaryIO, data: dict[str, Any]) -> None:
    out.write(json.dumps(data).encode() + b"\n")


def _walk(
    group: Any, above: str, depth: int, seen: set[Any], h5py: Any
) -> Iterator[tuple[str, Any]]:
    """All groups and arrays by hard links, each once: no cycle, and no way out of the file."""
    if depth > MOST_DEPTH:
        raise RefusalError(f"its groups are nested more than {MOST_DEPTH} deep")
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise RefusalError(f"{above}{name} is a link to another place, which is not followed")
        found = group[name]
        info = h5py.h5o.get_info(found.id)
        if (info.fileno, info.addr) in seen:
            raise RefusalError(f"{above}{name} stands in it twice")
        seen.add((info.fileno, info.addr))
        if len(seen) > MOST_OBJECTS:
            raise RefusalError(f"it has more than {MOST_OBJECTS:,} groups and arrays")
        yield above + name, found
        if isinstance(found, h5py.Group):
            yield from _walk(found, f"{above}{name}/", depth + 1, seen, h5py)


def _write(name: str, found: Any, out: BinaryIO, most: int, left_out: dict[str, str]) -> int:
    """Write an array and return its size; what holds no plain numbers is named in ``left_out``."""
    size, stored = int(found.size or 0), found.dtype
    if found.external or found.is_virtual:
        raise RefusalError(f"{name} lies in another file, which is not opened")
    dtype = stored.name if stored.kind in "biufc" else None
    if stored.kind == "V" and stored.itemsize == 2 and _text(found.attrs.get("dtype")):
        dtype = _text(found.attrs["dtype"])
    if dtype is None or found.shape is None:
        left_out[name] = f"its dtype {stored} holds no numbers"
        return 0
    held = found.id.get_storage_size()
    if size * stored.itemsize > most or (found.chunks is None and held < size * stored.itemsize):
        raise RefusalError(
            f"{name} claims shape {list(found.shape)}, but the file holds {held} bytes"
        )
    value = found[()] if size else np.zeros(found.shape, stored)
    value = np.ascontiguousarray(value)
    if stored.kind != "V":
        value = value.astype(stored.newbyteorder("<"), copy=False)
    data = value.tobytes()
    _line(out, {"name": name, "dtype": dtype, "shape": found.shape, "bytes": len(data)})
    out.write(data)
    return len(data)


def _texts(found: Any) -> dict[str, Any]:
    """The attributes that are strings or lists of strings."""
    texts = {}
    for key in found.attrs:
        value = found.attrs[key]
        if _text(value) is not None:
            texts[key] = _text(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "SO":
            texts[key] = [_text(item) for item in value.reshape(-1)]
    return texts


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


if __name__ == "__main__":
    file, (memory, output, seconds) = sys.argv[1], map(int, sys.argv[2:])
    importlib.import_module("h5py")  # a missing package is told before the limits can hide it
    limit(memory, output + (1 << 24), seconds)
    dump(file, sys.stdout.buffer, output)
