"""The two softmaxes in plain torch operations: the specification, and what other devices run.

Everything here is differentiable any number of times. Losses, logits and log probabilities are
float32 where the tensors are narrower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from unpad.engine.precision import product
from unpad.errors import ArgumentError
from unpad.softmax.grouping import Grouping

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, eq=False)
class Head:
    """What turns hidden rows into words; with ``grouping`` in two levels, without it in one.

    ``weight`` [V, H] and ``bias`` [V] by words; ``class_weight`` [C, H] and ``class_bias`` [C] by
    classes. ``rounds``: the operands of products are rounded to bfloat16.
    """

    weight: Tensor
    bias: Tensor | None = None
    class_weight: Tensor | None = None
    class_bias: Tensor | None = None
    grouping: Grouping | None = None
    temperature: float = 1.0
    label_smoothing: float = 0.0
    rounds: bool = False

    def tensors(self) -> list[Tensor | None]:
        """Return what a gradient may be wanted of."""
        return [self.weight, self.bias, self.class_weight, self.class_bias]

    def with_tensors(self, tensors: list[Tensor | None]) -> Head:
        """Return the same head over others in their place."""
        weight, bias, class_weight, class_bias = tensors
        assert weight is not None
        return replace(
            self, weight=weight, bias=bias, class_weight=class_weight, class_bias=class_bias
        )


def losses(hidden: Tensor, target: Tensor, head: Head) -> Tensor:
    """Return minus the log probability of each target [T], of rows [T, H]."""
    if head.grouping is None:
        logits = _logits(hidden, head.weight, head.bias, head)
        return F.cross_entropy(
            logits, target, reduction="none", label_smoothing=head.label_smoothing
        )
    groups, words = head.grouping, _Words(head, head.grouping)
    classes = groups.class_of[target]
    order = classes.argsort(stable=True)
    parts: list[Tensor] = []
    for number, rows in _shared_out(classes, order, len(groups.sizes)):
        logits = words.logits(hidden.index_select(0, rows), number)
        place = groups.place_of[target[rows]]
        parts.append(F.cross_entropy(logits, place, reduction="none"))
    class_losses = F.cross_entropy(class_logits(hidden, head), classes, reduction="none")
    if not parts:  # no token, but every weight has a gradient
        return class_losses + words.logits(hidden, 0).sum()
    return class_losses + torch.cat(parts)[order.argsort()]


def log_prob(hidden: Tensor, head: Head) -> Tensor:
    """Return the log probability of every word [T, V]."""
    if head.grouping is None:
        return _logits(hidden, head.weight, head.bias, head).log_softmax(-1)
    groups = head.grouping
    of_classes = class_logits(hidden, head).log_softmax(-1)
    logits = _logits(hidden, head.weight, head.bias, head)
    if not groups.in_order:
        logits = logits.index_select(1, groups.words)
    parts = logits.split(groups.sizes, -1)
    joined = [of_classes[:, [c]] + part.log_softmax(-1) for c, part in enumerate(parts)]
    found = torch.cat(joined, -1)
    return found if groups.in_order else found.index_select(1, groups.words.argsort())


def best_of(head: Head) -> Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]:
    """Return what finds the likeliest words of classes, for `search.topk`."""
    assert head.grouping is not None
    groups, words = head.grouping, _Words(head, head.grouping)

    def best(hidden: Tensor, rows: Tensor, classes: Tensor, k: int) -> tuple[Tensor, Tensor]:
        shape, wide = (len(rows), k), hidden.dtype.itemsize < 4
        values = hidden.new_full(shape, -torch.inf, dtype=torch.float32 if wide else None)
        named = torch.zeros(shape, dtype=torch.int64, device=hidden.device)
        order = classes.argsort(stable=True)
        for number, pairs in _shared_out(classes, order, len(groups.sizes)):
            logits = words.logits(hidden.index_select(0, rows[pairs]), number)
            count = min(k, logits.shape[1])
            found = logits.log_softmax(-1).topk(count)
            values[pairs, :count] = found.values
            named[pairs, :count] = groups.words[int(groups.starts[number]) + found.indices]
        return values, named

    return best


def sample(hidden: Tensor, head: Head, generator: torch.Generator | None) -> Tensor:
    """Draw a word for each row [T]: a class first, then one of its words."""
    if head.grouping is None:
        return draw(_logits(hidden, head.weight, head.bias, head), generator)
    groups, words = head.grouping, _Words(head, head.grouping)
    classes = draw(class_logits(hidden, head), generator)
    drawn = torch.empty_like(classes)
    for number, rows in _shared_out(classes, classes.argsort(stable=True), len(groups.sizes)):
        places = draw(words.logits(hidden.index_select(0, rows), number), generator)
        drawn[rows] = groups.words[int(groups.starts[number]) + places]
    return drawn


def class_logits(hidden: Tensor, head: Head) -> Tensor:
    """Return the first level's logits [T, C]."""
    assert head.class_weight is not None
    return _logits(hidden, head.class_weight, head.class_bias, head)


@dataclass(eq=False)
class _Words:
    """The second level: the weight cut into its classes once, so that its gradient is joined once.

    A view for each class where they follow the order of words; else of one copy in their order.
    """

    head: Head
    groups: Grouping
    weights: tuple[Tensor, ...] = field(init=False)
    biases: tuple[Tensor, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        weight, bias, order = self.head.weight, self.head.bias, self.groups.words
        if not self.groups.in_order:
            weight = weight.index_select(0, order)
            bias = None if bias is None else bias.index_select(0, order)
        self.weights = weight.split(self.groups.sizes)
        self.biases = None if bias is None else bias.split(self.groups.sizes)

    def logits(self, hidden: Tensor, number: int) -> Tensor:
        bias = None if self.biases is None else self.biases[number]
        return _logits(hidden, self.weights[number], bias, self.head)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head) -> Tensor:
    if head.rounds:
        logits = product(hidden.float(), weight.float().t(), "bfloat16")
        logits = logits if bias is None else logits + bias.float()
    else:
        logits = F.linear(hidden, weight, bias)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    return logits if head.temperature == 1 else logits / head.temperature


def _shared_out(classes: Tensor, order: Tensor, count: int) -> list[tuple[int, Tensor]]:
    """Return the classes that are there, each with its rows; ``order`` sorts the rows by class."""
    sizes: list[int] = torch.bincount(classes, minlength=count).tolist()
    return [(n, rows) for n, rows in enumerate(order.split(sizes)) if sizes[n]]


def draw(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a column of each row's logits [T, n]: int64 [T]."""
    if len(logits) == 0:
        return torch.zeros(0, dtype=torch.int64, device=logits.device)
    probabilities = logits.softmax(-1)
    none = probabilities[:, 0].isnan()  # which the softmax spreads to the whole row
    if bool(none.any()):
        found = f"NaN or inf in {int(none.sum())} rows of logits"
        raise ArgumentError(
            "hidden", found, "rows that have a distribution", "look for the first NaN before"
        )
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
