"""The command line as a user types it: results, one-line errors, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unpad.cli import main

TRAIN = ["--hidden", "6", "--epochs", "3", "--batch-tokens", "64", "--lr", "0.02"]


@pytest.fixture
def data(tmp_path: Path, seed: int) -> Path:
    """Two features, three labels, lengths 0 to 9, as JSONL."""
    random = np.random.default_rng(seed)
    path = tmp_path / "data.jsonl"
    with path.open("w") as file:
        for i in range(60):
            x = random.normal(2 * (i % 3), 1, (random.integers(0, 10), 2)).tolist()
            file.write(json.dumps({"id": f"s{i}", "x": x, "label": "abc"[i % 3]}) + "\n")
    return path


def unpad(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of ``unpad ARGUMENTS``."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    shown = capsys.readouterr()
    code: Any = ended.value.code
    return int(code or 0), shown.out, shown.err


def test_from_data_to_predictions(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = data.parent / "run"
    code, out, err = unpad(capsys, "train", "classify", data, "--out", run, *TRAIN)
    assert code == 0
    assert "epoch 3/3" in err
    for part in ("accuracy", "tokens/s", "padding avoided", f"saved in {run}"):
        assert part in out

    code, out, _ = unpad(capsys, "evaluate", run, data, "--json")
    scores = json.loads(out)
    assert (code, scores["sequences"], scores["labels"]) == (0, 60, ["a", "b", "c"])

    code, out, _ = unpad(capsys, "predict", run, data, "--probabilities")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["id"] for line in lines]) == (0, [f"s{i}" for i in range(60)])
    hits = np.mean([line["label"] == "abc"[i % 3] for i, line in enumerate(lines)])
    assert hits == pytest.approx(scores["accuracy"])
    assert lines[0]["probability"] == max(lines[0]["probabilities"].values())

    code, out, _ = unpad(capsys, "predict", run, data, "--out", data.parent / "p.jsonl")
    assert (code, out) == (0, "")
    assert len((data.parent / "p.jsonl").read_text().splitlines()) == 60
    assert "accuracy" in unpad(capsys, "evaluate", run, data)[1]


def test_training_in_json_says_all_and_nothing_else(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "classify", data, "--out", data.parent / "run", *TRAIN, "--json"]
    code, out, err = unpad(capsys, *arguments)
    record = json.loads(out)
    assert (code, err, record["status"]) == (0, "", "finished")
    assert record["settings"]["training"]["epochs"] == 3


def test_a_step_a_row_trains_and_predicts_by_the_columns_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = [
        (f"s{i}", t, random.normal(i % 2, 1), random.normal(), "ab"[i % 2])
        for i in range(30)
        for t in range(random.integers(1, 6))
    ]
    path, bare = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("\n".join(["key,t,u,v,kind", *(",".join(map(str, r)) for r in rows)]))
    bare.write_text("\n".join(["v,t,key,u", *(f"{r[3]},{r[1]},{r[0]},{r[2]}" for r in rows)]))
    named = ["--id", "key", "--features", "u,v", "--label", "kind", "--time", "t"]
    run = tmp_path / "run"
    assert unpad(capsys, "train", "classify", path, "--out", run, *named, *TRAIN)[0] == 0
    whole = unpad(capsys, "predict", run, path)
    assert whole == unpad(capsys, "predict", run, bare, "--id", "key")
    assert len(whole[1].splitlines()) == 30


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_standard_input_is_answered_as_a_file_is(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = data.parent / "run"
    assert unpad(capsys, "train", "classify", data, "--out", run, *TRAIN)[0] == 0
    expected = unpad(capsys, "predict", run, data)
    for named in ([], ["-"]):
        give(monkeypatch, data.read_text())
        assert unpad(capsys, "predict", run, *named) == expected
    give(monkeypatch, "")
    assert unpad(capsys, "predict", run) == (0, "", "")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert unpad(capsys, "predict", run)[2].startswith("reading what you type")
    give(monkeypatch, '\n{"x": [[1, 2]]}\n{"x": \n')
    code, out, err = unpad(capsys, "predict", run, "-")
    assert (code, len(out.splitlines())) == (3, 1)
    assert err.startswith("error: standard input, line 3: not valid JSON")
    assert err.count("\n") == 1


GOOD = '{"x": [[1, 2]]}\n{"x": [[3, 4], [5, 6]]}\n'


@pytest.mark.parametrize(
    "bad", ["{", "[1]", '{"y": 1}', '{"x": [[1]]}', '{"x": "a"}', '{"x": [[1, null]]}']
)
@pytest.mark.parametrize("named", ["-", "bad.jsonl"])
def test_lines_before_a_bad_one_are_answered_and_none_after(
    data: Path,
    bad: str,
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(data.parent)
    assert unpad(capsys, "train", "classify", data, "--out", "run", *TRAIN)[0] == 0
    give(monkeypatch, GOOD)
    _, expected, _ = unpad(capsys, "predict", "run")
    given = f"{GOOD}{bad}\n{GOOD}{{\n"
    give(monkeypatch, given)
    (data.parent / "bad.jsonl").write_text(given)
    code, out, err = unpad(capsys, "predict", "run", named)
    assert (code, out) == (3, expected)
    assert ", line 3" in err
    assert err.count("\n") == 1


def test_texts_before_one_that_is_no_utf8_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = tmp_path / "a.tsv", tmp_path / "run"
    path.write_text("".join(f"{'xy'[i % 2]}\t{'ab'[i % 2] * 3}\n" for i in range(20)))
    assert unpad(capsys, "train", "classify", path, "--out", run, *TRAIN)[0] == 0
    lines = io.TextIOWrapper(io.BytesIO(b"aaa\nbbb\n\xff\nabc\n"))
    monkeypatch.setattr(sys, "stdin", lines)
    code, out, err = unpad(capsys, "predict", run)
    assert (code, len(out.splitlines())) == (3, 2)
    assert "line 3: no UTF-8" in err


@pytest.mark.parametrize("bad", ["s3,,1", "s0,1,1"])
def test_sequences_before_a_bad_step_are_answered(
    tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run, late = tmp_path / "a.csv", tmp_path / "run", tmp_path / "late.csv"
    rows = [f"s{i},{i % 2},{t},{'ab'[i % 2]}" for i in range(20) for t in range(2)]
    path.write_text("\n".join(["id,u,v,label", *rows]))
    named = ["--id", "id", "--features", "u,v"]
    assert unpad(capsys, "train", "classify", path, "--out", run, *named, *TRAIN)[0] == 0
    late.write_text("id,u,v\ns0,1,2\ns0,1,3\ns1,2,2\ns2,0,1\n" + bad + "\ns4,1,1\n")
    code, out, _ = unpad(capsys, "predict", run, late)
    answered = [json.loads(line)["id"] for line in out.splitlines()]
    assert (code, answered) == (3, ["s0", "s1", "s2"])


def test_lines_of_text_or_json_on_standard_input_are_the_same_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["turn it up", "stop it now", "play it again", ""] * 5
    path, run = tmp_path / "a.tsv", tmp_path / "run"
    path.write_text("".join(f"{'xy'[i % 2]}\t{text}\n" for i, text in enumerate(texts)))
    assert unpad(capsys, "train", "classify", path, "--out", run, *TRAIN)[0] == 0
    code, expected, _ = unpad(capsys, "predict", run, path)
    assert (code, len(expected.splitlines())) == (0, 20)
    for form in ("{}\n".format, lambda text: json.dumps({"text": text}) + "\n"):
        give(monkeypatch, "".join(map(form, texts)))
        assert unpad(capsys, "predict", run) == (0, expected, "")


def test_a_first_line_without_tokens_is_a_sequence_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = tmp_path / "a.jsonl", tmp_path / "run"
    rows = [{"tokens": ["ab"[i % 2]] * (i % 3), "label": "xy"[i % 2]} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert unpad(capsys, "train", "classify", path, "--out", run, *TRAIN)[0] == 0
    give(monkeypatch, '{"tokens": []}\n')
    assert unpad(capsys, "predict", run)[0] == 0


def test_profile_in_words_json_and_a_plot(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = data.parent / "lengths.png"
    code, out, _ = unpad(capsys, "profile", data, "--plot", plot)
    assert code == 0
    assert plot.read_bytes()[:4] == b"\x89PNG"
    for part in ("60 sequences", "of 2 features", "token budget", "A padded run"):
        assert part in out
    code, out, _ = unpad(capsys, "profile", data, "--json")
    found = json.loads(out)
    lengths = [len(json.loads(line)["x"]) for line in data.read_text().splitlines()]
    assert (found["tokens"], found["empty"]) == (sum(lengths), lengths.count(0))
    assert [share["batch_size"] for share in found["padding"]] == [16, 32, 64, 128]


def test_profile_reports_values_that_are_no_numbers(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with data.open("a") as file:
        file.write('{"x": [[1, 2], [NaN, 1e99]], "label": "a"}\n')
    code, out, _ = unpad(capsys, "profile", data)
    assert code == 0
    assert "2 values are NaN or infinite, the first at line 61, step 1, feature 0" in out
    code, out, err = unpad(capsys, "train", "classify", data, "--out", data.parent / "r")
    assert code == 3
    assert "line 61, column `x[0]`: step 1 holds nan (2 such values in all)" in err


def test_text_is_profiled_in_characters_or_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("x\tturn it up\ny\tstop\nx\tplay it again\n")
    for options, tokens in (([], 7), (["--tokens", "characters"], 27)):
        found = json.loads(unpad(capsys, "profile", path, "--json", *options)[1])
        assert found["tokens"] == tokens


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = unpad(capsys, "--version")
    assert (code, out.startswith("unpad ")) == (0, True)
    code, out, _ = unpad(capsys, "train", "classify", "--help")
    assert code == 0
    assert "--batch-tokens" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["profile", "none.jsonl"], 3, "error: none.jsonl: the file does not exist"),
        (["profile", os.devnull], 3, f"error: {os.devnull}: it is a device or a pipe, no file"),
        (["profile", "DATA", "--split", "dev"], 3, "argument `split`: got dev; allowed: none"),
        (["profile", "DATA", "--plot", "a.doc"], 3, "argument `plot`"),
        (["profile", "DATA", "--sequence", "z"], 3, "there is no column `z`"),
        (["train", "classify", "DATA", "--out", "r", "--cell", "gpt"], 3, "argument `cell`"),
        (["train", "classify", "DATA", "--out", "r", "--device", "tpu"], 3, "argument `device`"),
        (["train", "classify", "DATA", "--out", "r", "--label", "z"], 3, "there is no column `z`"),
        (["train", "classify", "DATA"], 2, "Missing option '--out'"),
        (["train", "classify", "DATA", "--out", "r", "--epochs", "x"], 2, "--epochs"),
        (["evaluate", "none", "DATA"], 3, "error: none: no run folder"),
        (["predict", "none", "DATA"], 3, "error: none: no run folder"),
        (["profle"], 2, "No such command"),
    ],
)  # fmt: skip
def test_mistakes_end_with_a_line_that_helps(
    arguments: list[str],
    code: int,
    message: str,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(data.parent)
    named = [str(data) if a == "DATA" else a for a in arguments]
    found, _, err = unpad(capsys, *named)
    assert found == code
    assert message in err
    assert "Traceback" not in err
    if code == 3:
        assert err.count("\n") == 1
    assert not (data.parent / "r").exists()


def start(*arguments: object) -> subprocess.Popen[str]:
    # Tests that a shell starts in the background hand down that Ctrl-C is ignored; and without the
    # native engine a process says so.
    call = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from unpad.cli import main; main()"
    )
    command = [sys.executable, "-c", call, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        text=True,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, "PYTHONWARNINGS": "ignore:cells run on the torch engine"},
    )


def test_a_line_on_standard_input_is_answered_before_the_next_is_written(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = data.parent / "run"
    assert unpad(capsys, "train", "classify", data, "--out", run, *TRAIN)[0] == 0
    process = start("predict", run)
    assert process.stdin is not None
    assert process.stdout is not None
    for i, line in enumerate(data.read_text().splitlines()[:3]):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == f"s{i}"
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def names(folder: Path) -> Path:
    """Texts that are read by character, with the split in the file."""
    rows = [(f"{'aeiou'[i % 5] * (i % 7)}n{i}", "xy"[i % 2], "train") for i in range(80)]
    rows += [(f"{'ea'[i % 2]}m{i}", "xy"[i % 2], "valid") for i in range(10)]
    path = folder / "names.csv"
    path.write_text("name,nationality,split\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


def wait_for_epochs(run: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    metrics = run / "metrics.jsonl"
    while time.monotonic() < deadline:
        if metrics.is_file() and len(metrics.read_text().splitlines()) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("form", ["numbers.jsonl", "names.csv"])
def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(
    data: Path, form: str, how: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    data = names(data.parent) if form == "names.csv" else data
    common = ["train", "classify", data, "--epochs", 12, "--batch-tokens", 64, "--hidden", 6]
    common += ["--patience", 0]
    run = data.parent / "killed"
    process = start(*common, "--out", run)
    wait_for_epochs(run, 2)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    if how == signal.SIGINT:
        assert "go on with: unpad" in err
        assert "--resume" in err
    assert "Traceback" not in err
    assert unpad(capsys, *common, "--out", run, "--resume")[0] == 0
    assert unpad(capsys, *common, "--out", data.parent / "straight")[0] == 0
    for name in ("model.safetensors", "last.safetensors"):
        one, two = load_file(run / name), load_file(data.parent / "straight" / name)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
