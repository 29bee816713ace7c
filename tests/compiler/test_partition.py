"""What is kept from the forward pass for the backward pass, in numbers a token."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compiler.test_schedule import all_needs, made
from unpad import Cell
from unpad.compiler.partition import is_dear
from unpad.nn import GRUCell, LayerNormLSTMCell, LSTMCell, RNNCell

H = 6


def kept(cell: nn.Module, **changes) -> int:
    compiled = made(cell)
    streams = compiled.programs(all_needs(compiled, **changes), False).streams
    return sum(streams.forward_widths[s] for s in (*streams.saved, *streams.histories.values()))


@pytest.mark.parametrize(
    ("cell", "most"),
    [
        (RNNCell(3, H), 2 * H),
        (LSTMCell(3, H), 7 * H),
        (GRUCell(3, H), 7 * H),
        (LayerNormLSTMCell(3, H), 16 * H + 3),
    ],
    ids=lambda v: type(v).__name__,
)
def test_no_more_is_saved_than_needed(cell: nn.Module, most: int) -> None:
    assert kept(cell) <= most


def test_nothing_is_saved_for_inference() -> None:
    compiled = made(LSTMCell(3, H))
    none = all_needs(
        compiled, x=False, states=(False, False), matrices=(False, False),
        shared=(False,) * len(compiled.step.shared_widths),
    )  # fmt: skip
    assert not none.any()
    assert compiled.programs(none, False).saved_nodes == ()


def test_the_cheap_is_computed_again() -> None:
    """Of tanh(2 x + h) - 1 only tanh is dear; sums and products of numbers are not saved."""

    class Cheap(Cell):
        input_size = state_size = H

        def forward(self, x, h):
            y = torch.tanh(2 * x + h)
            h = (y - 1) * (y + 3) * x
            return h, h

    compiled = made(Cheap())
    programs = compiled.programs(all_needs(compiled), False)
    graph = compiled.step.graph
    assert [graph[n].op for n in programs.saved_nodes] == ["tanh"]
    assert all(is_dear(graph, n) for n in programs.saved_nodes)


def test_a_frozen_recurrence_keeps_no_history() -> None:
    """The state before a token is read by the weights' gradient alone."""
    assert kept(RNNCell(3, H), matrices=(False, False)) == H
