"""``unpad bench``: a row a layer with its gains and errors, on one's own lengths; never a speed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from unpad.cli import main

SMALL = ["--hidden", "4", "--seconds", "0", "--threads", "1"]


@pytest.fixture(autouse=True)
def default_malloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is the whole process's, which has other tests to run."""
    monkeypatch.setattr("unpad.cli.bench.tuned_malloc", lambda: False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"x": [[0.5, 1.0]] * n}) + "\n" for n in (2, 0, 5, 3)))
    return path


def bench(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *map(str, arguments)])
    shown = capsys.readouterr()
    code: Any = ended.value.code
    return int(code or 0), shown.out, shown.err


def test_every_layer_has_a_row_whose_two_gains_make_the_ratio(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bench(capsys, data, *SMALL, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["sequences"], found["tokens"], found["longest"]) == (3, 10, 5)
    assert found["padding_gain"] == 1.5
    assert [row["cell"] for row in found["rows"]] == ["LSTM", "GRU", "RNN"]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["padding_gain"] * row["loop_gain"])
        assert row["ratio"] == pytest.approx(row[row["peer"]]["median"] / row["unpad"]["median"])
        assert max(row["error"], row["peer_error"]) < 1e-5
        assert row["unpad"]["rounds"] == 3
        assert (row["width"], row["batch"], row["threads"]) == (4, 3, 1)


def test_in_words_it_tells_the_batch_the_gains_and_the_machine(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = bench(capsys, data, *SMALL, "--layers", 2)
    assert code == 0
    for part in (
        "3 sequences, 10 steps, the longest 5; padded it has 1.50 times the steps",
        "not 32 sequences",
        "GRU",
        "2 layers of 4, 1 thread;",
        f"{os.cpu_count()} cores",
    ):
        assert part in " ".join(out.split())


def test_a_disturbed_row_is_marked_and_the_warning_comes_before_the_table(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unpad.bench import compare

    loads = {"LSTM": 0.01, "GRU": 0.3, "RNN": 0.06}

    def disturbed(task: Any, lengths: list[int], **options: Any) -> dict[str, Any]:
        return compare(task, lengths, **options) | {"foreign load": loads[task.cell]}

    monkeypatch.setattr("unpad.cli.bench.compare", disturbed)
    code, out, _ = bench(capsys, data, *SMALL)
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if "×" in line}
    assert {name: "(!)" in line for name, line in rows.items()} == {
        "LSTM": False, "GRU": True, "RNN": True
    }  # fmt: skip
    assert max(map(len, rows.values())) <= 80
    assert out.index("used up to 30.0 %") < out.index("Training step in ms")
    monkeypatch.setattr("unpad.cli.bench._DISTURBED", 1.0)
    assert "(!)" not in bench(capsys, data, *SMALL)[1]


def test_the_table_has_its_figures_and_headings_whole_however_long_they_are(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unpad.bench import Timing, compare

    taken = {"unpad": 12.5, "padded": 31195.7, "packed": 2379.4}
    slow = {way: Timing(ms, ms, ms, 3) for way, ms in taken.items()}

    def slowed(task: Any, lengths: list[int], **options: Any) -> dict[str, Any]:
        figures = {"foreign load": 0.3, "ratio": 190.35, "padding gain": 12.05, "loop gain": 15.8}
        return compare(task, lengths, **options) | slow | figures

    monkeypatch.setattr("unpad.cli.bench.compare", slowed)
    code, out, _ = bench(capsys, data, *SMALL)
    assert code == 0
    assert "…" not in out
    for whole in ("LSTM (!)", "12.50", "31196", "2379", "190.3×", "12.05×", "padding", "torch's"):
        assert whole in out


def test_without_data_the_lengths_are_uniform(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bench(capsys, *SMALL, "--batch-size", 4, "--json")
    found = json.loads(out)
    assert (code, found["path"], found["sequences"]) == (0, None, 4)
    assert 10 <= found["longest"] <= 100


def test_long_sequences_are_cut_and_make_a_smaller_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unpad.cli.bench._LONGEST", 40)
    monkeypatch.setattr("unpad.cli.bench._MOST_STEPS", 100)
    path = tmp_path / "long.txt"
    path.write_text("".join("a\t" + "b" * 60 + "\n" for _ in range(8)))
    code, out, _ = bench(capsys, path, *SMALL, "--tokens", "characters")
    assert code == 0
    assert "2 sequences, 80 characters, the longest 40" in out
    assert "sequences are cut after 40 characters" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.jsonl"], 3, "error: none.jsonl: the file does not exist"),
        (["DATA", "--split", "dev"], 3, "argument `split`: got dev"),
        (["--threads", "4096"], 3, "argument `threads`: got 4096; allowed: 1 to"),
        (["--hidden", "0"], 2, "--hidden"),
        (["--batch-size", "many"], 2, "--batch-size"),
    ],
)
def test_mistakes_are_a_line_and_an_exit_code(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    given = [str(data) if argument == "DATA" else argument for argument in arguments]
    ended, out, err = bench(capsys, *given)
    assert (ended, out) == (code, "")
    assert message in " ".join(err.split())


def test_data_without_a_token_has_nothing_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"tokens": []}\n{"tokens": []}\n')
    code, out, err = bench(capsys, path, *SMALL)
    assert (code, out) == (3, "")
    assert "a sequence that is not empty" in err
