"""The benchmarks run as the documentation says, and the promises that one of them checks hold."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *map(str, options), "--no-save"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_ragged.py", "train_custom_cell.py"])
def test_a_benchmark_prints_a_ratio_and_errors_no_larger_than_its_peers(name: str) -> None:
    done = run(name, "--width", 8, "--batches", 3, "--threads", 1, "--seconds", 0)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"[\d.]+x \| ([\d.e+-]+) ([\d.e+-]+) \|", done.stdout)
    assert rows, done.stdout
    for error, peer_error in rows:
        assert float(error) < max(1e-5, 10 * float(peer_error))


@pytest.mark.slow
def test_thousands_of_batches_of_new_lengths_leave_one_trace_and_flat_memory() -> None:
    # The torch engine takes ten times as long for each: a tenth of the calls tells as much there.
    calls = 10_000 if find_spec("unpad._native") else 1_000
    done = run("memory_flat.py", "--calls", calls, "--threads", 1)
    assert done.returncode == 0, done.stdout + done.stderr
