"""A training run: the same bits again, after an interruption too, and a folder that tells all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unpad.data import Roles, read
from unpad.tasks import (
    Classifier,
    Job,
    ModelSettings,
    RunError,
    TrainingSettings,
    evaluate,
    predict,
    train_classifier,
)
from unpad.tasks.training import split_off

SMALL = ModelSettings(hidden_size=6, dropout=0.3)
BRIEF = TrainingSettings(epochs=4, batch_tokens=64, patience=0)


class Stop:
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def batch(self, epoch: int, done: int, batches: int) -> None:
        if epoch == self.at and done == 2:
            raise KeyboardInterrupt

    def epoch(self, row: dict[str, float | int]) -> None: ...


def job(data: Path, out: str, **changes: Any) -> Job:
    training = replace(BRIEF, **changes.pop("training", {}))
    return Job(data, data.parent / out, model=SMALL, training=training, **changes)


def same(a: Path, b: Path, name: str) -> bool:
    one, two = load_file(a / name), load_file(b / name)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.mark.parametrize("cell", ["lstm", "layernorm_lstm"])
def test_a_stopped_run_resumes_to_the_same_bits(data: Path, cell: str) -> None:
    straight = replace(job(data, "straight"), model=replace(SMALL, cell=cell))
    train_classifier(straight)
    broken = replace(straight, out=data.parent / "broken")
    record = train_classifier(broken, watcher=Stop(2))
    assert record["status"] == "interrupted"
    assert len(rows_of(Path(broken.out))) == 2
    torch.rand(7)  # the caller's random state is not the run's
    assert train_classifier(broken, resume=True)["status"] == "finished"
    for name in ("model.safetensors", "last.safetensors"):
        assert same(Path(straight.out), Path(broken.out), name)
    assert rows_of(Path(broken.out)) == rows_of(Path(straight.out))


def test_a_run_stopped_in_its_first_epoch_starts_over(data: Path) -> None:
    train_classifier(job(data, "straight"))
    train_classifier(job(data, "broken"), watcher=Stop(0))
    train_classifier(job(data, "broken"), resume=True)
    assert same(data.parent / "straight", data.parent / "broken", "model.safetensors")


def test_the_seed_decides_every_bit(data: Path) -> None:
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_classifier(job(data, out, training={"seed": seed, "epochs": 1}))
        torch.rand(3)
    assert same(data.parent / "a", data.parent / "b", "model.safetensors")
    assert not same(data.parent / "a", data.parent / "c", "model.safetensors")


def test_training_leaves_the_callers_random_state_alone(data: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_classifier(job(data, "a", training={"epochs": 1}))
    assert torch.equal(torch.rand(3), expected)


def test_more_epochs_may_be_asked_for_later(data: Path) -> None:
    train_classifier(job(data, "a", training={"epochs": 1}))
    train_classifier(job(data, "a", training={"epochs": 3}), resume=True)
    assert [row["epoch"] for row in rows_of(data.parent / "a")] == [0, 1, 2]


def test_fewer_epochs_than_the_run_was_made_for_are_refused(data: Path) -> None:
    train_classifier(job(data, "a", training={"epochs": 3}))
    with pytest.raises(RunError, match=r"epochs was 3, now it is 2, and may only grow; give --ep"):
        train_classifier(job(data, "a", training={"epochs": 2}), resume=True)
    record = train_classifier(job(data, "a", training={"epochs": 3}), resume=True)
    assert record["settings"]["training"]["epochs"] == 3


def test_the_saved_weights_are_those_of_the_lowest_validation_loss(data: Path) -> None:
    record = train_classifier(job(data, "a", training={"learning_rate": 0.3, "epochs": 6}))
    losses = [row["valid_loss"] for row in rows_of(data.parent / "a")]
    best = record["results"]["best_epoch"]
    assert losses[best] == min(losses)
    assert record["results"]["valid_loss"] == pytest.approx(min(losses), rel=1e-4)


def test_patience_ends_a_run_that_no_longer_improves(data: Path) -> None:
    training = {"learning_rate": 0.5, "epochs": 40, "patience": 2}
    record = train_classifier(job(data, "a", training=training))
    epochs, best = record["results"]["epochs"], record["results"]["best_epoch"]
    assert epochs == best + 3 < 40


def test_a_small_model_learns_and_its_folder_tells_how(data: Path) -> None:
    made = job(
        data, "a", training={"epochs": 20, "learning_rate": 0.02}, command=["unpad", "train"]
    )
    record = train_classifier(made)
    run = data.parent / "a"
    names = {p.name for p in run.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "last.safetensors", "run.json", "metrics.jsonl",
        "loss.png", "tensorboard",
    }  # fmt: skip
    assert any(p.name.startswith("events") for p in (run / "tensorboard").iterdir())
    saved = json.loads((run / "run.json").read_text())
    assert saved == record
    assert saved["command"] == ["unpad", "train"]
    assert saved["data"]["train"]["sequences"] + saved["data"]["valid"]["sequences"] == 60
    assert saved["lengths"]["sequences"] == 54
    assert saved["lengths"]["empty"] == 1
    tokens = [row["tokens"] for row in rows_of(run)]
    assert set(tokens) == {saved["lengths"]["tokens"]}
    assert 0 < saved["results"]["padding_avoided"] < 1
    table = read(data)
    scores = evaluate(Classifier.load(run), table)
    assert scores.accuracy > 0.8
    assert sum(map(sum, scores.confusion)) == 60


def test_scores_are_those_counted_by_hand(data: Path) -> None:
    train_classifier(job(data, "a", training={"epochs": 2}))
    classifier, table = Classifier.load(data.parent / "a"), read(data)
    scores = evaluate(classifier, table)
    truth = np.array([classifier.preparation.labels.index(s or "") for s in table.strings("label")])
    chances = classifier.probabilities(table)
    said = chances.argmax(1)
    assert scores.accuracy == (truth == said).mean()
    assert scores.loss == pytest.approx(-np.log(chances[np.arange(60), truth]).mean())
    for i, row in enumerate(scores.by_label()):
        hits = ((truth == i) & (said == i)).sum()
        assert row["recall"] == pytest.approx(hits / (truth == i).sum())
        assert row["precision"] == pytest.approx(hits / max((said == i).sum(), 1))


def test_a_prediction_depends_on_its_sequence_alone(data: Path) -> None:
    train_classifier(job(data, "a", training={"epochs": 1}))
    classifier, table = Classifier.load(data.parent / "a"), read(data)
    together = classifier.probabilities(table)
    for i in (0, 7, 31):
        # The recurrent layers are alike to the bit; torch's Linear behind them may not be.
        alone = classifier.probabilities(table.take([i]))[0]
        np.testing.assert_allclose(alone, together[i], rtol=1e-5, atol=1e-7)


def test_no_label_with_a_sequence_to_spare_is_said(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text('{"x": [1, 2], "label": "a"}\n{"x": [3], "label": "b"}\n')
    with pytest.raises(ValueError, match=r"to spare for validation.*--valid-fraction 0"):
        train_classifier(job(path, "a"))


def test_two_columns_of_one_name_are_said(tmp_path: Path) -> None:
    path = tmp_path / "twice.csv"
    path.write_text("id,id,f,label\n1,1,0.5,a\n2,2,0.5,b\n")
    with pytest.raises(ValueError, match="two columns are named 'id'"):
        read(path)


def test_prediction_reads_no_further_than_it_must(data: Path, monkeypatch: Any) -> None:
    train_classifier(job(data, "a", training={"epochs": 1}))
    monkeypatch.setattr("unpad.data.files.CHUNK", 10)
    with data.open("a") as file:
        file.write("this line is broken\n")
    lines = predict(Classifier.load(data.parent / "a"), data, Roles(), probabilities=True)
    first = [next(lines) for _ in range(60)]
    assert [line["id"] for line in first] == list(range(60))
    assert sum(first[7]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="line 61: not valid JSON"):
        next(lines)


def test_splits_of_a_file_are_used_as_they_are(tmp_path: Path) -> None:
    rows = [("ab" * (i % 3 + 1), "xy"[i % 2], ["train", "dev", "test"][i % 3]) for i in range(30)]
    path = tmp_path / "data.csv"
    path.write_text("text,label,split\n" + "".join(",".join(row) + "\n" for row in rows))
    record = train_classifier(job(path, "a", training={"epochs": 1}))
    assert (record["data"]["train"]["sequences"], record["data"]["valid"]["sequences"]) == (10, 10)
    assert (tmp_path / "a" / "vocabulary.json").is_file()


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9])
def test_a_split_keeps_every_label_in_training_and_loses_nothing(
    data: Path, fraction: float
) -> None:
    table = read(data)
    rest, held = split_off(table, fraction, seed=3)
    assert len(rest) + (0 if held is None else len(held)) == 60
    assert (held is None) == (fraction == 0)
    assert set(rest.strings("label")) == {"c0", "c1", "c2"}
    places = [t.column("place").to_pylist() for t in (rest, *([held] if held else []))]  # type: ignore[union-attr]
    assert sorted(p for part in places for p in part) == list(range(1, 61))


def test_what_a_run_leaves_that_was_stopped_as_it_began_is_in_nobody_s_way(data: Path) -> None:
    folder = data.parent / "a"
    folder.mkdir()
    left = [folder / ".run.json.k3x_9a1b.json", folder / ".loss.png.00000000.png"]
    for path in left:
        path.touch()
    train_classifier(job(data, "a", training={"epochs": 1}))
    assert not any(path.exists() for path in left)
    left[1].touch()
    train_classifier(job(data, "a", training={"epochs": 2}), resume=True)
    assert not left[1].exists()
    (data.parent / "b").mkdir()
    (data.parent / "b" / ".mine.json").touch()
    with pytest.raises(RunError, match="not empty"):
        train_classifier(job(data, "b"))


def test_a_folder_in_use_and_other_settings_are_refused(data: Path) -> None:
    train_classifier(job(data, "a", training={"epochs": 1}))
    with pytest.raises(RunError, match="not empty; add --resume"):
        train_classifier(job(data, "a"))
    with pytest.raises(RunError, match=r"training.clip was 1.0, now it is 2.0"):
        train_classifier(job(data, "a", training={"clip": 2.0}), resume=True)
    with pytest.raises(RunError, match="no run to resume"):
        train_classifier(job(data, "b"), resume=True)
    with data.open("a") as file:
        file.write('{"x": [[1, 2]], "label": "c0"}\n')
    with pytest.raises(RunError, match="cannot resume: data"):
        train_classifier(job(data, "a", training={"epochs": 1}), resume=True)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_broken_model_is_refused_in_words(data: Path, name: str) -> None:
    train_classifier(job(data, "a", training={"epochs": 1}))
    run = data.parent / "a"
    for content in (b"", b'{"format": 99}', b"\x80\x04K\x01."):
        (run / name).write_bytes(content)
        with pytest.raises(RunError):
            Classifier.load(run)
    (run / name).unlink()
    with pytest.raises(RunError):
        Classifier.load(run)
    with pytest.raises(RunError, match="no run folder"):
        Classifier.load(data.parent)
