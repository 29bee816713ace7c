"""The Lightning module of a language model: loss, state, optimizer, schedule, clipping."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from unpad.ragged import Ragged
from unpad.tasks.language.batches import Batch, LineBatches, Several, StreamBatches
from unpad.tasks.language.network import LanguageNetwork, State, detached
from unpad.tasks.language.perplexity import perplexity
from unpad.tasks.language.settings import LanguageTraining
from unpad.tasks.module import rate_at
from unpad.tasks.task_module import TaskModule

Batches = StreamBatches | LineBatches
AT_ONCE = 6_400
"""Tokens that Lightning is given at a time, in as many batches: its own work for one is a tenth of
a small step. Where a step is long, each is given alone: Lightning looks for a signal between them.
"""


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
        self.automatic_optimization = False
        self.model, self.settings = network, settings
        self.train_data, self.valid_data = train, valid
        self.state: State | None = None

    def on_train_epoch_start(self) -> None:
        """Start from a state of zeros."""
        self.state = None

    def on_validation_epoch_start(self) -> None:
        """Start from a state of zeros; that of training is not needed again."""
        self.state = None

    def training_step(self, batch: list[Batch], batch_idx: int) -> None:
        """An update of the weights for each of some batches."""
        optimizer: Any = self.optimizers()
        schedule: Any = self.lr_schedulers()
        state, by_step = self.state, self.settings.schedule == "cosine"
        for ids, targets in batch:
            optimizer.zero_grad()
            loss, after = self.model(ids, targets, state)
            loss.backward()
            per_row = self.settings.loss_per == "sequence"
            self._clip(optimizer.optimizer, len(targets) / ids.batch_size if per_row else 1.0)
            optimizer.step()
            if by_step:
                schedule.step()
            self.measure("fit", loss.detach() * len(targets), len(targets))
            state = detached(after) if self.train_data.carried else None
        self.state = state
        if not by_step and self.trainer.is_last_batch:
            schedule.step()

    def inputs_of(self, batch: list[Batch]) -> list[Ragged]:
        """The ids read."""
        return [ids for ids, _ in batch]

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
            return Descent(parameters, lr=settings.learning_rate)
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

    def _clip(self, optimizer: torch.optim.Optimizer, scale: float) -> None:
        """Scale and clip all gradients at once, in the optimizer's own pass where it is ours."""
        held = gradients(self.model.parameters())
        factor = clipped(held, scale, self.settings.clip)
        if isinstance(optimizer, Descent):
            optimizer.factor = factor
        elif factor != 1.0:
            for gradient in held:
                gradient.mul_(factor)

    def train_dataloader(self) -> Any:
        """Batches of the current epoch, some at a time."""
        if isinstance(self.train_data, LineBatches):
            self.train_data.budget.set_epoch(self.current_epoch)
        return Several(self.train_data, max(1, AT_ONCE // self.train_data.most))

    def val_dataloader(self) -> Any:
        """Validation batches, always the same."""
        return self.valid_data or []


class Descent(torch.optim.Optimizer):
    """Plain gradient descent, ``p -= lr * factor * gradient``, with a factor for all gradients.

    Scaling a loss, clipping and updating each read the gradient of every word's weights: as one
    factor they cost one pass. A sparse gradient changes only its own rows.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> optimizer = Descent([weight], lr=0.1)
    >>> optimizer.factor = clipped(gradients([weight]), scale=2.0, most=5.0)
    >>> _ = optimizer.step()
    >>> [round(v, 3) for v in weight.tolist()]
    [-0.3, -0.4]
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.factor = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update; ``closure`` computes the loss and its gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"] * self.factor)
        return loss


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The numbers of all gradients; a sparse one is coalesced, so that a row stands once."""
    held: list[Tensor] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            parameter.grad = gradient = gradient.coalesce()
            held.append(gradient.values())
        elif gradient is not None:
            held.append(gradient)
    return held


def clipped(held: list[Tensor], scale: float, most: float) -> float:
    """``scale``, made smaller where the norm of all gradients times it is above ``most`` (0: any).

    >>> clipped([torch.tensor([3.0]), torch.tensor([4.0])], 2.0, 5.0)
    1.0
    """
    if not most or not held:
        return scale
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in held])
    norm = scale * float(torch.linalg.vector_norm(norms))
    return scale * most / norm if norm > most else scale


def decayed(epoch: int, settings: LanguageTraining) -> float:
    """Factor of the learning rate in an epoch, counted from 0.

    >>> settings = LanguageTraining(decay=0.5, flat=4)
    >>> [decayed(epoch, settings) for epoch in range(6)]
    [1.0, 1.0, 1.0, 1.0, 0.5, 0.25]
    """
    return settings.decay ** max(0, epoch + 1 - settings.flat)
