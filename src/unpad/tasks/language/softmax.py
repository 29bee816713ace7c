"""The softmax over the vocabulary, by its name in the settings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unpad.functional import classes_by_bigrams, classes_by_frequency
from unpad.nn import HierarchicalSoftmax, LinearCrossEntropy
from unpad.ragged import Ragged

SHARES = (0.1, 0.4)
"""Of the vocabulary: where the adaptive softmax's second and third cluster begin."""


def make_softmax(
    kind: str,
    hidden_size: int,
    vocabulary: int,
    classes: Tensor | None,
    weight: Tensor | None,
    precision: str | None,
) -> nn.Module:
    """A module ``(hidden [T, H], target [T], reduction=) -> loss`` with ``log_prob`` and ``topk``.

    ``weight`` [V, H] is shared with the embedding, or None. torch's adaptive one knows no
    ``precision``.
    """
    if kind == "adaptive":
        return AdaptiveSoftmax(hidden_size, vocabulary)
    if kind == "hierarchical":
        return HierarchicalSoftmax(
            hidden_size, vocabulary, classes, weight=weight, precision=precision
        )
    return LinearCrossEntropy(hidden_size, vocabulary, weight=weight, precision=precision)


def make_classes(kind: str, ids: Tensor, offsets: Tensor, vocabulary: int) -> Tensor:
    """The class of each word [V], by the training text."""
    if kind == "bigrams":
        return classes_by_bigrams(Ragged(ids, offsets), vocabulary)
    return classes_by_frequency(torch.bincount(ids, minlength=vocabulary))


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    """torch's adaptive softmax (Grave et al. 2017) with the calls of our own.

    Words must come in the order of their frequency, as those of a vocabulary do.

    >>> softmax = AdaptiveSoftmax(8, 20)
    >>> softmax(torch.zeros(3, 8), torch.tensor([0, 5, 19]), reduction="none").shape
    torch.Size([3])
    """

    def __init__(self, hidden_size: int, vocabulary: int) -> None:
        cuts = sorted({max(1, int(share * vocabulary)) for share in SHARES})
        # torch narrows each cluster by this factor more, to nothing where there is little.
        narrower = 4.0 if hidden_size >= 4 ** len(cuts) else 1.0
        super().__init__(hidden_size, vocabulary, cuts, div_value=narrower, head_bias=True)

    def forward(self, hidden: Tensor, target: Tensor, *, reduction: str = "mean") -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the loss of each token, reduced."""
        found = -super().forward(hidden, target).output
        return {"none": found, "mean": found.mean(), "sum": found.sum()}[reduction]

    def topk(self, hidden: Tensor, k: int, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log probabilities and words of the k likeliest, best first: [..., k] both."""
        return self.log_prob(hidden, temperature=temperature).topk(k, dim=-1)

    def log_prob(self, hidden: Tensor, *, temperature: float = 1.0) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Log probability of every word [..., V]."""
        flat = super().log_prob(hidden.reshape(-1, hidden.shape[-1]))
        if temperature != 1.0:
            flat = torch.log_softmax(flat / temperature, -1)
        return flat.reshape(*hidden.shape[:-1], -1)
