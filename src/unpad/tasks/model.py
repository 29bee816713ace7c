"""The classifier network: embedding or features, recurrent layers, pooling, one linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unpad.ragged import Ragged
from unpad.tasks.encoder import Encoder
from unpad.tasks.settings import ModelSettings


class SequenceModel(nn.Module):
    """Logits [B, classes] of a ragged batch of features [T, F] or of ids [T].

    The recurrent outputs are pooled three ways, side by side: the last state of each direction, the
    mean and the maximum over the tokens of a sequence. A sequence of length 0 has zeros in all
    three: its logits are the bias of the last layer.
    """

    def __init__(self, settings: ModelSettings, input_size: int, classes: int, *, text: bool):
        super().__init__()
        self.embedding = nn.Embedding(input_size, settings.embedding_size) if text else None
        self.dropout, self.word_dropout = settings.dropout, settings.word_dropout
        self.encoder = Encoder(
            settings.cell,
            settings.embedding_size if text else input_size,
            settings.hidden_size,
            settings.layers,
            bidirectional=settings.bidirectional,
            dropout=settings.dropout,
        )
        self.head = nn.Linear(3 * self.encoder.output_size, classes)

    def forward(self, x: Ragged) -> Tensor:
        """Logits [B, classes]."""
        outputs, last = self.encoder(self._inputs(x))
        pooled = torch.cat([last, outputs.mean(), outputs.max()], dim=1)
        return self.head(F.dropout(pooled, self.dropout, self.training))

    def _inputs(self, x: Ragged) -> Ragged:
        if self.embedding is None:
            return x
        ids = x.values
        if self.training:
            ids = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < self.word_dropout, 0)
        embedded = F.dropout(self.embedding(ids), self.dropout, self.training)
        return x.with_values(embedded)
