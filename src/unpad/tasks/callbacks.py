"""What happens around the epochs: history, best weights, checkpoint, random state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import lightning.pytorch as pl
import torch

from unpad.tasks.model_files import save_weights
from unpad.tasks.task_module import TaskModule

Row = dict[str, float | int]


class Watcher(Protocol):
    """Sees a training run go by: the command line draws its progress bar through this."""

    def batch(self, epoch: int, done: int, batches: int) -> None:
        """One batch of an epoch is done."""

    def epoch(self, row: Row) -> None:
        """An epoch is done; ``row`` is its line of metrics.jsonl."""


class History(pl.Callback):
    """Metrics of every epoch, tokens and seconds, and the steps that padding would have added."""

    def __init__(self, watcher: Watcher | None) -> None:
        self.rows: list[Row] = []
        self.watcher = watcher
        self._tokens = self._padded = 0
        self._seconds = 0.0
        self._started = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start counting."""
        self._tokens = self._padded = 0
        self._seconds = 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock of a batch."""
        self._started = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: torch.Tensor | Mapping[str, Any] | None,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count a batch."""
        self._seconds += time.perf_counter() - self._started
        for x in cast("TaskModule", pl_module).inputs_of(batch):
            self._tokens += x.num_tokens
            self._padded += x.batch_size * x.max_length
        if self.watcher is not None:
            batches = int(trainer.num_training_batches)
            self.watcher.batch(trainer.current_epoch, batch_idx + 1, batches)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the epoch's row and show it."""
        row: Row = {
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
            **cast("TaskModule", pl_module).take_metrics(),
            "tokens": self._tokens,
            "padded_steps": self._padded,
            "seconds": self._seconds,
        }
        self.rows.append(row)
        for logger in trainer.loggers:
            shown = {k: v for k, v in row.items() if k not in ("epoch", "step")}
            logger.log_metrics(shown, step=trainer.current_epoch)
        if self.watcher is not None:
            self.watcher.epoch(row)

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the rows of the epochs before."""
        self.rows = list(state_dict["rows"])


class BestWeights(pl.Callback):
    """Keeps the weights of the epoch with the lowest validation loss (without one: the last)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.best: float | None = None
        self.epoch: int | None = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace the saved weights where this epoch is better."""
        module = cast("TaskModule", pl_module)
        loss = module.mean_loss("valid") if module.counts["valid"] else None
        if self.best is not None and loss is not None and not loss < self.best:
            return
        self.best, self.epoch = loss, trainer.current_epoch
        if trainer.is_global_zero:
            save_weights(module.model.state_dict(), self.folder)

    def state_dict(self) -> dict[str, Any]:
        """The best loss and its epoch."""
        return {"best": self.best, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the best so far."""
        self.best, self.epoch = state_dict["best"], state_dict["epoch"]


class RandomState(pl.Callback):
    """Carries torch's random state over an interruption, so that dropout goes on as it would."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The states of the generators at the end of an epoch."""
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        devices = torch.cuda.get_rng_state_all() if on_gpu else []
        return {"cpu": torch.get_rng_state(), "cuda": list(devices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember them until training starts."""
        self._loaded = state_dict

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set them before the first batch after a resume."""
        if self._loaded is None:
            return
        torch.set_rng_state(self._loaded["cpu"])
        if self._loaded["cuda"]:
            torch.cuda.set_rng_state_all(self._loaded["cuda"])
        self._loaded = None


class Checkpoint(pl.Callback):
    """Writes the whole training state after every epoch. Stands last among the callbacks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save; the file is replaced as a whole."""
        trainer.save_checkpoint(self.path)
