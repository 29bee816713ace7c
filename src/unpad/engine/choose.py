"""Which engine runs a cell: the one door through which every layer and function goes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from unpad.engine import eager


def run(
    cell: nn.Module,
    x: Tensor,
    offsets: Tensor,
    state: Any,
    *,
    reverse: bool = False,
    return_states: bool = False,
) -> tuple[Tensor, Any, Any]:
    """Run a cell over every sequence of a ragged batch."""
    return eager.run(cell, x, offsets, state, reverse=reverse, return_states=return_states)
