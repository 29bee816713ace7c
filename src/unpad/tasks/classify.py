"""The job itself: from data files to a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unpad.data import DataError, Roles, SequenceTable, profile_lengths, read
from unpad.data.splits import part_of, split_name
from unpad.tasks.callbacks import Watcher
from unpad.tasks.model_files import CONFIG
from unpad.tasks.prepare import Preparation
from unpad.tasks.recorder import Recorder, file_facts, totals
from unpad.tasks.run_folder import RunFolder
from unpad.tasks.saved import Classifier
from unpad.tasks.scoring import evaluate
from unpad.tasks.settings import ModelSettings, TrainingSettings
from unpad.tasks.training import accelerator_of, split_off, train


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


DEFAULTS = {"model": ModelSettings().to_dict(), "training": TrainingSettings().to_dict()}


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
    run = RunFolder(job.out, DEFAULTS)
    facts = _facts(job, training_table, valid_table)
    run.check(facts, resume=resume)
    classifier = _untrained(job, training_table, resume=resume)
    data = classifier.preparation.dataset(training_table)
    valid = None if valid_table is None else classifier.preparation.dataset(valid_table)
    lengths = profile_lengths(data.lengths.numpy()).to_dict()
    run.begin({**facts, "lengths": lengths}, resume=resume)
    classifier.save_config(run.path)
    result = train(
        classifier, data, valid, job.training, run.path,
        resume=resume and run.can_resume, watcher=Recorder(run, watcher),
    )  # fmt: skip
    if result.interrupted:
        run.end("interrupted")
        return run.record
    best = Classifier.load(run.path)
    results = totals(result)
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
    files: dict[str, Any] = {"train": file_facts(job.data, len(table))}
    if valid is not None:
        files["valid"] = file_facts(job.valid or job.data, len(valid))
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
