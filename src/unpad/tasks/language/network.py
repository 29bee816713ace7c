"""The network of a language model: embedding, recurrent layers, softmax over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unpad.nest import map_leaves
from unpad.ragged import Ragged
from unpad.ragged.lengths import rows_of
from unpad.tasks.encoder import recurrent_layers
from unpad.tasks.language.settings import LanguageSettings
from unpad.tasks.language.softmax import make_softmax

EMBEDDING_RANGE = 0.1
"""Embeddings start uniform within plus and minus this: they may be a softmax's weight too."""

State = list[Any]
"""A layer's state each; None: zeros."""


class LanguageNetwork(nn.Module):
    """The loss of a ragged batch of ids, each token told by those before it.

    ``classes`` [V] is the class of each word, for the hierarchical softmax.

    >>> network = LanguageNetwork(LanguageSettings(hidden_size=8), vocabulary=10)
    >>> ids = Ragged.from_list([torch.tensor([1, 4, 2]), torch.tensor([], dtype=torch.int64)])
    >>> loss, state = network(ids, targets=torch.tensor([4, 2, 1]))
    >>> loss.shape, len(state)
    (torch.Size([]), 2)
    """

    def __init__(
        self, settings: LanguageSettings, vocabulary: int, classes: Tensor | None = None
    ) -> None:
        super().__init__()
        size, width = settings.hidden_size, settings.width
        self.dropout, self.same_mask = settings.dropout, settings.same_mask
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.uniform_(self.embedding.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        widths = [width, *[size] * (settings.layers - 1)]
        self.layers = recurrent_layers(settings.cell, widths, size, precision=settings.precision)
        tied = self.embedding.weight if settings.tied else None
        self.softmax = make_softmax(
            settings.softmax, size, vocabulary, classes, tied, settings.precision
        )
        if settings.init:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -settings.init, settings.init)

    def forward(
        self, ids: Ragged, targets: Tensor, state: State | None = None, reduction: str = "mean"
    ) -> tuple[Tensor, State]:
        """Loss in nats and the state after it.

        Args:
            ids: ragged [T], the tokens read.
            targets: [T], the token that follows each.
            state: what a call before gave, of the same batch size; None: zeros.
            reduction: "mean" over tokens, "sum" or "none" ([T]).
        """
        hidden, state = self.hidden(ids, state)
        return self.softmax(hidden, targets, reduction=reduction), state

    def hidden(self, ids: Ragged, state: State | None = None) -> tuple[Tensor, State]:
        """The last layer's outputs [T, hidden_size], and the state. Length 0 keeps its state."""
        x = ids.with_values(self.embedding(ids.values))
        before = [None] * len(self.layers) if state is None else state
        after: State = []
        for layer, held in zip(self.layers, before, strict=True):
            x, new = layer(self._drop(x), held)
            after.append(new)
        return self._drop(x).values, after

    def _drop(self, x: Ragged) -> Ragged:
        if not self.training or not self.dropout:
            return x
        values = x.values
        rows = x.batch_size if self.same_mask else len(values)
        mask = values.new_empty(rows, values.shape[1]).bernoulli_(1 - self.dropout)
        mask.div_(1 - self.dropout)
        if self.same_mask:
            mask = mask[rows_of(x.offsets).to(mask.device)]
        return x.with_values(values * mask)


def detached(state: State) -> State:
    """The numbers of a state without their past: back-propagation ends here."""
    return [map_leaves(torch.Tensor.detach, part) for part in state]
