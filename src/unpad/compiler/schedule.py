"""Stage 4, schedule: which part of a step stays in the loop, and where every value lives.

The same function schedules the forward and the backward graph. States that feed back into each
other make one loop; loops stand in the order of their dependence, with bulk phases between them:

    bulk 0 | loop 1 | bulk 1 | loop 2 | bulk 2 ... | reduce

A node that depends on the states of loop m goes into loop m if a state of that loop depends on it,
else into bulk m, after it. What depends on no state lands in bulk 0, before every loop, where its
products run over many tokens at once. Sums over time come last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from unpad.compiler.program import (
    Buffer,
    Instruction,
    Kind,
    Operand,
    Pass,
    Phase,
    PhaseKind,
    State,
)
from unpad.compiler.step import VIEWS, Graph

REDUCE = 1 << 30

# What an instruction becomes that takes the one before in: (taken in, by) -> both.
FUSED = {
    ("linear", "add"): "linear",
    ("mul", "add"): "mul_add",
    ("mul", "normalize_grad"): "scaled_normalize_grad",
}


@dataclass(frozen=True)
class Recurrence:
    """A state: the leaf that is its value before the token, the node that is its value after."""

    leaf: int
    new: int
    width: int
    history: int = -1


@dataclass(frozen=True)
class Work:
    """What a pass must do with a graph: the streams it reads and writes, its states, its sums."""

    graph: Graph
    reads: dict[int, int]
    writes: list[tuple[int, int]]
    recurrences: list[Recurrence]
    sums: list[tuple[int, int | None, int]]
    accumulators: tuple[tuple[int, int], ...]
    matrix_shapes: list[tuple[int, int]]
    stream_widths: tuple[int, ...]
    flipped: set[int]


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A pass, and which matrices (number, transposed) and shared vectors of the step it wants.

    ``flipped``: which of these matrices it reads across, as they are stored.
    """

    program: Pass
    matrices: tuple[tuple[int, bool], ...]
    shared: tuple[int, ...]
    flipped: tuple[bool, ...]


# -- where in time ---------------------------------------------------------------------------------


def live_nodes(work: Work) -> list[int]:
    """Nodes to be computed or read, in order; a stream that is read needs no arguments."""
    seen: set[int] = set()
    stack = [n for n, _ in work.writes] + [r.new for r in work.recurrences]
    stack += [n for _, left, grad in work.sums for n in (left, grad) if n is not None]
    while stack:
        number = stack.pop()
        if number not in seen:
            seen.add(number)
            if number not in work.reads:
                stack.extend(work.graph[number].args)
    return sorted(seen)


def levels(work: Work, live: list[int]) -> tuple[dict[int, int], list[int]]:
    """Position of every node (loop m: 2m - 1, bulk m: 2m) and the level of every recurrence."""
    depends = _state_sets(work, live)
    count = len(work.recurrences)
    reach = [depends[r.new] | {i} for i, r in enumerate(work.recurrences)]
    for _ in range(count):
        reach = [set().union(*(reach[j] for j in mine)) for mine in reach]
    together = [
        frozenset(j for j in range(count) if j in reach[i] and i in reach[j]) for i in range(count)
    ]
    order = sorted(set(together), key=lambda scc: (len(reach[min(scc)]), min(scc)))
    level = [order.index(scc) + 1 for scc in together]
    feeds: dict[int, set[int]] = defaultdict(set)
    for i, recurrence in enumerate(work.recurrences):
        for number in _ancestors(work, recurrence.new):
            feeds[number].add(level[i])
    position: dict[int, int] = {}
    for number in live:
        m = max((level[i] for i in depends[number]), default=0)
        position[number] = 2 * m - 1 if m and m in feeds[number] else 2 * m
    _stay_near(work, live, position)
    return position, level


def _stay_near(work: Work, live: list[int], position: dict[int, int]) -> None:
    """Put what is cheap into the loop beside it, where the loop has its operands at hand anyway.

    Outside of the loop it would read them again from far memory. It moves only where no value then
    has to wait for another phase: a result that nothing but sums and streams take may move into the
    loop before it, one that nothing but a loop takes into that loop.
    """
    graph = work.graph

    def base(number: int) -> int:
        return _viewed(work, number)[0]

    operands = {
        n: {a for a in map(base, graph[n].args) if graph[a].op not in ("const", "shared")}
        for n in live
        if n not in work.reads and graph[n].op not in ("slice", "stop")
    }
    takers: defaultdict[int, set[int]] = defaultdict(set)
    for number, args in operands.items():
        for arg in args:
            takers[arg].add(number)
    kept = {base(n) for n, _ in work.writes} | {base(r.new) for r in work.recurrences}
    kept |= {base(n) for _, left, grad in work.sums for n in (left, grad) if n is not None}
    for number in live:
        at = position[number]
        computed = number in operands and bool(graph[number].args)
        if at % 2 or not computed or graph[number].op in ("linear", "concat"):
            continue
        homes = {position[t] for t in takers[number]}
        before, after = at - 1, at + 1
        if before > 0 and not homes and _at_hand(operands[number], before, position, takers):
            position[number] = before
        elif homes == {after} and number not in kept:
            streams = operands[number] <= work.reads.keys()
            if streams and _at_hand(operands[number], after, position, takers):
                position[number] = after


def _at_hand(
    operands: set[int], loop: int, position: dict[int, int], takers: dict[int, set[int]]
) -> bool:
    """Whether a loop computes or reads all of these."""
    return all(position[o] == loop or any(position[t] == loop for t in takers[o]) for o in operands)


def _viewed(work: Work, number: int) -> tuple[int, int]:
    """The node whose memory a view looks at, and the first column."""
    node, start = work.graph[number], 0
    while number not in work.reads and node.op in ("slice", "stop"):
        start += node.dims[0] if node.op == "slice" else 0
        number = node.args[0]
        node = work.graph[number]
    return number, start


def _state_sets(work: Work, live: list[int]) -> dict[int, set[int]]:
    depends: dict[int, set[int]] = {}
    leaf = {r.leaf: i for i, r in enumerate(work.recurrences)}
    for number in live:
        if number in leaf:
            depends[number] = {leaf[number]}
        elif number in work.reads:
            depends[number] = set()
        else:
            depends[number] = set().union(*(depends[a] for a in work.graph[number].args))
    return depends


def _ancestors(work: Work, number: int) -> set[int]:
    seen: set[int] = set()
    stack = [number]
    while stack:
        top = stack.pop()
        if top not in seen:
            seen.add(top)
            if top not in work.reads:
                stack.extend(work.graph[top].args)
    return seen


# -- where in memory -------------------------------------------------------------------------------


@dataclass
class _Layout:
    work: Work
    live: list[int]
    position: dict[int, int]
    level: list[int]
    buffers: list[Buffer] = field(default_factory=list)
    numbers: dict[Buffer, int] = field(default_factory=dict)
    place: dict[int, Operand] = field(default_factory=dict)
    constants: list[float] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    fused: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set[int])
    readers: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set[int]))
    late_states: dict[int, Operand] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.work.graph

    def base(self, number: int) -> tuple[int, int]:
        return _viewed(self.work, number)

    def is_leaf(self, number: int) -> bool:
        return number in self.work.reads or not self.graph[number].args

    def new_buffer(self, kind: Kind, width: int, index: int = -1) -> int:
        buffer = Buffer(kind, width, index)
        if kind in (Kind.WINDOW, Kind.SCRATCH):
            self.buffers.append(buffer)
            return len(self.buffers) - 1
        known = self.numbers.get(buffer)
        if known is None:
            known = self.numbers[buffer] = len(self.buffers)
            self.buffers.append(buffer)
        return known

    def whole(self, kind: Kind, width: int, index: int = -1) -> Operand:
        return Operand(self.new_buffer(kind, width, index), 0, width)

    def count_readers(self) -> None:
        """At which positions the memory of each node is read."""
        for number in self.live:
            if (
                number in self.skipped
                or self.is_leaf(number)
                or self.graph[number].op in ("slice", "stop")
            ):
                continue
            for arg in self.arguments(number):
                self.readers[self.base(arg)[0]].add(self.position[number])
        for _, left, grad in self.work.sums:
            for number in self.summed(left, grad):
                self.readers[self.base(number)[0]].add(REDUCE)
        for number, _ in self.work.writes:
            self.readers[self.base(number)[0]].add(self.position[number])
        for i, recurrence in enumerate(self.work.recurrences):
            self.readers[self.base(recurrence.new)[0]].add(2 * self.level[i] - 1)

    def arguments(self, number: int) -> tuple[int, ...]:
        """A node's arguments after fusion."""
        args = self.graph[number].args
        if number not in self.fused:
            return args
        inner, others = self.fused[number]
        first, *rest = self.graph[inner].args
        if self.graph[number].op == "normalize_grad":
            return (first, *others, *rest)
        return (first, *rest, *others)

    def summed(self, left: int | None, grad: int) -> tuple[int, ...]:
        """The operands of a sum over time after fusion."""
        if left is not None:
            return left, grad
        return self.graph[grad].args if grad in self.skipped else (grad,)

    def assign(self) -> None:
        """A place for every node that is computed; consumers first, so that parts of a concat can
        be computed where the concat wants them.
        """
        streams = {
            self.base(n)[0]: s for n, s in reversed(self.work.writes) if self.base(n) == (n, 0)
        }
        nexts = {r.new: i for i, r in reversed(list(enumerate(self.work.recurrences)))}
        for number in reversed(self.live):
            node = self.graph[number]
            if self.is_leaf(number) or node.op in ("slice", "stop") or number in self.skipped:
                continue
            crosses = any(p != self.position[number] for p in self.readers[number])
            if number in streams:
                place = self.whole(Kind.STREAM, node.width, streams[number])
            elif number in self.place:
                place = self.place[number]
            elif crosses:
                place = self.whole(Kind.WINDOW, node.width)
            elif number in nexts and self.in_own_loop(number, nexts[number]):
                place = self.whole(Kind.NEXT, node.width, nexts[number])
            else:
                place = self.whole(Kind.SCRATCH, node.width)
            self.place[number] = place
            if node.op == "concat":
                self.place_parts(number, place, streams, nexts)

    def in_own_loop(self, number: int, state: int) -> bool:
        return self.position[number] == 2 * self.level[state] - 1

    def place_parts(
        self, number: int, place: Operand, streams: dict[int, int], nexts: dict[int, int]
    ) -> None:
        at = place.offset
        for part in self.graph[number].args:
            width = self.graph[part].width
            free = not self.is_leaf(part) and self.graph[part].op not in VIEWS
            free = free and part not in streams and part not in nexts and part not in self.place
            lasting = self.buffers[place.buffer].kind != Kind.SCRATCH
            free = free and (lasting or self.readers[part] <= {self.position[number]})
            if free and part not in self.skipped and self.position[part] == self.position[number]:
                self.place[part] = Operand(place.buffer, at, width)
            at += width

    def operand(self, number: int, position: int) -> Operand:
        """Where an instruction at this position reads a node."""
        base, start = self.base(number)
        width = self.graph[number].width
        whole = self.leaf_operand(base, position) if self.is_leaf(base) else self.place[base]
        return Operand(whole.buffer, whole.offset + start, width)

    def leaf_operand(self, number: int, position: int) -> Operand:
        node = self.graph[number]
        if number in self.work.reads:
            return self.whole(Kind.STREAM, node.width, self.work.reads[number])
        if node.op == "const":
            if node.value not in self.constants:
                self.constants.append(node.value)
            return self.whole(Kind.CONST, 1, self.constants.index(node.value))
        if node.op == "shared":
            if node.index not in self.shared:
                self.shared.append(node.index)
            return self.whole(Kind.SHARED, node.width, self.shared.index(node.index))
        return self.state_operand(number, position)

    def state_operand(self, number: int, position: int) -> Operand:
        state = next(i for i, r in enumerate(self.work.recurrences) if r.leaf == number)
        recurrence = self.work.recurrences[state]
        if position == 2 * self.level[state] - 1:
            return self.whole(Kind.PREV, recurrence.width, state)
        if recurrence.history >= 0:
            return self.whole(Kind.STREAM, recurrence.width, recurrence.history)
        if state not in self.late_states:
            self.late_states[state] = self.whole(Kind.WINDOW, recurrence.width)
        return self.late_states[state]


# -- instructions ----------------------------------------------------------------------------------


def _fuse(layout: _Layout) -> None:
    """add(linear, z) becomes one product that starts from z; add(mul, z) one multiply-add; the
    gradient of a norm takes its gain in; a sum over time of mul becomes one of products, where that
    keeps no operand for it alone.
    """
    work, graph = layout.work, layout.graph
    uses = _use_counts(layout)

    def fits(wanted: str, inner: int, number: int) -> bool:
        node = graph[inner]
        alone = node.op == wanted and uses[inner] == 1 and inner not in work.reads
        same_place = layout.position[inner] == layout.position[number]
        return alone and same_place and node.width == graph[number].width

    for number in layout.live:
        node = graph[number]
        if number in work.reads:
            continue
        if node.op == "normalize_grad" and fits("mul", node.args[0], number):
            inner = node.args[0]
            if all(graph[a].width == node.width for a in graph[inner].args):
                layout.fused[number] = (inner, node.args[1:])
                layout.skipped.add(inner)
        if node.op != "add":
            continue
        pairs = [(w, *pair) for w in ("linear", "mul") for pair in (node.args, node.args[::-1])]
        for wanted, inner, other in pairs:
            if fits(wanted, inner, number):
                layout.fused[number] = (inner, (other,))
                layout.skipped.add(inner)
                break
    summed = {layout.base(n)[0] for _, *pair in work.sums for n in pair if n is not None}
    for _, left, grad in work.sums:
        args = graph[grad].args
        if left is not None or not fits("mul", grad, grad) or grad in work.reads:
            continue
        same = all(graph[a].width == graph[grad].width for a in args)
        if same and all(layout.base(a)[0] in work.reads.keys() | summed for a in args):
            layout.skipped.add(grad)


def _use_counts(layout: _Layout) -> Counter[int]:
    work = layout.work
    uses: Counter[int] = Counter(n for n, _ in work.writes)
    uses.update(r.new for r in work.recurrences)
    uses.update(n for _, left, grad in work.sums for n in (left, grad) if n is not None)
    for number in layout.live:
        if number not in work.reads:
            uses.update(layout.graph[number].args)
    return uses


class _Emitter:
    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self.code: dict[int, list[Instruction]] = defaultdict(list)
        self.matrices: list[int] = []
        self.tables: list[tuple[int, ...]] = []

    def emit_all(self) -> None:
        layout, work = self.layout, self.layout.work
        extra = self._extra_writes()
        for number in layout.live:
            computed = not layout.is_leaf(number) and number not in layout.skipped
            if computed and layout.graph[number].op not in ("slice", "stop"):
                self.emit(number)
            for stream in extra.get(number, ()):
                self._write(number, stream)
        for i, recurrence in enumerate(work.recurrences):
            position = 2 * layout.level[i] - 1
            target = layout.whole(Kind.NEXT, recurrence.width, i)
            source = layout.operand(recurrence.new, position)
            if source != target:
                self.code[position].append(Instruction("copy", target, (source,)))
        for index, left, grad in work.sums:
            args = [layout.operand(n, REDUCE) for n in layout.summed(left, grad)]
            name = "outer" if left is not None else "sum_rows"
            self.code[REDUCE].append(Instruction(name, None, tuple(args), matrix=index))
        for state, window in layout.late_states.items():
            before = layout.whole(Kind.PREV, window.width, state)
            self.code[2 * layout.level[state] - 1].insert(0, Instruction("copy", window, (before,)))

    def _extra_writes(self) -> dict[int, list[int]]:
        """Streams that are not the home of the node they get."""
        extra: dict[int, list[int]] = defaultdict(list)
        for number, stream in self.layout.work.writes:
            home = self.layout.place.get(number)
            buffer = self.layout.buffers[home.buffer] if home is not None else None
            if buffer is None or buffer.kind != Kind.STREAM or buffer.index != stream:
                extra[number].append(stream)
        return extra

    def _write(self, number: int, stream: int) -> None:
        layout = self.layout
        position = layout.position[number]
        width = layout.work.stream_widths[stream]
        source = layout.operand(number, position)
        self.code[position].append(
            Instruction("copy", layout.whole(Kind.STREAM, width, stream), (source,))
        )

    def emit(self, number: int) -> None:
        layout, node = self.layout, self.layout.graph[number]
        position, out = layout.position[number], layout.place[number]
        if node.op == "concat":
            self._emit_concat(number, position, out)
            return
        args = tuple(layout.operand(a, position) for a in layout.arguments(number))
        op = node.op
        if number in layout.fused:
            inner = layout.graph[layout.fused[number][0]]
            op = FUSED[inner.op, node.op]
            node = inner if op == "linear" else node
        matrix = self._matrix(node.index) if op == "linear" else -1
        table = self._table(node.table) if node.table else -1
        self.code[position].append(Instruction(op, out, args, node.dims, matrix, table))

    def _emit_concat(self, number: int, position: int, out: Operand) -> None:
        at = out.offset
        for part in self.layout.graph[number].args:
            source = self.layout.operand(part, position)
            target = Operand(out.buffer, at, source.width)
            if source != target:
                self.code[position].append(Instruction("copy", target, (source,)))
            at += source.width

    def _matrix(self, index: int) -> int:
        if index not in self.matrices:
            self.matrices.append(index)
        return self.matrices.index(index)

    def _table(self, table: tuple[int, ...]) -> int:
        if table not in self.tables:
            self.tables.append(table)
        return self.tables.index(table)


def schedule(work: Work) -> Scheduled:
    """A pass that does the work."""
    live = live_nodes(work)
    position, level = levels(work, live)
    layout = _Layout(work, live, position, level)
    _fuse(layout)
    layout.count_readers()
    layout.assign()
    emitter = _Emitter(layout)
    emitter.emit_all()
    phases = [
        Phase(_phase_kind(at), tuple(code)) for at, code in sorted(emitter.code.items()) if code
    ]
    shapes = [work.matrix_shapes[m // 2] for m in emitter.matrices]
    flipped = [bool(m % 2) for m in emitter.matrices]
    program = Pass(
        buffers=tuple(layout.buffers),
        phases=tuple(phases),
        states=tuple(State(r.width, r.history) for r in work.recurrences),
        matrices=tuple((n, k) if t else (k, n) for (k, n), t in zip(shapes, flipped, strict=True)),
        accumulators=work.accumulators,
        constants=tuple(layout.constants),
        tables=tuple(emitter.tables),
        n_streams=len(work.stream_widths),
        n_shared=len(layout.shared),
        stream_widths=work.stream_widths,
    )
    matrices = tuple((m // 2, bool(m % 2)) for m in emitter.matrices)
    across = tuple(transposed != (m in work.flipped) for m, transposed in matrices)
    return Scheduled(program, matrices, tuple(layout.shared), across)


def _phase_kind(position: int) -> PhaseKind:
    if position == REDUCE:
        return PhaseKind.REDUCE
    return PhaseKind.LOOP if position % 2 else PhaseKind.BULK
