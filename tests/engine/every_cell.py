"""Every shipped cell with its options, and every engine and tier of this machine, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

import unpad
from unpad.engine import native_engine
from unpad.nn import (
    Dropout,
    GRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    Residual,
    RNNCell,
    Stack,
    Zoneout,
)


class SharedWeights(nn.Module):
    """Not an `unpad.Cell`: any module with the sizes is one; one matrix on x and on h."""

    input_size = state_size = output_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def initial_state(self, batch_size, *, dtype=None, device=None):
        return torch.zeros(batch_size, 4, dtype=dtype, device=device)

    def forward(self, x, h):
        h = torch.tanh(self.map(x) + self.map(h))
        return h, h


SHIPPED: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: RNNCell(3, 5),
    "rnn relu": lambda: RNNCell(3, 5, nonlinearity="relu"),
    "rnn no bias": lambda: RNNCell(2, 4, bias=False),
    "gru": lambda: GRUCell(3, 5),
    "gru reset before": lambda: GRUCell(5, 3, reset_after=False),
    "gru no bias": lambda: GRUCell(3, 4, bias=False),
    "lstm": lambda: LSTMCell(3, 5, forget_bias=1.0),
    "lstm no bias": lambda: LSTMCell(3, 4, bias=False),
    "lstm peepholes": lambda: LSTMCell(2, 4, peepholes=True),
    "lstm projected": lambda: LSTMCell(3, 5, proj_size=2),
    "lstm clipped": lambda: LSTMCell(3, 5, cell_clip=0.3),
    "lstm all": lambda: LSTMCell(
        4, 6, forget_bias=1.0, peepholes=True, proj_size=3, cell_clip=0.5, proj_clip=0.2
    ),
    "layer norm lstm": lambda: LayerNormLSTMCell(3, 5, forget_bias=1.0),
    "layer norm lstm no bias": lambda: LayerNormLSTMCell(3, 4, bias=False),
    "stack": lambda: Stack([LSTMCell(3, 5), GRUCell(5, 2), RNNCell(2, 4)]),
    "stack of one": lambda: Stack([LayerNormLSTMCell(3, 4)]),
    "residual": lambda: Residual(GRUCell(4, 4)),
    "dropout eval": lambda: Dropout(LSTMCell(3, 5), input=0.3, output=0.2, state=0.4).eval(),
    "zoneout eval": lambda: Zoneout(LSTMCell(3, 5), (0.2, 0.5)).eval(),
    "zoneout frozen": lambda: Zoneout(LSTMCell(3, 5), (1.0, 0.0)).eval(),
    "all wrapped": lambda: Stack(
        [Residual(Zoneout(GRUCell(3, 3), 0.3)), Dropout(LSTMCell(3, 4), state=0.2)]
    ).eval(),
    "no cell by class": SharedWeights,
    "sizes 1": lambda: LSTMCell(1, 1),
    "size 130": lambda: GRUCell(1, 130),
    "size 130 to 3": lambda: LSTMCell(130, 3),
}

RANDOM: dict[str, Callable[[], nn.Module]] = {
    "dropout fresh": lambda: Dropout(LSTMCell(3, 5), input=0.3, output=0.4, state=0.3),
    "dropout of c": lambda: Dropout(LSTMCell(3, 5), state=(0.0, 0.5), same_over_time=True),
    "dropout over time": lambda: Dropout(GRUCell(3, 5), input=0.5, state=0.5, same_over_time=True),
    "zoneout": lambda: Zoneout(LSTMCell(3, 5), (0.2, 0.5)),
    "stack of noise": lambda: Stack(
        [Zoneout(RNNCell(3, 4), 0.4), Dropout(GRUCell(4, 4), output=0.5, same_over_time=True)]
    ),
}

TIERS: list[str] = (
    list(native_engine._native.supported_tiers()) if native_engine.available() else []
)
ENGINES = ["torch", *(f"native {tier}" for tier in TIERS)]


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Run on an engine of `ENGINES`; a native one on its tier, which is put back afterwards."""
    engine, _, tier = name.partition(" ")
    before = native_engine.tier() if tier else ""
    if tier:
        native_engine._native.select_tier(tier)
    try:
        with unpad.engine(engine):
            yield
    finally:
        if tier:
            native_engine._native.select_tier(before)
