"""From a cell to its programs: the stages in a row, and what they leave for the engines.

`Compiled` belongs to one cell in one mode (dtype, sizes, training or not); `programs` gives the
forward and backward passes for a set of wanted gradients, made once each. Lengths and batch sizes
never enter.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import TypeGuard

import torch
from torch import Tensor, nn

from unpad import nest
from unpad.compiler.aten_composed import Lowering
from unpad.compiler.differentiate import Needs, differentiate, requiring
from unpad.compiler.once import Once
from unpad.compiler.partition import partition
from unpad.compiler.schedule import Recurrence, Scheduled, Work, schedule
from unpad.compiler.simplify import simplify
from unpad.compiler.step import Step
from unpad.compiler.trace import Leaf, MixesRows, Refused, Trace, find_leaves, line_of, record
from unpad.compiler.whole import Growth, growth

# Numbers of rows for the two traces whose steps must be equal: primes, so that an axis of rows is
# known by its size; some and many, as a cell may ask. Those that divide a size of the cell are left
# out.
PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)

# Numbers of a cache line (of float32): a vector that lies over two lines costs two accesses.
_LINE = 16

_events: Counter[str] = Counter()


def trace_count() -> int:
    """How often a cell was traced since the process began.

    One trace serves every length, batch size and order: a test can assert that this number does not
    grow while batches change.

    >>> before = trace_count()
    >>> trace_count() - before
    0
    """
    return _events["traces"]


@dataclass(frozen=True)
class Streams:
    """Numbers of the external streams of both passes; a prefix is common to both."""

    noises: int
    saved: tuple[int, ...]
    histories: dict[int, int]
    output: int
    states: dict[int, int]
    grad_output: int
    grad_states: dict[int, int]
    grad_x: int
    forward_widths: tuple[int, ...]
    backward_widths: tuple[int, ...]
    kept_widths: tuple[int, ...]

    @cached_property
    def kept_columns(self) -> tuple[tuple[int, int], ...]:
        """(first, width) of each saved value and history in the one tensor of them.

        Wide ones come first, on lines of their own.
        """
        return tuple(zip(self._kept_starts, self.kept_widths, strict=False))

    @cached_property
    def kept_width(self) -> int:
        """Columns of that tensor; its rows are lines, but no power of two apart, where they would
        fall into the same cache sets.
        """
        width = self._kept_starts[-1]
        if all(w < _LINE for w in self.kept_widths):
            return width
        width = _lines(width)
        return width if width % (8 * _LINE) else width + _LINE

    @cached_property
    def _kept_starts(self) -> list[int]:
        """The first column of each, and the end of all."""
        starts, end = [0] * len(self.kept_widths), 0
        for narrow in (False, True):
            for i, width in enumerate(self.kept_widths):
                if (width < _LINE) == narrow:
                    starts[i] = end
                    end += width if narrow else _lines(width)
        return [*starts, end]


def _lines(width: int) -> int:
    return -(-width // _LINE) * _LINE


@dataclass(frozen=True)
class Backward:
    """A backward pass, and what its accumulators hold.

    Attributes:
        shapes: of the accumulators as gradients: [K, N] as stored, or [n].
        places: for each matrix and vector the accumulator that is its gradient; -1 where that is
            zero, None where it is not wanted.
    """

    scheduled: Scheduled
    shapes: tuple[tuple[int, ...], ...]
    places: tuple[int | None, ...]


@dataclass
class Programs:
    """The forward pass of a set of `Needs`, and its backward passes by what gradients arrive."""

    compiled: Compiled
    needs: Needs
    alive: tuple[bool, ...]
    forward: Scheduled
    streams: Streams
    saved_nodes: tuple[int, ...]
    _backward: dict[tuple[bool, tuple[bool, ...]], Backward] = field(default_factory=dict)

    def backward(self, from_output: bool, from_states: tuple[bool, ...]) -> Backward:
        """The backward pass for the gradients that arrive."""
        key = from_output, from_states
        if key not in self._backward:
            needs = replace(self.needs, from_output=from_output, from_states=from_states)
            self._backward[key] = self._schedule_backward(needs)
        return self._backward[key]

    def _schedule_backward(self, needs: Needs) -> Backward:
        step, streams = self.compiled.step, self.streams
        graph = step.graph
        adjoint = differentiate(step, needs, self.compiled.floating, self.compiled.forward_nodes)
        reads = self.compiled.input_reads()
        reads |= dict(zip(self.saved_nodes, streams.saved, strict=True))
        for state, stream in streams.histories.items():
            reads[graph.leaf("state", step.state_widths[state], state)] = stream
        reads[graph.leaf("grad_output", graph[step.output].width)] = streams.grad_output
        for k, stream in streams.grad_states.items():
            reads[graph.leaf("grad_states", step.state_widths[k], k)] = stream
        recurrences: list[Recurrence] = []
        for k, width in enumerate(step.state_widths):
            if self.alive[k]:
                grad = adjoint.states[k]
                leaf = graph.leaf("grad_state", width, k)
                recurrences.append(
                    Recurrence(leaf, graph.fill(0, width) if grad is None else grad, width)
                )
        writes: list[tuple[int, int]] = []
        if needs.x:
            grad_x = graph.fill(0.0, step.x_width) if adjoint.x is None else adjoint.x
            writes.append((grad_x, streams.grad_x))
        matrices = len(step.matrices)
        products = [s.flipped() if s.index in step.flipped else s for s in adjoint.matrix_sums]
        sums = [(s.index, s.left, s.grad) for s in products]
        sums += [(matrices + s.index, None, s.grad) for s in adjoint.shared_sums]
        accumulated = tuple(sorted({index for index, _, _ in sums}))
        shapes = self.compiled.accumulators()
        scheduled = schedule(
            Work(
                graph=graph,
                reads=reads,
                writes=writes,
                recurrences=recurrences,
                sums=[(accumulated.index(i), left, grad) for i, left, grad in sums],
                accumulators=tuple(shapes[i] for i in accumulated),
                matrix_shapes=step.matrices,
                flipped=step.flipped,
                stream_widths=streams.backward_widths,
            )
        )
        wanted = (*needs.matrices, *needs.shared)
        found = [accumulated.index(i) if i in accumulated else -1 for i in range(len(wanted))]
        return Backward(
            scheduled,
            tuple(shapes[i] if i < matrices else shapes[i][1:] for i in accumulated),
            tuple(place if wants else None for place, wants in zip(found, wanted, strict=True)),
        )


@dataclass
class Compiled:
    """A traced cell: its step, what is worked out once a run, and the programs made of it."""

    step: Step
    once: Once
    leaves: list[Leaf]
    leaf_shapes: list[tuple[tuple[int, ...], torch.dtype]]
    dtype: torch.dtype
    floating: tuple[bool, ...]
    output_shape: tuple[int, ...]
    output_dtype: torch.dtype
    forward_nodes: int
    growth: Growth | None
    _programs: dict[tuple[Needs, bool], Programs] = field(default_factory=dict)
    _wanted: dict[tuple[tuple[bool, ...], bool], Programs] = field(default_factory=dict)

    @cached_property
    def all_floating(self) -> bool:
        """Whether no state holds whole numbers."""
        return all(self.floating)

    def needs(self, flags: tuple[bool, ...] | None = None) -> Needs:
        """The gradients wanted of x, states and parts of the weights in a row; None: none."""
        parts = 1 + len(self.step.states)
        counts = [sum(pieces) for pieces in self.once.counts]
        flags = flags or (False,) * (parts + sum(counts))
        ends = accumulate(counts, initial=parts)
        weights = tuple(any(flags[begin:end]) for begin, end in pairwise(ends))
        matrices = len(self.step.matrices)
        return Needs(
            x=flags[0],
            states=flags[1:parts],
            matrices=weights[:matrices],
            shared=weights[matrices:],
        )

    def wanted(self, flags: tuple[bool, ...], return_states: bool) -> Programs:
        """`programs` for these flags, found at a glance."""
        found = self._wanted.get((flags, return_states))
        if found is None:
            needs = replace(self.needs(flags), from_states=(return_states,) * len(self.step.states))
            found = self._wanted[flags, return_states] = self.programs(needs, return_states)
        return found

    def accumulators(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the gradients that are sums over time: of the matrices, then of the vectors."""
        step = self.step
        stored = ((n, k) if m in step.flipped else (k, n) for m, (k, n) in enumerate(step.matrices))
        return (*stored, *((1, width) for width in step.shared_widths))

    def input_reads(self) -> dict[int, int]:
        """Leaves of the graph that are streams in both passes."""
        graph = self.step.graph
        reads = {graph.leaf("x", self.step.x_width): 0}
        for i, noise in enumerate(self.step.noises):
            reads[graph.leaf("noise", noise.width, i)] = 1 + i
        return reads

    def programs(self, needs: Needs, return_states: bool) -> Programs:
        """Passes for these gradients; ``needs.any()`` false: inference, nothing is saved."""
        key = (needs, return_states)
        if key not in self._programs:
            self._programs[key] = self._build(needs, return_states)
        return self._programs[key]

    def _build(self, needs: Needs, return_states: bool) -> Programs:
        step, graph = self.step, self.step.graph
        count = len(step.states)
        saved_nodes: tuple[int, ...] = ()
        kept: tuple[int, ...] = ()
        alive = (False,) * count
        if needs.any():
            full = replace(needs, from_states=(return_states,) * count)
            alive = tuple(requiring(step, needs, self.floating, self.forward_nodes)[1])
            saved = partition(differentiate(step, full, self.floating, self.forward_nodes))
            saved_nodes, kept = saved.nodes, saved.states
        streams = self._streams(saved_nodes, kept, return_states)
        writes = [(step.output, streams.output)]
        writes += [(step.states[k], s) for k, s in streams.states.items()]
        writes += list(zip(saved_nodes, streams.saved, strict=True))
        recurrences = [
            Recurrence(graph.leaf("state", w, k), step.states[k], w, streams.histories.get(k, -1))
            for k, w in enumerate(step.state_widths)
        ]
        forward = schedule(
            Work(
                graph=graph,
                reads=self.input_reads(),
                writes=writes,
                recurrences=recurrences,
                sums=[],
                accumulators=(),
                matrix_shapes=step.matrices,
                flipped=step.flipped,
                stream_widths=streams.forward_widths,
            )
        )
        return Programs(self, needs, alive, forward, streams, saved_nodes)

    def _streams(
        self, saved_nodes: tuple[int, ...], kept: tuple[int, ...], return_states: bool
    ) -> Streams:
        step, graph = self.step, self.step.graph
        widths = [step.x_width, *(n.width for n in step.noises)]
        saved = tuple(range(len(widths), len(widths) + len(saved_nodes)))
        widths += [graph[n].width for n in saved_nodes]
        histories = {k: len(widths) + i for i, k in enumerate(kept)}
        widths += [step.state_widths[k] for k in kept]
        common = len(widths)
        kept_widths = widths[1 + len(step.noises) :]
        returned = range(len(step.states)) if return_states else range(0)
        shift = {k: common + 1 + k for k in returned}
        tail = [graph[step.output].width, *(step.state_widths[k] for k in returned)]
        return Streams(
            noises=len(step.noises),
            saved=saved,
            histories=histories,
            output=common,
            states=shift,
            grad_output=common,
            grad_states=shift,
            grad_x=common + len(tail),
            forward_widths=(*widths, *tail),
            backward_widths=(*widths, *tail, step.x_width),
            kept_widths=tuple(kept_widths),
        )

    def leaf_tensors(self) -> list[Tensor | None]:
        """The captured tensors as they are now; None for one whose place is gone."""
        return [leaf.get() for leaf in self.leaves]

    def held_tensors(self) -> list[Tensor]:
        """The captured tensors right after the trace, when every place is there."""
        return [t for t in self.leaf_tensors() if t is not None]

    def fits(self, tensors: list[Tensor | None]) -> TypeGuard[list[Tensor]]:
        """Whether the captured tensors still have the shapes and dtypes that were traced."""
        for t, (shape, dtype) in zip(tensors, self.leaf_shapes, strict=True):
            if t is None or t.shape != shape or t.dtype is not dtype:
                return False
        return True


def compile_cell(cell: nn.Module, x: Tensor, state: nest.Nest) -> Compiled:
    """Trace, lower and simplify a cell. ``x`` and ``state`` are examples: any number of rows.

    Raises:
        Refused: the cell does something that the compiler cannot take.
    """
    _events["traces"] += 1
    with torch.inference_mode(False):  # there, operations stay whole that a table need not know
        return _compile(cell, x, state)


def _compile(cell: nn.Module, x: Tensor, state: nest.Nest) -> Compiled:
    failure: Exception | None = None
    for pair in _row_numbers(cell, x, state):
        traces = [_trace(cell, x, state, rows) for rows in pair]
        try:
            lowered = [Lowering(trace, x.dtype) for trace in traces]
            steps = [low.run() for low in lowered]
        except Refused as refused:
            if traces[0].refused is not None and not isinstance(refused, MixesRows):
                raise traces[0].refused from None
            failure = refused
            continue
        if traces[0].refused is not None:
            raise traces[0].refused
        if any(node.width == 0 for node in steps[0].graph.nodes):
            raise Refused("a value of no features")
        if steps[0].graph.nodes == steps[1].graph.nodes and steps[0].states == steps[1].states:
            if _differs_for_few(cell, x, state, traces[1]):
                break
            return _compiled(cell, x, state, traces[0], lowered[0], steps[0])
        failure = None
    raise failure or Refused("the cell's computation depends on the number of rows")


def _differs_for_few(cell: nn.Module, x: Tensor, state: nest.Nest, many: Trace) -> bool:
    """Whether the cell takes another way for one or two rows: `if len(x) == 1`.

    One row is compared by its lines alone, for torch itself works differently on an axis of one.
    """

    def lines(trace: Trace) -> list[str]:
        return [where for where, _ in groupby(record.where for record in trace.records)]

    try:
        one, two = (_trace(cell, x, state, rows) for rows in (1, 2))
    except Refused:  # it runs with many rows only, as after squeeze()
        return False
    operations = [[record.func for record in trace.records] for trace in (two, many)]
    return lines(one) != lines(many) or operations[0] != operations[1]


def _row_numbers(cell: nn.Module, x: Tensor, state: nest.Nest) -> list[tuple[int, int]]:
    """Three pairs to try: a size that the cell makes up can still be a multiple of one."""
    sizes = {size for t in (*cell.parameters(), *cell.buffers()) for size in t.shape}
    sizes |= {size for t in (x, *nest.leaves(state)) for size in t.shape[1:]}
    free = [p for p in PRIMES if all(size % p or not size for size in sizes)]
    free += [101, 103, 107, 109, 113, 127][: max(0, 6 - len(free))]
    return list(zip(free[:3], free[-3:], strict=True))


def _trace(cell: nn.Module, x: Tensor, state: nest.Nest, rows: int) -> Trace:
    def example(t: Tensor) -> Tensor:
        shape = (rows, *t.shape[1:])
        if t.dtype.is_floating_point:
            values = torch.linspace(
                -1, 1, max(1, math.prod(shape)), dtype=torch.float64, device="cpu"
            )
            values = values[: math.prod(shape)].reshape(shape).to(t.device, t.dtype)
            # As the outside of a custom function shows in the graph of its result alone.
            return values.requires_grad_()
        return torch.ones(shape, dtype=t.dtype, device=t.device)

    examples = nest.rebuild(state, [example(t) for t in nest.leaves(state)])
    try:
        return record(cell, example(x), examples)
    except Refused:
        raise
    except Exception as error:  # whatever the user's code raises on example rows
        said = f"{type(error).__name__} at {line_of(error)}: {error}"
        raise Refused(f"tracing failed: {said}") from error


def _compiled(
    cell: nn.Module, x: Tensor, state: nest.Nest, trace: Trace, low: Lowering, step: Step
) -> Compiled:
    step.shared_widths = [node.width for node in step.graph.nodes if node.op == "shared"]
    dtypes = [t.dtype for t in nest.leaves(state)]
    grown = growth(step.graph, list(zip(step.states, dtypes, strict=True)), low.whole)
    step, once = simplify(step, low.once)
    output = low.value(trace.output)
    return Compiled(
        step=step,
        once=once,
        leaves=find_leaves(cell, trace.leaves),
        leaf_shapes=[(tuple(t.shape), t.dtype) for t in trace.leaves],
        dtype=x.dtype,
        floating=tuple(t.dtype.is_floating_point for t in nest.leaves(state)),
        output_shape=tuple(d.n for d in output.dims[1:]),
        output_dtype=trace.dtypes[trace.output.number],
        forward_nodes=len(step.graph.nodes),
        growth=grown,
    )
