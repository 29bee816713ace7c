"""``unpad train lm``, ``generate``, ``score`` and ``evaluate`` as a user types them."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from unpad.cli import main

BRIEF = ["--hidden", "8", "--epochs", "2", "--batch", "2", "--steps", "5", "--seed", "1"]
LINES = ["the cat sat on the mat .", "the dog sat .", "", "a <unk> sat on the dog ."]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.txt").write_text("\n".join(LINES * 5) + "\n")
    (folder / "valid.txt").write_text("\n".join(LINES) + "\n")
    (folder / "test.txt").write_text("the cat sat .\na bird sat .\n")
    return folder


def unpad(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of ``unpad ARGUMENTS``."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    shown = capsys.readouterr()
    code: Any = ended.value.code
    return int(code or 0), shown.out, shown.err


@pytest.mark.parametrize("sequences", ["stream", "lines"])
def test_from_texts_to_text(
    data: Path, sequences: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = data.parent / "run"
    options = [*BRIEF, "--sequences", sequences, "--softmax", "hierarchical"]
    code, out, err = unpad(capsys, "train", "lm", data, "--out", run, *options)
    assert code == 0
    assert "epoch 2/2: loss" in err
    assert "perplexity" in err
    for part in ("validation: perplexity", "test: perplexity", "tokens/s", f"saved in {run}"):
        assert part in out

    code, out, _ = unpad(capsys, "evaluate", run, data, "--json")
    scores = json.loads(out)
    assert (code, scores["texts"], scores["tokens"], scores["unknown"]) == (0, 2, 10, 1)
    record = json.loads((run / "run.json").read_text())
    assert scores["perplexity"] == pytest.approx(record["results"]["test_perplexity"])
    assert scores["nats_per_character"] == pytest.approx(-scores["log_probability"] / 27)
    shown = unpad(capsys, "evaluate", run, data / "test.txt")[1]
    assert f"perplexity {scores['perplexity']:.2f}" in shown

    code, out, _ = unpad(capsys, "score", run, data / "test.txt")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, len(lines)) == (0, 2)
    assert lines[1]["tokens"] == ["a", "<unk>", "sat", ".", "<eos>"]
    total = sum(sum(line["log_probabilities"]) for line in lines)
    assert total == pytest.approx(scores["log_probability"], rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(-total / 10), rel=1e-6)
    text = (data / "test.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert unpad(capsys, "score", run)[1] == out

    write = ("generate", run, "--prompt", "the cat", "--tokens", 12, "--seed", 4)
    code, out, _ = unpad(capsys, *write)
    assert code == 0
    assert out.startswith("the cat")
    assert unpad(capsys, *write)[1] == out
    made = json.loads(unpad(capsys, *write, "--top-k", 3, "--temperature", 0.7, "--json")[1])
    assert (made["prompt"], made["seed"]) == ("the cat", 4)
    assert isinstance(made["text"], str)


def test_a_preset_is_what_it_says_but_for_the_options_given(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = data.parent / "run"
    arguments = ["--preset", "zaremba-small", "--epochs", 1, "--batch", 2, "--hidden", 7, "--json"]
    code, out, err = unpad(capsys, "train", "lm", data, "--out", run, *arguments)
    record = json.loads(out)
    assert (code, err, record["status"]) == (0, "", "finished")
    model, training = record["settings"]["model"], record["settings"]["training"]
    assert (model["hidden_size"], model["layers"], model["tokens"]) == (7, 2, "spaced")
    assert (training["learning_rate"], training["epochs"], training["clip"]) == (1.0, 1, 5.0)
    assert record["results"]["tokens"] == sum(len(line.split()) + 1 for line in LINES * 5)


def test_a_line_a_text_answers_as_it_comes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = data.parent / "run"
    assert unpad(capsys, "train", "lm", data, "--out", run, *BRIEF)[0] == 0
    bad = data.parent / "bad.txt"
    bad.write_bytes(b"the cat\n\xff\n")
    code, out, err = unpad(capsys, "score", run, bad)
    assert (code, len(out.splitlines())) == (3, 1)
    assert "line 2: no UTF-8" in err
    code, _, _ = unpad(capsys, "score", run, data / "test.txt", "--out", data.parent / "s.jsonl")
    assert (code, len((data.parent / "s.jsonl").read_text().splitlines())) == (0, 2)


def test_what_cannot_be_is_one_line_and_code_3(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = data.parent / "run"
    for arguments, part in (
        (("train", "lm", data, "--out", run, "--preset", "zaremba"), "allowed: zaremba-small"),
        (("train", "lm", data, "--out", run, "--softmax", "fast"), "argument `softmax`"),
        (("train", "lm", data / "none.txt", "--out", run), "the file does not exist"),
        (("train", "lm", run.parent / "nothing", "--out", run), "the file does not exist"),
        (("generate", data), "no run folder"),
        (("score", data, data / "test.txt"), "no run folder"),
    ):
        code, out, err = unpad(capsys, *arguments)
        assert (code, out) == (3, "")
        assert part in err
        assert err.count("\n") == 1
    assert unpad(capsys, "train", "lm", data, "--out", run, *BRIEF)[0] == 0
    code, _, err = unpad(capsys, "train", "lm", data, "--out", run, *BRIEF)
    assert (code, "add --resume to go on" in err) == (3, True)
    assert unpad(capsys, "train", "lm", data, "--out", run, *BRIEF, "--resume")[0] == 0
    code, _, err = unpad(capsys, "predict", run, data / "test.txt")
    assert (code, "a run of `unpad train lm`" in err) == (3, True)
    code, _, err = unpad(capsys, "generate", run, "--top-k", 0)
    assert (code, "argument `top_k`" in err) == (3, True)
