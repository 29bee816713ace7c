"""The Lightning module: loss, optimizer and schedule, and batches by token budget."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from unpad.data import RaggedDataset, TokenBudgetBatchSampler
from unpad.tasks.model import SequenceModel
from unpad.tasks.settings import TrainingSettings
from unpad.tasks.task_module import TaskModule

WARM_UP = 0.05
"""Share of all steps in which the learning rate rises from 0."""
LAST_RATE = 0.01
"""Share of the learning rate that is left at the end of the cosine."""

Batch = tuple[Any, ...]
"""What the model takes, a `Ragged` or two, and the labels."""


class ClassifierModule(TaskModule):
    """Trains a `SequenceModel` by cross-entropy, each sequence weighing the same.

    AdamW (Loshchilov & Hutter 2019), weight decay on matrices alone; the learning rate warms up
    linearly and falls along a cosine. The order of the sequences is a function of seed and epoch.
    """

    def __init__(
        self,
        model: SequenceModel,
        settings: TrainingSettings,
        train: RaggedDataset,
        valid: RaggedDataset | None,
        classes: int,
    ) -> None:
        super().__init__()
        self.model, self.settings, self.train_data, self.valid_data = model, settings, train, valid
        self.accuracy = torch.nn.ModuleDict(
            {name: MulticlassAccuracy(classes, average="micro") for name in ("fit", "valid")}
        )
        self.sampler = self._sampler(train, shuffle=True)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of one batch, smoothed labels included."""
        *inputs, labels = batch
        logits = self.model(*inputs)
        self._measure("fit", logits, labels)
        return F.cross_entropy(logits, labels, label_smoothing=self.settings.label_smoothing)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Plain cross-entropy and accuracy."""
        *inputs, labels = batch
        self._measure("valid", self.model(*inputs), labels)

    def metrics_of(self, part: str) -> dict[str, float]:
        """Accuracy of a part, which starts anew."""
        accuracy = float(self.accuracy[part].compute())  # pyright: ignore[reportCallIssue]
        self.accuracy[part].reset()  # pyright: ignore[reportCallIssue]
        return {"accuracy": accuracy}

    def configure_optimizers(self) -> Any:
        """AdamW with a schedule by step."""
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": self.settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate)
        steps = len(self._sampler(self.train_data, shuffle=True)) * self.settings.epochs
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: rate_at(s, steps))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of the current epoch; made anew for each, since their number may differ."""
        self.sampler.set_epoch(self.current_epoch)
        return self._loader(self.train_data, self.sampler)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Validation batches, always the same."""
        if self.valid_data is None:
            return []
        return self._loader(self.valid_data, self._sampler(self.valid_data, shuffle=False))

    def _measure(self, part: str, logits: Tensor, labels: Tensor) -> None:
        logits = logits.detach()
        self.measure(part, F.cross_entropy(logits, labels, reduction="sum"), len(labels))
        self.accuracy[part].update(logits, labels)  # pyright: ignore[reportCallIssue]

    def _sampler(self, data: RaggedDataset, *, shuffle: bool) -> TokenBudgetBatchSampler:
        # Training counts the ranks; validation sees everything on each of them.
        trainer = self._trainer if shuffle else None
        return TokenBudgetBatchSampler(
            data.lengths.numpy(),
            self.settings.batch_tokens,
            self.settings.batch_sequences,
            shuffle=shuffle,
            seed=self.settings.seed,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )

    def _loader(self, data: RaggedDataset, sampler: TokenBudgetBatchSampler) -> DataLoader[Any]:
        # A generator of its own: opening a loader must not draw from torch's global one, which
        # the masks of dropout come from.
        generator = torch.Generator().manual_seed(self.settings.seed)
        return DataLoader(data, batch_sampler=sampler, collate_fn=data.collate, generator=generator)


def rate_at(step: int, steps: int) -> float:
    """Factor of the learning rate at a step: linear up to 1, then half a cosine.

    >>> [round(rate_at(step, 100), 2) for step in (0, 5, 52, 100)]
    [0.17, 1.0, 0.51, 0.01]
    """
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    done = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))
