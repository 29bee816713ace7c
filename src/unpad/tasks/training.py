"""Run Lightning on a classifier: one call from data sets to trained weights, resumable."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger

from unpad.data import RaggedDataset, SequenceTable
from unpad.errors import ArgumentError
from unpad.tasks.callbacks import BestWeights, Checkpoint, History, RandomState, Row, Watcher
from unpad.tasks.checkpoint import SafetensorsIO
from unpad.tasks.module import ClassifierModule
from unpad.tasks.run_folder import LAST
from unpad.tasks.saved import Classifier
from unpad.tasks.settings import Course, TrainingSettings
from unpad.tasks.task_module import TaskModule


@dataclass(frozen=True)
class Training:
    """What a run gave: a row a epoch, the epoch whose weights were kept, and whether it ended.

    ``interrupted`` is True after Ctrl-C: the state of the last whole epoch is on disk.
    """

    rows: list[Row]
    best_epoch: int | None
    interrupted: bool


def split_off(
    table: SequenceTable, fraction: float, seed: int
) -> tuple[SequenceTable, SequenceTable | None]:
    """Take ``fraction`` of the sequences, chosen by ``seed``, for validation (0: none).

    At least one sequence of every label stays for training: with none to spare, none is taken.
    """
    count = max(1, round(fraction * len(table))) if fraction > 0 else 0
    order = np.random.default_rng(seed).permutation(len(table))
    chosen = _keeping_labels(order, table.strings("label"), count)
    if not len(chosen):  # an empty table would be one to validate on, and has no loss
        return table, None
    rest = np.setdiff1d(order, chosen)
    return table.take(rest), table.take(np.sort(chosen))


def _keeping_labels(order: np.ndarray, labels: list[str | None], count: int) -> np.ndarray:
    """The first ``count`` rows of ``order`` that are not the last one of their label."""
    left: dict[str | None, int] = {}
    for label in labels:
        left[label] = left.get(label, 0) + 1
    chosen: list[int] = []
    for row in order.tolist():
        if len(chosen) == count:
            break
        if left[labels[row]] > 1:
            left[labels[row]] -= 1
            chosen.append(row)
    return np.array(chosen, dtype=np.int64)


def train(
    classifier: Classifier,
    data: RaggedDataset,
    valid: RaggedDataset | None,
    settings: TrainingSettings,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    tensorboard: bool = True,
) -> Training:
    """Train ``classifier`` in place; best weights, the state to resume and logs go to ``folder``.

    The weights in memory are those of the last epoch, the ones in ``folder`` the best. Random
    numbers come from torch's generators, seeded by ``settings.seed``, whose state is put back at
    the end. On a CPU with a fixed number of threads the same call gives the same bits, and so does
    a run that was stopped and resumed.
    """
    module = ClassifierModule(
        classifier.model, settings, data, valid, len(classifier.preparation.labels)
    )
    return fit(
        module, settings, folder,
        validates=valid is not None, resume=resume, watcher=watcher, tensorboard=tensorboard,
    )  # fmt: skip


def fit(
    module: TaskModule,
    settings: Course,
    folder: Path,
    *,
    validates: bool,
    resume: bool = False,
    watcher: Watcher | None = None,
    tensorboard: bool = True,
) -> Training:
    """Train a module's model as `train` says, whatever the task. Its training mode ends."""
    history, best = History(watcher), BestWeights(folder)
    callbacks: list[pl.Callback] = [best, history, RandomState()]
    if validates and settings.patience:
        callbacks.append(EarlyStopping("valid_loss", patience=settings.patience))
    callbacks.append(Checkpoint(folder / LAST))
    with _quiet(), torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        trainer = pl.Trainer(
            accelerator=accelerator_of(settings.device),
            devices=1,
            max_epochs=settings.epochs,
            gradient_clip_val=(settings.clip or None) if module.automatic_optimization else None,
            callbacks=callbacks,
            plugins=[SafetensorsIO()],
            logger=TensorBoardLogger(folder, name="", version="tensorboard") if tensorboard else [],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
        )
        interrupted = _fit(trainer, module, folder / LAST if resume else None)
    module.model.eval()
    return Training(history.rows, best.epoch, interrupted)


def _fit(trainer: pl.Trainer, module: TaskModule, checkpoint: Path | None) -> bool:
    """Run; True where the user stopped it. Lightning ends the process on Ctrl-C, we do not."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, ckpt_path=checkpoint)
    except SystemExit:
        return True
    finally:
        if signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)
    return trainer.interrupted


def accelerator_of(device: str) -> str:
    """Lightning's name of a device of the settings; refuses a GPU that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", device, "cpu, as torch sees no GPU", "use auto or cpu")
    return device


@contextmanager
def _quiet() -> Generator[None]:
    """Silence Lightning's advice: devices, workers, and folders are our choice, not the user's."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        logger.setLevel(level)
