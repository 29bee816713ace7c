"""The benchmarks run as the documentation says, and the promises that one of them checks hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PEERS = BENCHMARKS.parent / ".venv-peers"
SMALL = ("--width", 8, "--seconds", 0)
TINY = (*SMALL, "--batches", 3, "--threads", 1)
# Everything that compares gradients with float64, at a size that takes seconds.
COMPARISONS = {
    "train_ragged.py": TINY,
    "train_custom_cell.py": (*TINY, "--no-compile"),
    "train_lengths.py": (*TINY, "--lengths", "uniform 10-100", "one of 1,000, others 5-15"),
    "train_sizes.py": ("--seconds", 0, "--batches", 3, "--threads", 1, "--widths", 8, "--small", 2),
    "user_cells.py": TINY,
    "streaming.py": ("--seconds", 0, "--widths", 8),
    "precision.py": ("--seconds", 0, "--batches", 3, "--threads", 1, "--widths", 8),
    "large_vocabulary.py": (
        *("--seconds", 0, "--threads", 1, "--vocabularies", 900, "--batches", 4, "--steps", 30),
    ),
    "batch_one.py": (*SMALL, "--threads", 1, "--steps", 20),
}


def run(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *map(str, options), "--no-save"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def check_errors(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    """Ours and the peer's, of every row that was printed: ours is float32's, or as the peer's."""
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r" ([\d.]+e[+-]\d+) ([\d.]+e[+-]\d+) \|", done.stdout)
    for error, peer_error in rows:
        assert float(error) < max(1e-5, 10 * float(peer_error))
        assert float(peer_error) < max(1e-5, 10 * float(error))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARISONS)
def test_a_benchmark_prints_a_ratio_and_errors_no_larger_than_its_peers(name: str) -> None:
    done = run(name, *COMPARISONS[name])
    rows = check_errors(done)
    assert rows, done.stdout
    assert len(re.findall(r"[\d.]+x ", done.stdout)) >= len(rows)
    assert re.search(r"cores.*; torch [\d.]+", done.stdout), "the machine is named"


@pytest.mark.slow
def test_the_likeliest_word_is_the_arg_max_in_every_case() -> None:
    small = ("--vocabularies", 900, "--scales", 4, "--threads", 1, "--seconds", 0, "--cases", 500)
    done = run("likeliest_word.py", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "500 of 500 equal" in done.stdout
    assert re.search(r"ms +[\d.]+x", done.stdout)


@pytest.mark.slow
def test_lean_memory_is_told_as_a_share_of_the_fast_ways() -> None:
    sizes = ("--steps", 4000, "--batch", 4, "--width", 32, "--threads", 1, "--seconds", 0)
    done = run("memory_lean.py", *sizes)
    assert check_errors(done), done.stdout
    (share,) = re.findall(r"MB, ([\d.]+)%", done.stdout)
    assert 0 < float(share) < 60, done.stdout


@pytest.mark.slow
def test_the_time_a_token_is_told_for_each_length() -> None:
    done = run("sequence_length.py", *SMALL, "--steps", 2, 20, "--tokens", 40, "--threads", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [int(steps) for steps in re.findall(r"^T +(\d+)", done.stdout, re.M)] == [2, 20]


@pytest.mark.slow
def test_every_overhead_has_its_row() -> None:
    small = ("--batch", 2, "--steps", 20, "--repeats", 1, "--threads", 1)
    done = run("overheads.py", *SMALL, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("dropout", "zoneout", "denormals, LSTM", "right after", "two processes", "import"):
        assert part in done.stdout
    assert len(re.findall(r"^trace of \w+ +\d", done.stdout, re.M)) == 4


@pytest.mark.slow
def test_thousands_of_batches_of_new_lengths_leave_one_trace_and_flat_memory() -> None:
    # The torch engine takes ten times as long for each: a tenth of the calls tells as much there.
    calls = 10_000 if find_spec("unpad._native") else 1_000
    done = run("memory_flat.py", "--calls", calls, "--threads", 1)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_step_is_taken_apart_into_parts_that_add_up() -> None:
    pytest.importorskip("unpad._native")
    sizes = ("--widths", 8, "--batches", 3, "--threads", 1, "--seconds", 0)
    done = run("where_time_goes.py", *sizes)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if " thr | step " in line]
    assert len(rows) == 7  # LSTM 8, GRU, RNN and three of it 128, and each with one sequence
    for row in rows:
        part = {
            name: float(number) for name, number in re.findall(r"([a-z][a-z, ]*?) ([-\d.]+)", row)
        }
        whole = part["neither"] + part["products"] + part["else"] - part["twice"]
        assert part["at the peak"] <= whole + 0.01, row
        assert 0 < part["neither"] < whole, row
        assert 0 < part["outside"] < part["step"], row


def test_a_bar_says_how_many_rows_meet_it_and_what_the_others_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bars

    rows = [
        {"ratio": 1.5, "share of peak": 0.6, "cell": "A"},
        {"ratio": 3.0, "share of peak": 0.7, "cell": "A"},
        {"ratio": 0.5, "share of peak": 0.7, "cell": "B"},
    ]
    data = {"machine": {"peak GF/s a core": 100.4}, "rows": rows}
    bar = bars.Bar(
        "A against a peer", "≥ 2×", "question", bars.rows_with(bars.ratio, cell="A"), "reason"
    )
    found = "A against a peer", "≥ 2×", "1.50 to 3.00×", "met in 1 of 2", "100"
    nothing = ["", "not measured", ""]
    assert bar.line(data, None) == [*found, "asks for 80% of the peak; reason", *nothing]
    assert bar.line(None, data) == [*found[:2], *nothing, "", *found[2:]]
    assert bar.line({**data, "rows": []}, None)[2:5] == nothing
    most = bars.Bar("B", "≤ 150 ms", "question", bars.rows_with(bars.ratio, cell="B"), "reason")
    assert most.line(data, None) == ["B", "≤ 150 ms", "0.5 ms", "met", "100", "", *nothing]


def test_what_another_machine_gave_is_kept_beside_the_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measure

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(measure, "ELSEWHERE", tmp_path / "elsewhere")
    for peak in (100.0, 110.0, 240.0, 230.0):
        monkeypatch.setattr(measure, "machine", lambda peak=peak: {"peak GF/s a core": peak})
        measure.save("question", [{"ratio": peak}])
    rows = [json.loads(p.read_text())["rows"] for p in sorted(tmp_path.rglob("*.json"))]
    assert rows == [[{"ratio": 110.0}], [{"ratio": 230.0}]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "peers"),
    [
        # static_rnn, which builds a graph of every step for a minute, is left to make bench-peers.
        ("tensorflow", ["dynamic_rnn", "Keras masked", "Keras ragged"]),
        ("jax", ["jax scan", "jax by hand"]),
    ],
)
def test_another_framework_computes_the_same_gradients(environment: str, peers: list[str]) -> None:
    if not (PEERS / environment / "installed.txt").exists():
        pytest.skip(f"{environment} is not installed: make bench-peers")
    spread = ("--spreads", "uniform 10-100")
    done = run("train_peers.py", *SMALL, "--batch", 3, "--threads", 1, *spread, "--peers", *peers)
    check_errors(done)
    for peer in peers:
        assert re.search(rf"{peer} +[\d.]+ ms", done.stdout), done.stdout


@pytest.mark.slow
def test_onnx_runtime_computes_the_same_states() -> None:
    if not (PEERS / "onnxruntime" / "installed.txt").exists():
        pytest.skip("onnxruntime is not installed: make bench-peers")
    assert len(check_errors(run("forward_peers.py", *TINY))) == 3


@pytest.mark.slow
def test_a_peer_that_is_not_installed_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNPAD_PEERS", str(tmp_path))
    (tmp_path / "onnxruntime.failed.txt").write_text("ERROR: no wheel for this Python\n")
    done = run("forward_peers.py", *TINY, "--cells", "RNN")
    assert done.returncode == 0, done.stderr
    assert "left out, onnxruntime: not installed: ERROR: no wheel" in done.stdout
    assert len(check_errors(done)) == 1


def test_real_lengths_are_those_that_their_table_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import real_lengths

    if not real_lengths.DATA.exists():
        assert real_lengths.real_lengths() == {}
        pytest.skip("the data sets are not beside this repository")
    found = real_lengths.real_lengths()  # which checks number, total, least and most
    assert found.keys() == real_lengths.SETS.keys()
    with pytest.raises(ValueError, match=r"names: lengths\.json says"):
        real_lengths._checked("names", {"n": 1, "total": 2, "min": 2, "max": 2}, [3])


def test_the_chart_is_of_the_results_and_says_when_it_no_longer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import chart

    monkeypatch.setattr(chart, "RESULTS", tmp_path)
    monkeypatch.setattr(chart, "CHART", tmp_path / "chart.svg")
    assert chart.is_current(), "nothing measured, no chart"
    rows = [
        {"lengths": name, "cell": cell, "layers": 1, "width": 8, "batch": 4, "threads": 1}
        | {"ratio": 2.0, "padding gain": 1.5, "share of peak": 0.5}
        for name in ("equal 100", "uniform 10-100")
        for cell in ("LSTM", "GRU")
    ]
    for question in ("train_lengths", "train_sizes"):
        (tmp_path / f"{question}.json").write_text(json.dumps({"rows": rows}))
    assert not chart.is_current()
    chart.draw_chart()
    assert chart.is_current()
    assert "<svg" in (tmp_path / "chart.svg").read_text()
    (tmp_path / "train_sizes.json").write_text(json.dumps({"rows": rows[:2]}))
    assert not chart.is_current()
