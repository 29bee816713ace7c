"""The job itself: from data files to a run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unpad.data import DataError, Roles, SequenceTable, profile_lengths, read
from unpad.data.table import digest
from unpad.tasks.callbacks import Row, Watcher
from unpad.tasks.prepare import Preparation
from unpad.tasks.run_folder import RunFolder
from unpad.tasks.saved import CONFIG, Classifier
from unpad.tasks.scoring import evaluate, part_of, split_name
from unpad.tasks.settings import ModelSettings, TrainingSettings
from unpad.tasks.training import Training, accelerator_of, split_off, train


@dataclass(frozen=True)
class Job:
    """What to train: files, columns, settings. ``valid`` None: a split of ``data`` or split off."""

    data: str | Path
    out: str | Path
    valid: str | Path | None = None
    roles: Roles = field(default_factory=Roles)
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    command: Sequence[str] = ()


def train_classifier(
    job: Job, *, resume: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Train as ``job`` says and fill its folder; returns the record of ``run.json``.

    Its "status" is "finished", or "interrupted" after Ctrl-C: then ``resume=True`` goes on from the
    last whole epoch and ends with the very weights of a run that was never stopped.
    Raises `DataError`, `ArgumentError` and `RunError` before any training.
    """
    accelerator_of(job.training.device)
    training_table, valid_table = _tables(job)
    run, facts = RunFolder(job.out), _facts(job, training_table, valid_table)
    run.check(facts, resume=resume)
    classifier = _untrained(job, training_table, resume=resume)
    data = classifier.preparation.dataset(training_table)
    valid = None if valid_table is None else classifier.preparation.dataset(valid_table)
    lengths = profile_lengths(data.lengths.numpy()).to_dict()
    run.begin({**facts, "lengths": lengths}, resume=resume)
    classifier.save_config(run.path)
    result = train(
        classifier, data, valid, job.training, run.path,
        resume=resume and run.can_resume, watcher=_Recorder(run, watcher),
    )  # fmt: skip
    if result.interrupted:
        run.end("interrupted")
        return run.record
    best = Classifier.load(run.path)
    results = _results(result)
    if valid_table is not None:
        scores = evaluate(best, valid_table)
        results |= {"valid_accuracy": scores.accuracy, "valid_loss": scores.loss}
    run.end("finished", results=results)
    return run.record


def _tables(job: Job) -> tuple[SequenceTable, SequenceTable | None]:
    table = read(job.data, job.roles)
    if job.valid is not None:
        valid = read(job.valid, job.roles)
        return part_of(table, "train"), part_of(valid, "valid")
    if split_name(table, "train") and split_name(table, "valid"):
        return part_of(table, "train"), part_of(table, "valid")
    chosen = part_of(table, "train")
    fraction = job.training.valid_fraction
    if fraction > 0 and len(chosen) < 2:
        raise DataError(
            job.data, "one sequence cannot be split", "give more, or --valid-fraction 0"
        )
    kept, valid = split_off(chosen, fraction, job.training.seed)
    if valid is None and fraction > 0:
        raise DataError(
            job.data,
            "no label has a sequence to spare for validation",
            "give more sequences, a file with --valid, or --valid-fraction 0",
        )
    return kept, valid


def _untrained(job: Job, table: SequenceTable, *, resume: bool) -> Classifier:
    """The classifier with the weights that the seed gives; of a run taken up again, its own."""
    with torch.random.fork_rng():
        torch.manual_seed(job.training.seed)
        if resume and (Path(job.out) / CONFIG).is_file():
            return Classifier.untrained(job.out)
        columns = replace(job.roles, label=None, split=None, features=table.source.features)
        return Classifier.build(Preparation.fit(table, job.model), job.model, columns)


def _facts(job: Job, table: SequenceTable, valid: SequenceTable | None) -> dict[str, Any]:
    files: dict[str, Any] = {"train": _file(job.data, len(table))}
    if valid is not None:
        files["valid"] = _file(job.valid or job.data, len(valid))
    return {
        "command": list(job.command),
        "settings": {
            "model": job.model.to_dict(),
            "training": job.training.to_dict(),
            "columns": {
                k: list(v) if isinstance(v, tuple) else v for k, v in vars(job.roles).items()
            },
        },
        "data": files,
    }


def _file(path: str | Path, sequences: int) -> dict[str, Any]:
    return {"path": str(path), "sha256": digest(path), "sequences": sequences}


class _Recorder:
    """Keeps metrics.jsonl and the curve up to date, and passes everything on."""

    def __init__(self, run: RunFolder, watcher: Watcher | None) -> None:
        self.run, self.watcher, self.rows = run, watcher, _rows(run)

    def batch(self, epoch: int, done: int, batches: int) -> None:
        if self.watcher is not None:
            self.watcher.batch(epoch, done, batches)

    def epoch(self, row: Row) -> None:
        self.rows = [*(r for r in self.rows if r["epoch"] < row["epoch"]), row]
        self.run.show_epochs(self.rows)
        if self.watcher is not None:
            self.watcher.epoch(row)


def _rows(run: RunFolder) -> list[Row]:
    path = run.path / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _results(result: Training) -> dict[str, Any]:
    tokens = sum(int(row["tokens"]) for row in result.rows)
    padded = sum(int(row["padded_steps"]) for row in result.rows)
    seconds = sum(float(row["seconds"]) for row in result.rows)
    return {
        "epochs": len(result.rows),
        "best_epoch": result.best_epoch,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "padding_avoided": 1 - tokens / padded if padded else 0.0,
    }
