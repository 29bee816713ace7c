"""Stage 3, differentiate: the adjoint of a step, added to its own graph.

Reverse accumulation over one row. The gradient of a new state arrives from the next token as the
leaf ``grad_state``; the gradient of the old state is what the previous token will receive. The
gradient of a matrix is a sum over tokens of outer products, that of a shared vector a sum of rows:
they are listed as `Sum`, not computed in the step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from unpad.compiler.ops import OPERATIONS
from unpad.compiler.step import Graph, Step


@dataclass(frozen=True)
class Needs:
    """Which gradients are wanted, and which arrive: a loss on final states sends none per token."""

    x: bool
    states: tuple[bool, ...]
    matrices: tuple[bool, ...]
    shared: tuple[bool, ...]
    from_output: bool = True
    from_states: tuple[bool, ...] = ()

    def any(self) -> bool:
        """Whether there is anything to differentiate for."""
        return self.x or any(self.states) or any(self.matrices) or any(self.shared)


@dataclass(frozen=True)
class Sum:
    """Over the tokens: outer(left, grad) into a matrix's gradient, or grad into a vector's."""

    index: int
    left: int | None
    grad: int

    def flipped(self) -> Sum:
        """The sum of a matrix that is stored transposed: grad outside, left inside."""
        return self if self.left is None else Sum(self.index, self.grad, self.left)


@dataclass
class Adjoint:
    """``states``: for each state, the node of its gradient, or None where nothing flows."""

    graph: Graph
    x: int | None
    states: list[int | None]
    matrix_sums: list[Sum]
    shared_sums: list[Sum]


def requiring(
    step: Step, needs: Needs, floating: tuple[bool, ...], forward_nodes: int
) -> tuple[set[int], list[bool]]:
    """Nodes that a wanted gradient flows through, and for each state whether it is one of them."""
    graph = step.graph
    alive = [wanted and is_float for wanted, is_float in zip(needs.states, floating, strict=True)]
    while True:
        found = _flowing(graph, needs, alive, forward_nodes)
        grown = [
            is_float and (was or new in found)
            for was, new, is_float in zip(alive, step.states, floating, strict=True)
        ]
        if grown == alive:
            return found, alive
        alive = grown


def _flowing(graph: Graph, needs: Needs, alive: list[bool], forward_nodes: int) -> set[int]:
    found: set[int] = set()
    wanted = {"x": lambda n: needs.x, "shared": lambda n: needs.shared[n.index]}
    for number, node in enumerate(graph.nodes[:forward_nodes]):
        if node.op in wanted:
            flows = wanted[node.op](node)
        elif node.op == "state":
            flows = alive[node.index]
        elif node.op == "stop" or (
            node.op in OPERATIONS and OPERATIONS[node.op].derivative is None
        ):
            flows = False
        else:
            flows = any(arg in found for arg in node.args)
            flows = flows or (node.op == "linear" and needs.matrices[node.index // 2])
        if flows:
            found.add(number)
    return found


class _Contributions:
    """Gradients that arrive at a node: whole ones and columns."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, node: int, grad: int, start: int = 0) -> None:
        self.pieces[node].append((start, grad))

    def total(self, node: int) -> int | None:
        pieces, width = self.pieces.get(node, []), self.graph[node].width
        if not pieces:
            return None
        total: int | None = None
        for layer in _layers(self.graph, pieces):
            whole = self._whole(layer, width)
            total = whole if total is None else self.graph.op("add", total, whole)
        return total

    def _whole(self, layer: list[tuple[int, int]], width: int) -> int:
        """Disjoint columns as one vector, zero between them."""
        parts: list[int] = []
        at = 0
        for start, grad in [*sorted(layer), (width, -1)]:
            if start > at:
                parts.append(self.graph.fill(0.0, start - at))
            if grad >= 0:
                parts.append(grad)
                at = start + self.graph[grad].width
        return self.graph.concat(parts)


def _layers(graph: Graph, pieces: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Pieces sorted into layers of disjoint columns, greedily."""
    layers: list[list[tuple[int, int]]] = []
    for start, grad in sorted(pieces, key=lambda p: p[0]):
        for layer in layers:
            last_start, last = layer[-1]
            if last_start + graph[last].width <= start:
                layer.append((start, grad))
                break
        else:
            layers.append([(start, grad)])
    return layers


def differentiate(
    step: Step, needs: Needs, floating: tuple[bool, ...], forward_nodes: int
) -> Adjoint:
    """Add the adjoint of the step, its first ``forward_nodes`` nodes, to its graph."""
    graph = step.graph
    flowing, alive = requiring(step, needs, floating, forward_nodes)
    arriving = _arriving(step, needs, flowing, alive)
    adjoint = Adjoint(graph, None, [None] * len(step.states), [], [])
    for number in range(forward_nodes - 1, -1, -1):
        grad = arriving.total(number) if number in flowing else None
        if grad is not None:
            graph.source = graph.where.get(number, "")
            _propagate(adjoint, needs, number, grad, flowing, arriving)
    graph.source = ""
    return adjoint


def _arriving(step: Step, needs: Needs, flowing: set[int], alive: list[bool]) -> _Contributions:
    """Gradients from outside: of the output, and of the new states."""
    graph = step.graph
    arriving = _Contributions(graph)
    if needs.from_output and step.output in flowing:
        arriving.add(step.output, graph.leaf("grad_output", graph[step.output].width))
    for k, node in enumerate(step.states):
        if alive[k] and node in flowing:
            arriving.add(node, graph.leaf("grad_state", graph[node].width, k))
        if k < len(needs.from_states) and needs.from_states[k] and node in flowing:
            arriving.add(node, graph.leaf("grad_states", graph[node].width, k))
    return arriving


def _propagate(
    adjoint: Adjoint,
    needs: Needs,
    number: int,
    grad: int,
    flowing: set[int],
    arriving: _Contributions,
) -> None:
    """Pass the gradient of a node on to its arguments, or take it down as a result."""
    graph = adjoint.graph
    node = graph[number]
    if node.op == "x":
        adjoint.x = grad
    elif node.op == "state":
        adjoint.states[node.index] = grad
    elif node.op == "shared":
        adjoint.shared_sums.append(Sum(node.index, None, grad))
    elif node.op == "slice":
        arriving.add(node.args[0], grad, node.dims[0])
    elif node.op == "linear":
        (arg,), matrix = node.args, node.index // 2
        if needs.matrices[matrix]:
            adjoint.matrix_sums.append(Sum(matrix, arg, grad))
        if arg in flowing:
            arriving.add(arg, graph.linear(grad, matrix, graph[arg].width, transposed=True))
    elif node.op == "concat":
        at = 0
        for part in node.args:
            width = graph[part].width
            if part in flowing:
                arriving.add(part, graph.slice(grad, at, width))
            at += width
    else:
        _by_rule(graph, number, grad, flowing, arriving)


def _by_rule(
    graph: Graph, number: int, grad: int, flowing: set[int], arriving: _Contributions
) -> None:
    node = graph[number]
    operation = OPERATIONS[node.op]
    assert operation.derivative is not None
    grads = operation.derivative(graph, number, grad)
    for arg, arg_grad in zip(node.args, grads, strict=True):
        if arg_grad is None or arg not in flowing:
            continue
        if operation.elementwise and graph[arg].width < graph[arg_grad].width:
            arg_grad = graph.reduce("sum", arg_grad, 1, graph[arg_grad].width, 1)
        arriving.add(arg, arg_grad)
