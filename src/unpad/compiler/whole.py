"""Whole numbers in a step: how far they may grow, for a program holds them as floats.

A float holds every whole number up to a power of two, and a fixed number of bits wraps around where
a float does not. So each value of an integer dtype gets a bound that holds at every token,
``times`` the largest initial state ``plus`` a constant; what has none (a product, a float that was
cut off and then added to) is refused, and the cell runs in the eager loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from unpad.compiler.step import Graph, Node
from unpad.compiler.trace import Refused

Bound = tuple[float, float]
"""(times, plus)."""

_ANY: Bound = (math.inf, math.inf)
_FLAG: Bound = (0.0, 1.0)
# As large as the largest of their arguments.
_CHOOSE = frozenset(
    {
        "copy", "neg", "abs", "floor", "ceil", "round", "trunc", "maximum", "minimum", "max",
        "expand", "take", "slice", "concat", "stop", "relu",
    }
)  # fmt: skip
_FLAGS = frozenset(
    {
        "sign", "isnan", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and",
        "logical_or", "onehot_max",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Growth:
    """What whole numbers of a step may become.

    Attributes:
        step: the most that an integer state grows by in a step.
        times, plus: the bound of every whole number on the way.
        limit: the largest number of the narrowest dtype among them.
    """

    step: float
    times: float
    plus: float
    limit: float

    def fits(self, most: int, steps: int, precision: float) -> bool:
        """Whether floats of this spacing at 1 hold all of them for so many steps.

        ``most`` is the largest magnitude in the initial states.
        """
        largest = self.times * (most + steps * self.step) + self.plus
        return largest * precision < 1 and largest <= self.limit


def growth(
    graph: Graph,
    states: list[tuple[int, torch.dtype]],
    whole: dict[int, tuple[torch.dtype, str]],
) -> Growth | None:
    """The growth of a step's whole numbers; None: it has none.

    Args:
        graph: the step's.
        states: the node of each new state, and the state's dtype.
        whole: node → (dtype, operation and line) of every traced result of an integer dtype.

    Raises:
        Refused: a number may outgrow what a float holds, or wraps around.
    """
    kinds = [dtype for _, dtype in states]
    held = [k for k, dtype in enumerate(kinds) if is_whole(dtype)]
    if not held and not whole:
        return None
    bounds: list[Bound] = []
    for node in graph.nodes:
        bounds.append(_bound(graph, node, bounds, kinds))
    for number, (dtype, where) in whole.items():
        node = graph[number]
        cut = node.op == "trunc" and torch.iinfo(dtype).bits > 16  # a float is as exact cut off
        if not cut and bounds[number] == _ANY:
            raise Refused(f"{where} makes whole numbers that could outgrow what a float holds")
        if torch.iinfo(dtype).min == 0 and node.op not in _FLAGS:
            raise Refused(f"{where} computes in {dtype}, which wraps around below 0")
    after = [bounds[states[k][0]] for k in held]
    if any(times > 1 for times, _ in after):
        raise Refused("an integer state could outgrow what a float holds")
    known = [bounds[n] for n in whole if bounds[n] != _ANY] + after
    narrow = [torch.iinfo(dtype).max for n, (dtype, _) in whole.items() if bounds[n] != _FLAG]
    narrow += [torch.iinfo(kinds[k]).max for k in held]
    return Growth(
        step=max((plus for _, plus in after), default=0.0),
        times=max((times for times, _ in known), default=0.0),
        plus=max((plus for _, plus in known), default=0.0),
        limit=float(min(narrow, default=math.inf)),
    )


def is_whole(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of integers."""
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def _bound(graph: Graph, node: Node, bounds: list[Bound], kinds: list[torch.dtype]) -> Bound:
    """The bound of a node whose arguments have theirs."""
    args = [bounds[arg] for arg in node.args]
    numbers = [abs(graph[arg].value) for arg in node.args if graph[arg].op == "const"]
    if node.op == "const":
        return (0.0, abs(node.value))
    if node.op == "state":
        dtype = kinds[node.index]
        return _ANY if dtype.is_floating_point else (1.0, 0.0) if is_whole(dtype) else _FLAG
    if node.op in _FLAGS:
        return _FLAG
    if node.op in _CHOOSE or node.op == "where":
        chosen = args[1:] if node.op == "where" else args
        return max(t for t, _ in chosen), max(p for _, p in chosen)
    if node.op in ("add", "sub"):
        return sum(t for t, _ in args), sum(p for _, p in args)
    if node.op == "mul" and numbers and _ANY not in args:
        other = args[1] if graph[node.args[0]].op == "const" else args[0]
        return other[0] * numbers[0], other[1] * numbers[0]
    if node.op == "div" and graph[node.args[1]].op == "const" and numbers[-1] >= 1:
        return args[0]
    if node.op in ("fmod", "remainder") and graph[node.args[1]].op == "const":
        return (0.0, numbers[-1])
    if node.op == "sum":
        return args[0][0] * node.dims[1], args[0][1] * node.dims[1]
    return _ANY
