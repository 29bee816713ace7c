"""The job of ``unpad train lm``: from text files to a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unpad.data import DataError, Roles, profile_lengths
from unpad.data.corpus import Corpus, Texts, read_corpus
from unpad.tasks.callbacks import Watcher
from unpad.tasks.language.batches import LineBatches, StreamBatches
from unpad.tasks.language.model import LanguageModel, Rows
from unpad.tasks.language.module import Batches, LanguageModule
from unpad.tasks.language.reading import WINDOW, evaluate_texts
from unpad.tasks.language.settings import LanguageSettings, LanguageTraining
from unpad.tasks.model_files import CONFIG
from unpad.tasks.recorder import Recorder, file_facts, totals
from unpad.tasks.run_folder import RunFolder
from unpad.tasks.training import Training, accelerator_of, fit

DEFAULTS = {"model": LanguageSettings().to_dict(), "training": LanguageTraining().to_dict()}
Encoded = tuple[Tensor, Tensor]
"""Ids [T] and offsets [B+1] of texts."""


@dataclass(frozen=True)
class LanguageJob:
    """What to train: texts, settings. ``valid`` and ``test`` None: those of ``data``, if any."""

    data: str | Path
    out: str | Path
    valid: str | Path | None = None
    test: str | Path | None = None
    roles: Roles = field(default_factory=Roles)
    model: LanguageSettings = field(default_factory=LanguageSettings)
    training: LanguageTraining = field(default_factory=LanguageTraining)
    command: Sequence[str] = ()


def train_language_model(
    job: LanguageJob, *, resume: bool = False, watcher: Watcher | None = None
) -> dict[str, Any]:
    """Train as ``job`` says and fill its folder; returns the record of ``run.json``.

    Its "status" is "finished", or "interrupted" after Ctrl-C: then ``resume=True`` goes on from the
    last whole epoch and ends with the very weights of a run that was never stopped. The results
    have the perplexity of validation and test texts as `evaluate_texts` takes it.
    Raises `DataError`, `ArgumentError` and `RunError` before any training.
    """
    accelerator_of(job.training.device)
    fraction = job.training.valid_fraction
    corpus = read_corpus(
        job.data, job.roles, valid=job.valid, test=job.test, valid_fraction=fraction
    )
    _check_filled(corpus)
    run, facts = RunFolder(job.out, DEFAULTS), _facts(job, corpus)
    run.check(facts, resume=resume)
    if resume and (Path(job.out) / CONFIG).is_file():
        with torch.random.fork_rng():
            model = LanguageModel.untrained(job.out)
    else:
        model = untrained(corpus.train.rows, job.model, job.training.seed)
    data = encoded(model, corpus.train.rows)
    valid = None if corpus.valid is None else encoded(model, corpus.valid.rows)
    lengths = profile_lengths(data[1].diff().numpy()).to_dict()
    run.begin({**facts, "lengths": lengths, "vocabulary": len(model.vocabulary)}, resume=resume)
    model.save_config(run.path)
    result = fit_language(
        model, data, valid, job.training, run.path,
        resume=resume and run.can_resume, watcher=Recorder(run, watcher),
    )  # fmt: skip
    if result.interrupted:
        run.end("interrupted")
        return run.record
    run.end("finished", results={**totals(result), **_scores(run.path, corpus)})
    return run.record


def untrained(texts: Rows, settings: LanguageSettings, seed: int) -> LanguageModel:
    """A model with the vocabulary of ``texts`` and the weights that the seed gives."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LanguageModel.of(texts, settings)


def encoded(model: LanguageModel, texts: Rows) -> Encoded:
    """Ids and offsets of texts."""
    ids, offsets = model.vocabulary.encode(texts)
    return torch.from_numpy(ids), torch.from_numpy(offsets)


def fit_language(
    model: LanguageModel,
    data: Encoded,
    valid: Encoded | None,
    settings: LanguageTraining,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    tensorboard: bool = True,
) -> Training:
    """Train a model's network in place; see `unpad.tasks.training.train`."""
    module = LanguageModule(
        model.network,
        settings,
        _batches(model, data, settings, seed=settings.seed),
        None if valid is None else _batches(model, valid, settings, seed=None),
    )
    return fit(
        module, settings, folder,
        validates=valid is not None, resume=resume, watcher=watcher, tensorboard=tensorboard,
    )  # fmt: skip


def _batches(
    model: LanguageModel, data: Encoded, settings: LanguageTraining, *, seed: int | None
) -> Batches:
    (ids, offsets), start = data, model.vocabulary.end
    if model.settings.sequences == "stream":
        # Without a gradient to truncate, longer windows give the same losses in fewer calls.
        longer = WINDOW // settings.batch if seed is None else 0
        return StreamBatches(ids, start, settings.batch, max(settings.steps, longer))
    return LineBatches(
        ids, offsets, start, tokens=settings.batch_tokens, lines=settings.batch, seed=seed
    )


def _scores(folder: Path, corpus: Corpus) -> dict[str, Any]:
    """Loss and perplexity of the best weights on validation and test texts."""
    found: dict[str, Any] = {}
    best = LanguageModel.load(folder)
    for part, texts in (("valid", corpus.valid), ("test", corpus.test)):
        if texts is not None:
            scores = evaluate_texts(
                best.network, best.vocabulary, best.settings.sequences, texts.rows
            ).to_dict()
            names = ("loss", "perplexity", "nats_per_character", "tokens")
            found |= {f"{part}_{name}": scores[name] for name in names}
    return found


def _check_filled(corpus: Corpus) -> None:
    for texts in (corpus.train, corpus.valid, corpus.test):
        if texts is not None and not any(map(len, texts.rows)):
            raise DataError(texts.path, "there is no text in it", "give at least one line")


def _facts(job: LanguageJob, corpus: Corpus) -> dict[str, Any]:
    parts: dict[str, Texts | None] = {
        "train": corpus.train, "valid": corpus.valid, "test": corpus.test,
    }  # fmt: skip
    columns = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(job.roles).items()}
    return {
        "command": list(job.command),
        "settings": {
            "model": job.model.to_dict(),
            "training": job.training.to_dict(),
            "columns": columns,
        },
        "data": {
            part: file_facts(texts.path, len(texts))
            for part, texts in parts.items()
            if texts is not None
        },
    }
