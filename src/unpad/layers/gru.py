"""Layers of the gated recurrent unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from unpad.cells import GRUCell
from unpad.layers.base import Layers

if TYPE_CHECKING:
    from unpad.cells.initialize import Init


class GRU(Layers[Tensor]):
    """Layers of `GRUCell`: torch.nn.GRU over sequences of any length, with no padding.

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of the output of one direction.
        num_layers, bias, batch_first, dropout, bidirectional, init, memory, precision: as for
            `RNN`.
        reset_after: torch's form; False: the first paper's and TensorFlow 1's, see `GRUCell`.

    The ``state_dict`` is torch.nn.GRU's.

    >>> import torch
    >>> layer = GRU(3, 4, bidirectional=True, batch_first=True)
    >>> output, h_n = layer(torch.zeros(2, 5, 3), lengths=[5, 0])
    >>> tuple(output.shape), tuple(h_n.shape)
    ((2, 5, 8), (2, 2, 4))
    """

    mode, gates = "GRU", 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        reset_after: bool = True,
        init: Init = "torch",
        memory: str | int = "fast",
        precision: str | None = None,
    ) -> None:
        self.reset_after = reset_after
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            init=init,
            memory=memory,
            precision=precision,
            device=device,
            dtype=dtype,
        )

    def _make_cell(self, input_size: int) -> nn.Module:
        return GRUCell(
            input_size, self.hidden_size, self.bias, reset_after=self.reset_after, device="meta"
        )
