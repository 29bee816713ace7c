"""The recurrent layers of a model: ragged in, ragged out, with the last state of each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unpad.nn import GRU, LSTM, RNN, LayerNormLSTMCell, Recurrent
from unpad.ragged import Ragged


class Encoder(nn.Module):
    """Stacked recurrent layers over a ragged batch.

    ``forward(x)`` takes a `Ragged` of [T, input_size] and returns the outputs, a `Ragged` of
    [T, output_size], and the last output of every direction side by side [B, output_size]: of the
    forward one after the last token, of the backward one after the first. Length 0 gives zeros.

    >>> encoder = Encoder("gru", 3, 4, layers=1, bidirectional=True, dropout=0.0)
    >>> outputs, last = encoder(Ragged.from_list([torch.zeros(2, 3), torch.zeros(0, 3)]))
    >>> outputs.values.shape, last.shape
    (torch.Size([2, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        layers: int,
        *,
        bidirectional: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.directions = 2 if bidirectional else 1
        self.output_size = hidden_size * self.directions
        widths = [input_size, *[self.output_size] * (layers - 1)]
        self.layers = recurrent_layers(cell, widths, hidden_size, bidirectional=bidirectional)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Ragged) -> tuple[Ragged, Tensor]:
        """Outputs and last output of each direction."""
        state: Any = None
        for number, layer in enumerate(self.layers):
            if number:
                x = x.with_values(self.dropout(x.values))
            x, state = layer(x)
        return x, self._last(state)

    def _last(self, state: Any) -> Tensor:
        """The output part of the final state, directions side by side [B, output_size]."""
        if isinstance(self.layers[0], Recurrent):
            ends = state if self.directions == 2 else [state]
            return torch.cat([end[0] for end in ends], dim=1)
        outputs = state[0] if isinstance(state, tuple) else state
        return torch.cat(list(outputs), dim=1)


def recurrent_layers(
    cell: str,
    widths: Sequence[int],
    hidden_size: int,
    *,
    bidirectional: bool = False,
    precision: str | None = None,
) -> nn.ModuleList:
    """One recurrent layer for each input width, by the cell's name in the settings."""
    if cell == "layernorm_lstm":
        cells: list[Any] = [LayerNormLSTMCell(width, hidden_size) for width in widths]
        return nn.ModuleList(Recurrent(c, bidirectional, precision=precision) for c in cells)
    kind: Any = {"lstm": LSTM, "gru": GRU, "rnn": RNN}[cell]
    return nn.ModuleList(
        kind(width, hidden_size, bidirectional=bidirectional, precision=precision)
        for width in widths
    )
