"""Layers of the simple recurrent cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from unpad.cells import RNNCell
from unpad.cells.arguments import check_choice
from unpad.layers.base import Layers

if TYPE_CHECKING:
    from unpad.cells.initialize import Init


class RNN(Layers[Tensor]):
    """Layers of `RNNCell`: torch.nn.RNN over sequences of any length, with no padding.

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of the output of one direction.
        num_layers: number of layers.
        nonlinearity: ``"tanh"`` or ``"relu"``.
        bias: whether the cells have biases.
        batch_first: whether padded input is [B, S, I] or [S, B, I]. States are
            [layers * directions, B, H] in any case.
        dropout: rate between layers, in training; not after the last layer.
        bidirectional: whether a second cell reads each sequence from its end to its start; its
            output lies behind the first one's.
        init: ``"torch"``, ``"xavier"``, ``"orthogonal"`` or a function(name, parameter).
        memory: what is kept for the backward pass. ``"fast"``: all that it reads; ``"lean"``: the
            states at a few borders in time, between which the forward pass runs again, see
            `Recurrent`; or the most bytes.
        precision: of products. ``"bfloat16"``: what is multiplied is rounded to bfloat16, sums and
            all else stay float32; ``"float32"``: not even autocast changes that; None: see
            `Recurrent`.

    The ``state_dict`` is torch.nn.RNN's.

    >>> import torch
    >>> layer = RNN(3, 4, batch_first=True)
    >>> output, h_n = layer([torch.zeros(2, 3), torch.zeros(0, 3)])
    >>> [tuple(rows.shape) for rows in output], tuple(h_n.shape)
    ([(2, 4), (0, 4)], (1, 2, 4))
    """

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        init: Init = "torch",
        memory: str | int = "fast",
        precision: str | None = None,
    ) -> None:
        self.nonlinearity = check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        self.mode = f"RNN_{nonlinearity.upper()}"
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
        return RNNCell(input_size, self.hidden_size, self.bias, self.nonlinearity, device="meta")
