"""What the callbacks and the trainer expect of whatever is trained."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from unpad.ragged import Ragged

PARTS = (("fit", "train"), ("valid", "valid"))


class TaskModule(pl.LightningModule):
    """A model with the sum of its losses, by part ("fit", "valid"), and what each sum counts."""

    model: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.losses: dict[str, list[Tensor]] = {part: [] for part, _ in PARTS}
        self.counts: dict[str, int] = {part: 0 for part, _ in PARTS}

    def on_validation_epoch_end(self) -> None:
        """Log what early stopping watches."""
        self.log("valid_loss", self.mean_loss("valid"), logger=False)

    def inputs_of(self, batch: Any) -> list[Ragged]:
        """The sequences of what a training step is given."""
        return [batch[0]]

    def measure(self, part: str, loss: Tensor, count: int) -> None:
        """Note a batch's summed loss, detached, over ``count`` sequences or tokens."""
        self.losses[part].append(loss)
        self.counts[part] += count

    def mean_loss(self, part: str) -> float:
        """Mean loss of this epoch so far."""
        return float(torch.stack(self.losses[part]).sum()) / self.counts[part]

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the epoch that ends; the next one starts from nothing."""
        metrics: dict[str, float] = {}
        for part, name in PARTS:
            if self.counts[part]:
                metrics[f"{name}_loss"] = self.mean_loss(part)
                metrics |= {f"{name}_{k}": v for k, v in self.metrics_of(part).items()}
            self.losses[part], self.counts[part] = [], 0
        return metrics

    def metrics_of(self, part: str) -> dict[str, float]:
        """Further metrics of a part, which start anew."""
        raise NotImplementedError
