"""The Lightning module of a language model: loss, state, optimizer, schedule, clipping."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from unpad.tasks.language.batches import Batch, LineBatches, StreamBatches
from unpad.tasks.language.network import LanguageNetwork, State, detached
from unpad.tasks.language.perplexity import perplexity
from unpad.tasks.language.settings import LanguageTraining
from unpad.tasks.module import rate_at
from unpad.tasks.task_module import TaskModule

Batches = StreamBatches | LineBatches


class LanguageModule(TaskModule):
    """Trains a `LanguageNetwork`: cross-entropy of each token given those before it.

    With a stream the state goes from batch to batch, without its gradient (truncated
    back-propagation through time, Williams & Peng 1990); an epoch starts from zeros.
    """

    def __init__(
        self,
        network: LanguageNetwork,
        settings: LanguageTraining,
        train: Batches,
        valid: Batches | None,
    ) -> None:
        super().__init__()
        self.model, self.settings = network, settings
        self.train_data, self.valid_data = train, valid
        self.state: State | None = None

    def on_train_epoch_start(self) -> None:
        """Start from a state of zeros."""
        self.state = None

    def on_validation_epoch_start(self) -> None:
        """Start from a state of zeros; that of training is not needed again."""
        self.state = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of one batch, as the optimizer wants it."""
        ids, targets = batch
        loss, state = self.model(ids, targets, self.state)
        self.state = detached(state) if self.train_data.carried else None
        self.measure("fit", loss.detach() * len(targets), len(targets))
        if self.settings.loss_per == "sequence":
            return loss * (len(targets) / ids.batch_size)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Plain cross-entropy."""
        assert self.valid_data is not None
        ids, targets = batch
        loss, state = self.model(ids, targets, self.state, reduction="sum")
        self.state = state if self.valid_data.carried else None
        self.measure("valid", loss, len(targets))

    def metrics_of(self, part: str) -> dict[str, float]:
        """Perplexity of a part."""
        return {"perplexity": perplexity(self.mean_loss(part))}

    def configure_optimizers(self) -> Any:
        """AdamW or SGD, and the factor of its rate by step or by epoch."""
        optimizer = self._optimizer()
        settings, steps = self.settings, len(self.train_data) * self.settings.epochs

        def factor(at: int) -> float:
            if settings.schedule == "cosine":
                return rate_at(at, steps)
            return 1.0 if settings.schedule == "constant" else decayed(at, settings)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        interval = "step" if settings.schedule == "cosine" else "epoch"
        return [optimizer], [{"scheduler": schedule, "interval": interval}]

    def _optimizer(self) -> torch.optim.Optimizer:
        settings, parameters = self.settings, list(self.model.parameters())
        if settings.optimizer == "sgd":
            # Only the rows that a batch met have a gradient: of 10,000 words some 300.
            network = cast("LanguageNetwork", self.model)
            embedding, softmax = network.embedding, network.softmax
            embedding.sparse = getattr(softmax, "weight", None) is not embedding.weight
            return torch.optim.SGD(parameters, lr=settings.learning_rate)
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Scale all gradients down to the wanted norm; sparse ones too, which Lightning cannot."""
        if gradient_clip_val:
            clip_norm(self.model.parameters(), float(gradient_clip_val))

    def train_dataloader(self) -> Any:
        """Batches of the current epoch."""
        if isinstance(self.train_data, LineBatches):
            self.train_data.budget.set_epoch(self.current_epoch)
        return self.train_data

    def val_dataloader(self) -> Any:
        """Validation batches, always the same."""
        return self.valid_data or []


def clip_norm(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale gradients down where their norm over all parameters is above ``most``; give the norm.

    A sparse gradient is coalesced first: rows met twice count as their sum.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> float(clip_norm([weight], 1.0)), [round(v, 3) for v in weight.grad.tolist()]
    (5.0, [0.6, 0.8])
    """
    held: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            parameter.grad = gradient = gradient.coalesce()
            held.append(gradient.values())
        elif gradient is not None:
            held.append(gradient)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in held]))
    if float(norm) > most:
        for gradient in held:
            gradient.mul_(most / float(norm))
    return norm


def decayed(epoch: int, settings: LanguageTraining) -> float:
    """Factor of the learning rate in an epoch, counted from 0.

    >>> settings = LanguageTraining(decay=0.5, flat=4)
    >>> [decayed(epoch, settings) for epoch in range(6)]
    [1.0, 1.0, 1.0, 1.0, 0.5, 0.25]
    """
    return settings.decay ** max(0, epoch + 1 - settings.flat)
