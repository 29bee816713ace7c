"""What the forward pass saves for the backward pass: what is dear; the cheap is computed again.

Forward values are *primal*, values that depend on an arriving gradient are not. The primal values
that the adjoint reads directly are its frontier. Of these, products, transcendentals and reductions
are saved, the rest is recomputed wherever that needs nothing but saved values, streams and states
(whose history is kept); only where it would need more is it saved itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from unpad.compiler.differentiate import Adjoint
from unpad.compiler.ops import OPERATIONS
from unpad.compiler.step import VIEWS, Graph, uses

GRADIENT_LEAVES = frozenset({"grad_output", "grad_state", "grad_states"})
FREE_LEAVES = frozenset({"x", "noise", "shared", "const"})


@dataclass(frozen=True)
class Saved:
    """Nodes whose values are kept, and states whose history is kept."""

    nodes: tuple[int, ...]
    states: tuple[int, ...]


def roots(adjoint: Adjoint) -> list[int]:
    """Everything that the backward pass must deliver."""
    found = [n for n in (adjoint.x, *adjoint.states) if n is not None]
    for total in (*adjoint.matrix_sums, *adjoint.shared_sums):
        found.extend(n for n in (total.left, total.grad) if n is not None)
    return found


def is_dear(graph: Graph, number: int) -> bool:
    """Whether a value costs more to compute again than to keep."""
    node = graph[number]
    return node.op == "linear" or (node.op in OPERATIONS and OPERATIONS[node.op].dear)


def partition(adjoint: Adjoint) -> Saved:
    """The values to save and the states whose history to keep."""
    graph = adjoint.graph
    wanted = roots(adjoint)
    dual = _duals(graph)
    frontier = {n for n in wanted if n not in dual}
    for number in uses(graph, wanted):
        if number in dual:
            frontier.update(arg for arg in graph[number].args if arg not in dual)
    frontier = {base for number in frontier for base in _bases(graph, number)}
    saved = {number for number in frontier if is_dear(graph, number)}
    for number in sorted(frontier - saved):
        if not _available(graph, number, saved):
            saved.add(number)
    states = {n for n in _leaves(graph, frontier, saved) if graph[n].op == "state"}
    return Saved(tuple(sorted(saved)), tuple(sorted({graph[n].index for n in states})))


def _duals(graph: Graph) -> set[int]:
    dual: set[int] = set()
    for number, node in enumerate(graph.nodes):
        if node.op in GRADIENT_LEAVES or any(arg in dual for arg in node.args):
            dual.add(number)
    return dual


def _bases(graph: Graph, number: int) -> list[int]:
    """What a view looks at."""
    if graph[number].op not in VIEWS:
        return [number]
    return [base for arg in graph[number].args for base in _bases(graph, arg)]


def _available(graph: Graph, number: int, saved: set[int]) -> bool:
    node = graph[number]
    if number in saved or node.op in FREE_LEAVES or node.op == "state":
        return True
    if is_dear(graph, number):
        return False
    return all(_available(graph, arg, saved) for arg in node.args)


def _leaves(graph: Graph, frontier: set[int], saved: set[int]) -> set[int]:
    """Leaves that the recomputation of the frontier reads."""
    found: set[int] = set()
    stack = list(frontier)
    while stack:
        number = stack.pop()
        if number not in saved and number not in found:
            found.add(number)
            stack.extend(graph[number].args)
    return found
