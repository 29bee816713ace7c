"""Thousands of broken files of every kind: the right values or our own error, never anything else.

Where a format has checksums, what is read must be what was saved. HDF5 files have none: there a
flipped bit of a weight is another weight, and what counts is that nothing worse comes of it.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from importers import writer
from importers.artefacts import OWN, path_of
from importers.corruption import corrupt
from importers.forking import SECONDS
from unpad import importers
from unpad.importers import hdf5
from unpad.importers.table import read_table

pytest.importorskip("h5py")
# Seconds for each artefact. UNPAD_FUZZ_SECONDS=120 tries thousands more.
LONG = float(os.environ.get("UNPAD_FUZZ_SECONDS", "12"))
TIMES = [1.5, pytest.param(LONG, marks=pytest.mark.slow)]
LEAST = 60  # tries, on however slow a machine
BUNDLES = {
    "tf1_lstm_classifier": "model.ckpt-20",
    "tf1_gru_partitioned_scoped": "model.ckpt-20",
    "keras_bilstm/tf_checkpoint": "ckpt",
    "keras_bilstm/saved_model/variables": "variables",
}
HDF5 = [
    "keras_bilstm/model.h5", "keras_bilstm/model.weights.h5", "keras_bilstm/weights_only.h5",
    "keras_gru_reset_after/model.h5", "keras3_bilstm_gru/model.h5",
    "keras3_bilstm_gru/model.weights.h5",
]  # fmt: skip
ARCHIVES = ["keras_bilstm", "keras_gru_reset_after", "keras3_bilstm_gru"]
MOST_SECONDS = 5


def tries(seconds: float) -> Iterator[int]:
    """Numbers, for that long; `pytest -s` shows how many there were."""
    start, done = time.monotonic(), 0
    while done < LEAST or time.monotonic() - start < seconds:
        yield done
        done += 1
    print(f"{done} files")


def attempt(path: Path) -> importers.Artefact | None:
    """Read and recognise, in bounded time; None where our own error says no."""
    start, found, said = time.process_time(), None, str(path)
    try:
        found = importers.read(path)
        importers.recognise(found).build()
    except importers.ArtefactError as error:
        found, said = None, str(error)
    assert time.process_time() - start < MOST_SECONDS
    assert str(path) in said or path.parent.name in said
    return found


def size_of(found: importers.Artefact) -> int:
    return sum(variable.value.nbytes for variable in found.variables)


def same(found: importers.Artefact, good: importers.Artefact) -> bool:
    return list(found) == list(good) and all(
        found[name].value.dtype == good[name].value.dtype
        and found[name].shape == good[name].shape
        and found[name].value.tobytes() == good[name].value.tobytes()
        for name in good
    )


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize("case", BUNDLES)
def test_a_broken_checkpoint_is_refused_or_read_right(case, seconds, tmp_path, seed):
    chance, prefix = random.Random(seed), BUNDLES[case]
    files = {p: p.read_bytes() for p in (OWN / case).glob(f"{prefix}.*") if p.suffix != ".meta"}
    good, counts = importers.read(OWN / case / prefix), Counter()
    for name, data in files.items():
        (tmp_path / name.name).write_bytes(data)
    for _ in tries(seconds):
        name = chance.choice(sorted(files))
        (tmp_path / name.name).write_bytes(corrupt(files[name], chance))
        found = attempt(tmp_path / prefix)
        assert found is None or same(found, good)
        counts[found is None] += 1
        (tmp_path / name.name).write_bytes(files[name])
    assert counts[True] > counts[False]


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize("case", BUNDLES)
def test_a_forged_index_whose_checksums_are_right(case, seconds, tmp_path, seed):
    """Broken behind the checksums: entries, keys and blocks, signed again."""
    chance, prefix = random.Random(seed), BUNDLES[case]
    shutil.copytree(OWN / case, tmp_path / "m")
    index = tmp_path / "m" / f"{prefix}.index"
    entries = list(read_table(index.read_bytes()).items())
    whole = sum(path.stat().st_size for path in index.parent.glob(f"{prefix}.data-*"))
    counts = Counter()
    for _ in tries(seconds):
        forged = list(entries)
        for _ in range(chance.choice((1, 1, 3))):
            place = chance.randrange(len(forged))
            key, value = forged[place]
            if chance.random() < 0.2:
                forged[place] = (corrupt(key, chance), value)
            else:
                forged[place] = (key, corrupt(value, chance))
        if chance.random() < 0.3:
            block = corrupt(writer.block(forged), chance)
            ends = writer.block([(b"z", writer.varint(0) + writer.varint(len(block)))])
            index.write_bytes(writer.finish(writer.signed(block), ends))
        else:
            index.write_bytes(writer.table(sorted(forged)))
        found = attempt(tmp_path / "m" / prefix)
        # Strings and bfloat16 take more room here than in the file.
        assert found is None or size_of(found) <= 8 * whole + 1024
        counts[found is None] += 1
    assert counts[False] > 0
    assert counts[True] > 0


@pytest.mark.parametrize("seconds", TIMES)
def test_a_broken_saved_model_keeps_its_variables_or_is_refused(seconds, tmp_path, seed):
    chance, source = random.Random(seed), OWN / "savedmodel_v1_lstm_basic" / "model"
    shutil.copytree(source, tmp_path / "model")
    good, path = importers.read(source), tmp_path / "model" / "saved_model.pb"
    data = path.read_bytes()
    # The signatures stand at the end, after the graph; a break in the graph is skipped over.
    start, counts = len(data) - 2000, Counter()
    for _ in tries(seconds):
        path.write_bytes(data[:start] + corrupt(data[start:], chance))
        found = attempt(tmp_path / "model")
        assert found is None or same(found, good)
        counts[found is None] += 1
    assert counts[False] > 0
    assert counts[True] > 0


# HDF5 --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forks():
    """The process that forks a reader for each file."""
    script = Path(__file__).with_name("forking.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(hdf5._WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **hdf5._QUIET},
        text=True,
    )
    yield process
    process.stdin.close()
    process.stdout.close()
    process.wait(60)


@pytest.fixture
def forked(monkeypatch, forks, tmp_path):
    """Read HDF5 in forks. The codes with which they ended are counted."""
    codes = Counter()

    def run(path, results, *, memory, output, size):
        request = [str(path), str(tmp_path / "results"), memory, output]
        forks.stdin.write(json.dumps(request) + "\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        codes[code] += 1
        results.write((tmp_path / "results").read_bytes())
        hdf5.check_exit(code)

    monkeypatch.setattr(hdf5, "_run", run)
    return codes


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize("case", HDF5)
@pytest.mark.usefixtures("forked")
def test_a_broken_hdf5_file_does_no_harm(case, seconds, tmp_path, seed):
    assert SECONDS > MOST_SECONDS  # a fork that never ends would show
    chance, data, counts = random.Random(seed), (OWN / case).read_bytes(), Counter()
    path = tmp_path / Path(case).name
    for _ in tries(seconds):
        path.write_bytes(corrupt(data, chance))
        found = attempt(path)
        assert found is None or size_of(found) <= hdf5.allowance(len(data) + 10_000)
        counts[found is None] += 1
    assert counts[False] > 0
    assert counts[True] > 0


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize("case", ARCHIVES)
@pytest.mark.usefixtures("forked")
def test_a_broken_archive_is_refused_or_read_right(case, seconds, tmp_path, seed):
    chance, data = random.Random(seed), path_of(case, "model.keras").read_bytes()
    path, counts = tmp_path / "model.keras", Counter()
    path.write_bytes(data)
    good = attempt(path)
    for _ in tries(seconds):
        path.write_bytes(corrupt(data, chance))
        found = attempt(path)
        assert found is None or same(found, good)
        counts[found is None] += 1
    assert counts[True] > counts[False]


@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize("case", ARCHIVES)
@pytest.mark.usefixtures("forked")
def test_a_forged_archive_whose_checksums_are_right(case, seconds, tmp_path, seed):
    chance, path = random.Random(seed), tmp_path / "model.keras"
    with zipfile.ZipFile(path_of(case, "model.keras")) as file:
        members = {name: file.read(name) for name in file.namelist()}
    for _ in tries(seconds):
        name = chance.choice(sorted(members))
        forged = members | {name: corrupt(members[name], chance)}
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            for key, value in forged.items():
                file.writestr(key, value)
        path.write_bytes(buffer.getvalue())
        found = attempt(path)
        assert found is None or size_of(found) <= hdf5.allowance(len(buffer.getvalue()))


@pytest.mark.usefixtures("forked")
def test_the_forks_read_as_the_process_of_its_own_does(tmp_path, monkeypatch):
    path = path_of("keras_bilstm", "model.h5")
    forked = importers.read(path)
    monkeypatch.undo()
    assert same(forked, importers.read(path))
    assert np.any(forked.variables[0].value)


def test_a_crash_within_hdf5_is_our_error(tmp_path, monkeypatch):
    """The process ends as if the library had: by a signal, by its limits, by an odd exit."""
    path = path_of("keras_bilstm", "model.h5")
    for end in ("os.abort()", "bytearray(1 << 40)", "os._exit(3)", "exit()"):
        worker = tmp_path / "worker.py"
        worker.write_text(f"import os\n{end}\n")
        monkeypatch.setattr(hdf5, "_WORKER", worker)
        with pytest.raises(importers.ArtefactError, match=r"model\.h5: (HDF5 broke|reading it)"):
            importers.read(path)
