"""A Step: what a cell does to ONE row, as a small graph of flat vectors.

Every node is a vector of ``width`` numbers that belongs to one token (or, for ``shared`` and
``const``, to all of them). Nodes are kept in the order in which they can be computed, equal nodes
are stored once, and trivial arithmetic is folded as a node is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

LEAVES = frozenset(
    {"x", "state", "noise", "shared", "const", "grad_output", "grad_state", "grad_states"}
)
VIEWS = frozenset({"slice", "concat", "stop"})


@dataclass(frozen=True)
class Node:
    """``index`` numbers leaves (which state, which shared vector) and matrices; ``dims`` views the
    row as [outer, n, inner], or is (start,) for a slice; ``value`` is a constant's.
    """

    op: str
    args: tuple[int, ...]
    width: int
    dims: tuple[int, ...] = ()
    index: int = -1
    value: float = 0.0
    table: tuple[int, ...] = ()


@dataclass(frozen=True)
class Noise:
    """Random numbers drawn before the loop: ``kind`` is keep, uniform or normal; per token, or the
    same for all tokens of a sequence. ``drop`` is the probability of a 0 in a keep mask.
    """

    kind: str
    width: int
    drop: float = 0.0
    per_sequence: bool = False


@dataclass
class Graph:
    """Nodes by number. ``where`` keeps the source line that asked for a node, for messages."""

    nodes: list[Node] = field(default_factory=list)
    where: dict[int, str] = field(default_factory=dict)
    source: str = ""
    _numbers: dict[Node, int] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def add(self, node: Node) -> int:
        """The number of a node equal to this one, adding it where there is none."""
        known = self._numbers.get(node)
        if known is None:
            known = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
            if self.source:
                self.where[known] = self.source
        return known

    def leaf(self, op: str, width: int, index: int = 0) -> int:
        """A value that comes from outside the step."""
        return self.add(Node(op, (), width, index=index))

    def const(self, value: float) -> int:
        """One number for all rows."""
        same = math.nan if math.isnan(value) else float(value)  # NaN is equal to itself alone
        return self.add(Node("const", (), 1, value=same))

    def is_const(self, number: int, value: float | None = None) -> bool:
        """Whether a node is a constant, and this one."""
        node = self.nodes[number]
        return node.op == "const" and (value is None or node.value == value)

    def slice(self, arg: int, start: int, width: int) -> int:
        """Columns [start, start + width)."""
        node = self.nodes[arg]
        if start == 0 and width == node.width:
            return arg
        if node.op == "slice":
            return self.slice(node.args[0], node.dims[0] + start, width)
        if node.op == "concat":
            at = 0
            for part in node.args:
                size = self.nodes[part].width
                if at <= start and start + width <= at + size:
                    return self.slice(part, start - at, width)
                at += size
        return self.add(Node("slice", (arg,), width, (start,)))

    def concat(self, parts: Iterable[int]) -> int:
        """The parts end to end; neighbouring slices of one node become one slice again."""
        joined: list[int] = []
        for part in self._flat(parts):
            if joined and (whole := self._join(joined[-1], part)) is not None:
                joined[-1] = whole
            else:
                joined.append(part)
        if len(joined) == 1:
            return joined[0]
        return self.add(Node("concat", tuple(joined), sum(self[part].width for part in joined)))

    def _flat(self, parts: Iterable[int]) -> Iterable[int]:
        for part in parts:
            if self[part].op == "concat":
                yield from self[part].args
            elif self[part].width:
                yield part

    def _join(self, left: int, right: int) -> int | None:
        a, b = self[left], self[right]
        if a.op == b.op == "slice" and a.args == b.args and a.dims[0] + a.width == b.dims[0]:
            return self.slice(a.args[0], a.dims[0], a.width + b.width)
        return None

    def op(self, name: str, *args: int, width: int = 0, dims: tuple[int, ...] = ()) -> int:
        """An operation of the table; ``width`` 0 takes that of the widest argument."""
        if not width:
            width = max(self[arg].width for arg in args)
        folded = self._fold(name, args, width)
        return self.add(Node(name, args, width, dims)) if folded is None else folded

    def _fold(self, name: str, args: tuple[int, ...], width: int) -> int | None:
        if name in ("add", "mul"):
            neutral = 0.0 if name == "add" else 1.0
            for arg, other in (args, args[::-1]):
                if self.is_const(arg, neutral) and self[other].width == width:
                    return other
        neutral = {"sub": 0.0, "div": 1.0}.get(name)
        if neutral is not None and self.is_const(args[1], neutral) and self[args[0]].width == width:
            return args[0]
        if name == "copy" or (name == "neg" and self[args[0]].op == "neg"):
            return args[0] if name == "copy" else self[args[0]].args[0]
        return None

    def fill(self, value: float, width: int) -> int:
        """A vector of one number."""
        return self.expand(self.const(value), 1, width, 1)

    def expand(self, arg: int, outer: int, n: int, inner: int) -> int:
        """[outer, inner] repeated along a new middle axis."""
        if n == 1:
            return arg
        return self.add(Node("expand", (arg,), outer * n * inner, (outer, n, inner)))

    def reduce(self, name: str, arg: int, outer: int, n: int, inner: int) -> int:
        """sum or max over the middle axis of [outer, n, inner]."""
        if n == 1:
            return arg
        return self.add(Node(name, (arg,), outer * inner, (outer, n, inner)))

    def take(self, arg: int, table: tuple[int, ...]) -> int:
        """Columns in the order of a table; a run of neighbours is a slice."""
        if table and table == tuple(range(table[0], table[0] + len(table))):
            return self.slice(arg, table[0], len(table))
        return self.add(Node("take", (arg,), len(table), table=table))

    def linear(self, arg: int, matrix: int, width: int, *, transposed: bool = False) -> int:
        """row · matrix, or row · matrixᵀ; `index` is 2 matrix + transposed."""
        return self.add(Node("linear", (arg,), width, index=2 * matrix + transposed))

    def copy_of(self, number: int, args: tuple[int, ...], into: Graph) -> int:
        """The node with other arguments, in another graph."""
        return into.add(replace(self[number], args=args))


@dataclass
class Step:
    """A cell, traced: graph, results, and what it takes from outside."""

    graph: Graph
    output: int
    states: list[int]
    state_widths: list[int]
    x_width: int
    noises: list[Noise]
    matrices: list[tuple[int, int]]
    shared_widths: list[int]
    # Matrices that are given as they are stored, [N, K]: a parameter needs no transposed view.
    flipped: set[int] = field(default_factory=set[int])

    def needed(self) -> list[int]:
        """Nodes that the output or a new state depends on, in computable order."""
        return uses(self.graph, [self.output, *self.states])


def uses(graph: Graph, roots: Iterable[int]) -> list[int]:
    """Numbers of all nodes that the roots depend on, in computable order."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        number = stack.pop()
        if number not in seen:
            seen.add(number)
            stack.extend(graph[number].args)
    return sorted(seen)
