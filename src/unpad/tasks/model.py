"""The classifier network: embeddings or features, recurrent layers, pooling, a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unpad.ragged import Ragged
from unpad.tasks.encoder import Encoder
from unpad.tasks.settings import ModelSettings


class SequenceModel(nn.Module):
    """Logits [B, classes] of a ragged batch of features [T, F] or of ids [T].

    With ``subwords`` the vector of a token is that of its id plus the sum of those of its character
    n-grams (Bojanowski et al. 2017, section 3.2), which come as a second ragged batch of T rows: a
    word that training never saw, or that word dropout hides, still has its n-grams.

    The recurrent outputs are pooled three ways, side by side: the last state of each direction, the
    mean and the maximum over the tokens of a sequence. A sequence of length 0 has zeros in all
    three: its logits are the bias of the last layer.
    """

    def __init__(
        self,
        settings: ModelSettings,
        input_size: int,
        classes: int,
        *,
        text: bool,
        subwords: int = 0,
    ) -> None:
        super().__init__()
        size = settings.embedding_size
        self.embedding = nn.Embedding(input_size, size) if text else None
        self.subwords = nn.EmbeddingBag(subwords, size, mode="sum") if subwords else None
        self.dropout, self.word_dropout = settings.dropout, settings.word_dropout
        self.encoder = Encoder(
            settings.cell,
            size if text else input_size,
            settings.hidden_size,
            settings.layers,
            bidirectional=settings.bidirectional,
            dropout=settings.dropout,
        )
        self.head = nn.Linear(3 * self.encoder.output_size, classes)

    def forward(self, x: Ragged, ngrams: Ragged | None = None) -> Tensor:
        """Logits [B, classes]; ``ngrams`` (with subwords) has a row for each token of ``x``."""
        outputs, last = self.encoder(self._inputs(x, ngrams))
        pooled = torch.cat([last, outputs.mean(), outputs.max()], dim=1)
        return self.head(F.dropout(pooled, self.dropout, self.training))

    def _inputs(self, x: Ragged, ngrams: Ragged | None) -> Ragged:
        if self.embedding is None:
            return x
        ids = x.values
        if self.training:
            ids = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < self.word_dropout, 0)
        vectors = self.embedding(ids)
        if self.subwords is not None:
            assert ngrams is not None
            starts = ngrams.offsets[:-1].to(ids.device)
            vectors = vectors + self.subwords(ngrams.values, starts)
        return x.with_values(F.dropout(vectors, self.dropout, self.training))
