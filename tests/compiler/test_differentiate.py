"""Only wanted gradients are derived, and through every node that they flow through."""

from __future__ import annotations

import torch

from compiler.test_schedule import all_needs, kinds, made, ops, passes
from unpad import Cell
from unpad.compiler.differentiate import differentiate, requiring
from unpad.compiler.ops import OPERATIONS
from unpad.compiler.step import LEAVES, VIEWS
from unpad.nn import LSTMCell, RNNCell, Stack


def sums(program) -> list[str]:
    return ops(program.phases[-1]) if kinds(program)[-1] == "REDUCE" else []


def test_frozen_weights_have_no_sums() -> None:
    _, backward = passes(LSTMCell(3, 4), matrices=(False, False), shared=(False,))
    assert sums(backward) == []
    _, backward = passes(LSTMCell(3, 4), matrices=(True, False))
    assert sorted(sums(backward)) == ["outer", "sum_rows"]


def test_an_input_without_a_gradient_costs_no_product() -> None:
    _, backward = passes(LSTMCell(3, 4), x=False)
    assert [op for phase in backward.phases for op in ops(phase)].count("linear") == 1


def test_layers_below_the_wanted_gradient_are_not_entered() -> None:
    """Only the upper cell's weights: the lower one's backward loop is left out."""
    cell = Stack([RNNCell(3, 4), RNNCell(4, 2)])
    compiled = made(cell)
    upper = tuple(2 in shape for shape in compiled.step.matrices)
    assert any(upper)
    assert not all(upper)
    _, backward = passes(
        cell, x=False, states=(False, False), matrices=upper,
        shared=(False,) * len(compiled.step.shared_widths),
    )  # fmt: skip
    assert kinds(backward).count("LOOP") == 1


def test_a_state_that_a_weight_reaches_is_alive_though_none_asked_for_it() -> None:
    compiled = made(RNNCell(3, 4))
    needs = all_needs(compiled, x=False, states=(False,))
    flowing, alive = requiring(compiled.step, needs, compiled.floating, compiled.forward_nodes)
    assert alive == [True]
    assert compiled.step.output in flowing


def test_no_gradient_flows_through_detach_and_steps() -> None:
    class Stops(Cell):
        input_size = state_size = 3

        def forward(self, x, h):
            return torch.floor(x) + h.detach(), torch.sign(h)

    compiled = made(Stops())
    adjoint = differentiate(
        compiled.step, all_needs(compiled), compiled.floating, compiled.forward_nodes
    )
    assert adjoint.x is None
    assert adjoint.states == [None]
    assert adjoint.matrix_sums == []


def test_a_graph_is_derived_in_operations_of_the_table_alone() -> None:
    compiled = made(Stack([LSTMCell(3, 4), RNNCell(4, 2)]))
    differentiate(compiled.step, all_needs(compiled), compiled.floating, compiled.forward_nodes)
    known = {*OPERATIONS, *LEAVES, *VIEWS, "linear"}
    assert {node.op for node in compiled.step.graph.nodes} <= known
