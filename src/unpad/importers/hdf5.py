"""HDF5 files, read by h5py in a process of its own with bounded memory, time and output."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from unpad.importers.artefact import Array
from unpad.importers.dtypes import widen
from unpad.importers.errors import MalformedError
from unpad.importers.files import open_regular, read_range, size_of
from unpad.importers.saved_model import parse_json

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# What unpacks to more than this is no model: weights hardly compress, and Keras doesn't try.
MOST_PER_BYTE = 32
_SPARE = 1 << 24
_MEMORY = 1 << 30  # what Python, NumPy and HDF5 take before any file is open
_SECONDS, _BYTES_PER_SECOND = 60, 10_000_000  # of processor time
_PATIENCE = 10  # times that, by the clock: a busy machine is no fault of the file
_WORKER = Path(__file__).with_name("hdf5_worker.py")
# Neither the caller's folder nor its options may decide what the process imports.
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); del sys.argv[:2]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HDF5_USE_FILE_LOCKING": "FALSE",
    "HDF5_PLUGIN_PRELOAD": "::",  # no filter is loaded from elsewhere
}


@dataclass(frozen=True)
class Contents:
    """What a file holds: arrays with the type they were stored in, attributes that are text."""

    arrays: dict[str, tuple[Array, str]]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    groups: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    left_out: dict[str, str] = field(default_factory=dict[str, str])


def allowance(size: int) -> int:
    """The most bytes that a file of this size may hold unpacked."""
    return MOST_PER_BYTE * size + _SPARE


def read_hdf5(path: Path) -> Contents:
    """Every array of a file. HDF5 has no checksums of its own: a flipped bit of a weight stays."""
    if importlib.util.find_spec("h5py") is None:
        raise MalformedError("h5py is missing", "install it with: pip install 'unpad[tf]'")
    with open_regular(path) as file:
        size = size_of(file)
    output = allowance(size)
    with tempfile.TemporaryFile() as results:
        _run(path, results, memory=_MEMORY + 4 * size + output, output=output, size=size)
        results.seek(0)
        return collect(results)


def _run(path: Path, results: BinaryIO, *, memory: int, output: int, size: int) -> None:
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    limits = [str(memory), str(output), str(seconds)]
    settings = [json.dumps(sys.path), str(_WORKER), str(path.resolve()), *limits]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _START, *settings],
            stdin=subprocess.DEVNULL,
            stdout=results,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_QUIET},
            timeout=_PATIENCE * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MalformedError("HDF5 did not come to an end with it") from error
    check_exit(done.returncode)


def check_exit(code: int) -> None:
    """Refuse the file on which the process broke down, or was ended by the system."""
    if code:
        raise MalformedError(f"HDF5 broke down on it, or took too much for it (exit code {code})")


def collect(results: BinaryIO) -> Contents:
    """What the process wrote. It read a stranger's file, so its output is checked as well."""
    arrays: dict[str, tuple[Array, str]] = {}
    while line := results.readline(1 << 30):
        head = parse_json(line)
        if "error" in head:
            raise MalformedError(head["error"])
        if "attributes" in head:
            return Contents(arrays, head["attributes"], head["groups"], head["left_out"])
        data = bytes(read_range(results, results.tell(), head["bytes"]))
        arrays[head["name"]] = (_array(data, head), head["dtype"])
    raise MalformedError("reading it stopped half-way")


def _array(data: bytes, head: dict[str, Any]) -> Array:
    dtype, shape = head["dtype"], tuple(head["shape"])
    try:
        stored = np.dtype("<u2" if dtype == "bfloat16" else dtype).newbyteorder("<")
    except TypeError as error:
        raise MalformedError(f"{head['name']} has the unknown dtype {dtype}") from error
    if len(data) != math.prod(shape) * stored.itemsize:
        raise MalformedError("reading it stopped half-way")
    if dtype == "bfloat16":
        return widen(np.frombuffer(data, np.uint8), dtype).reshape(shape)
    return np.frombuffer(bytearray(data), stored).reshape(shape)
