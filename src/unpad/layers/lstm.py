"""Layers of the long short-term memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from unpad.cells import LSTMCell
from unpad.cells.initialize import set_forget_bias
from unpad.errors import ArgumentError
from unpad.layers.base import Layers

if TYPE_CHECKING:
    from unpad.cells.initialize import Init


class LSTM(Layers[tuple[Tensor, Tensor]]):
    """Layers of `LSTMCell`: torch.nn.LSTM over sequences of any length, with no padding.

    Args:
        input_size: I, features of a token.
        hidden_size: H, features of c, and of the output of one direction without projection.
        num_layers, bias, batch_first, dropout, bidirectional, init, memory, precision: as for
            `RNN`.
        proj_size: P, features of h after a projection; 0: none.
        forget_bias: what the two biases of the forget gate add up to at the start, exactly; None:
            torch.nn's random numbers.

    The ``state_dict`` is torch.nn.LSTM's.

    >>> import torch
    >>> layer = LSTM(3, 4, num_layers=2, batch_first=True)
    >>> output, (h_n, c_n) = layer(torch.zeros(2, 5, 3), lengths=[5, 1])
    >>> tuple(output.shape), tuple(c_n.shape)
    ((2, 5, 4), (2, 2, 4))
    """

    mode, gates = "LSTM", 4

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        forget_bias: float | None = None,
        init: Init = "torch",
        memory: str | int = "fast",
        precision: str | None = None,
    ) -> None:
        self.forget_bias = forget_bias
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            proj_size=proj_size,
            init=init,
            memory=memory,
            precision=precision,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Start afresh, by ``init`` and ``forget_bias``."""
        super().reset_parameters()
        if self.forget_bias is not None:
            for _, _, bias_ih, bias_hh, *_ in self.all_weights:
                set_forget_bias(self.forget_bias, bias_ih, bias_hh, self.hidden_size)

    def _make_cell(self, input_size: int) -> nn.Module:
        if self.proj_size >= self.hidden_size:
            raise ArgumentError(
                "proj_size",
                self.proj_size,
                f"0 (none) or 1 to hidden_size - 1 = {self.hidden_size - 1}, as in torch.nn",
                "leave it out to keep h at hidden_size, or use Recurrent(LSTMCell(...))",
            )
        return LSTMCell(
            input_size,
            self.hidden_size,
            self.bias,
            forget_bias=self.forget_bias,
            proj_size=self.proj_size,
            device="meta",
        )

    def _state_widths(self) -> tuple[int, ...]:
        return (self._output_size, self.hidden_size)
