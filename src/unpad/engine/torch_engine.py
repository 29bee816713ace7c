"""The torch engine: runs a pass in plain torch operations, on any device. It is the specification.

Rows are put into the order of the loop (see `order`), so that the live rows of every step lie side
by side; a bulk phase is then one call on all tokens, a loop phase one call a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from unpad.compiler.ops import OPERATIONS
from unpad.compiler.program import Instruction, Kind, Operand, Pass, PhaseKind
from unpad.engine.order import StepOrder, step_order
from unpad.engine.precision import rounded
from unpad.ragged.lengths import ranges

Rows: TypeAlias = slice


class Columns(NamedTuple):
    """Streams that lie side by side in one tensor: (first column, width) of each.

    An engine that works with addresses makes no views of them.
    """

    tensor: Tensor
    places: tuple[tuple[int, int], ...]


class Placed(NamedTuple):
    """A stream over a larger batch, of which the sequences here are stretches.

    Its rows for sequence b are those from ``Frame.begins[b]`` on; the others are left alone.
    """

    tensor: Tensor


@dataclass(slots=True)
class Frame:
    """What a pass reads and writes in one call. Everything is allocated by the caller.

    Attributes:
        offsets: int64 [B + 1], CPU.
        direction: +1 reads each sequence from its first token to its last, -1 the other way.
        streams: by number, [T, width] with unit column stride, or columns of one for several, or
            placed in a larger one, or None where the pass has no use for it; outputs among them are
            filled.
        shared: vectors [width], contiguous.
        matrices: [K, N], any strides.
        accumulators: [rows, cols], contiguous; overwritten with the sums over all tokens. That of a
            vector may be [cols].
        initial, final: [B, width] for each state, contiguous; ``final`` is filled. None: zeros, and
            what nobody asks for.
        flipped: which matrices are given as [N, K]; empty: none.
        precision: of products, as in `precision`; "bfloat16" is for float32 tensors.
        begins: int64 [B], CPU; where the sequences start in placed streams.
    """

    offsets: Tensor
    direction: int
    streams: Sequence[Tensor | Columns | Placed | None]
    shared: list[Tensor]
    matrices: list[Tensor]
    accumulators: list[Tensor]
    initial: Sequence[Tensor | None]
    final: Sequence[Tensor | None]
    flipped: tuple[bool, ...] = ()
    precision: str = "float32"
    begins: Tensor | None = None


def run_pass(program: Pass, frame: Frame) -> None:
    """Run a pass on a frame, in place."""
    with torch.no_grad():
        streams: list[Tensor | Placed | None] = []
        for stream in frame.streams:
            if isinstance(stream, Columns):
                streams += [stream.tensor.narrow(1, *place) for place in stream.places]
            else:
                streams.append(stream)
        _Run(program, frame, streams).run()


def _as_it_is(value: Tensor) -> Tensor:
    return value


@dataclass
class _Run:
    program: Pass
    frame: Frame
    streams: list[Tensor | Placed | None]
    order: StepOrder = field(init=False)
    memory: dict[int, Tensor] = field(default_factory=dict)
    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = step_order(self.frame.offsets, reverse=self.frame.direction < 0)
        self.tokens = len(self.order.tokens)
        self.factor = rounded if self.frame.precision == "bfloat16" else _as_it_is
        self.matrices = [self.factor(matrix) for matrix in self.frame.matrices]
        for number, buffer in enumerate(self.program.buffers):
            if buffer.kind in (Kind.WINDOW, Kind.SCRATCH):
                self.memory[number] = self.like().new_zeros(self.tokens, buffer.width)
            elif buffer.kind == Kind.STREAM:
                stream, rows = self.stream(buffer.index)
                self.memory[number] = stream[rows]
            elif buffer.kind == Kind.SHARED:
                self.memory[number] = self.frame.shared[buffer.index][None]
            elif buffer.kind == Kind.CONST:
                constant = self.program.constants[buffer.index]
                self.memory[number] = self.like().new_full((1, 1), constant)

    def like(self) -> Tensor:
        candidates = [*self.streams, *self.frame.initial, *self.frame.shared]
        found = next(t for t in candidates if t is not None)
        return found.tensor if isinstance(found, Placed) else found

    def stream(self, number: int) -> tuple[Tensor, Tensor]:
        """A stream, and its rows in the order of the loop."""
        stream, rows = self.streams[number], self.order.tokens
        assert stream is not None
        if isinstance(stream, Placed):
            assert self.frame.begins is not None
            stream, rows = stream.tensor, ranges(self.frame.begins, self.frame.offsets)[rows]
        return stream, rows.to(stream.device)

    def run(self) -> None:
        for accumulator in self.frame.accumulators:
            accumulator.zero_()
        sequences = self.order.sequences.to(self.like().device)
        states = zip(self.program.states, self.frame.initial, strict=True)
        self.before = [
            self.like().new_zeros(len(sequences), state.width) if t is None else t[sequences]
            for state, t in states
        ]
        for phase in self.program.phases:
            if phase.kind == PhaseKind.BULK and not self.tokens:
                continue  # torch warns of a variance of no numbers
            if phase.kind == PhaseKind.BULK:
                self.execute(phase.instructions, slice(0, self.tokens))
            elif phase.kind == PhaseKind.LOOP:
                self.loop(phase.instructions)
            else:
                for instruction in phase.instructions:
                    self.accumulate(instruction)
        rows = self.order.rows.to(self.like().device)
        for target, value in zip(self.frame.final, self.before, strict=True):
            if target is not None:
                target.copy_(value[rows])
        self.write_streams()

    def write_streams(self) -> None:
        for number, buffer in enumerate(self.program.buffers):
            if buffer.kind == Kind.STREAM and self.is_written(number):
                stream, rows = self.stream(buffer.index)
                stream[rows] = self.memory[number]
        for state, history in self.histories().items():
            stream, rows = self.stream(self.program.states[state].stream)
            stream[rows] = history

    def is_written(self, number: int) -> bool:
        return any(
            i.out is not None and i.out.buffer == number
            for phase in self.program.phases
            for i in phase.instructions
        )

    def histories(self) -> dict[int, Tensor]:
        return {k: self._history[k] for k, s in enumerate(self.program.states) if s.stream >= 0}

    def loop(self, instructions: tuple[Instruction, ...]) -> None:
        """All states pass through every loop; a loop changes those whose NEXT it writes."""
        mine = {
            self.program.buffers[i.out.buffer].index
            for i in instructions
            if i.out is not None and self.program.buffers[i.out.buffer].kind == Kind.NEXT
        }
        for state in mine:
            self._history[state] = self.history(state)
        start = 0
        for live in self.order.live:
            rows = slice(start, start + live)
            self.after = [t[:live].clone() for t in self.before]
            for state in mine:
                self._history[state][rows] = self.before[state][:live]
            self.execute(instructions, rows, live)
            for state in mine:
                self.before[state][:live] = self.after[state]
            start += live

    _history: dict[int, Tensor] = field(default_factory=dict)

    def history(self, state: int) -> Tensor:
        """Where the states before every token go: into their stream, if a buffer is it."""
        program = self.program
        for number, buffer in enumerate(program.buffers):
            if buffer.kind == Kind.STREAM and buffer.index == program.states[state].stream >= 0:
                return self.memory[number]
        return self.like().new_zeros(self.tokens, program.states[state].width)

    def execute(
        self, instructions: tuple[Instruction, ...], rows: Rows, live: int | None = None
    ) -> None:
        for instruction in instructions:
            assert instruction.out is not None
            result = self.evaluate(instruction, rows, live)
            self.view(instruction.out, rows, live).copy_(result)

    def view(self, operand: Operand, rows: Rows, live: int | None = None) -> Tensor:
        buffer = self.program.buffers[operand.buffer]
        if buffer.kind == Kind.PREV:
            whole = self.before[buffer.index][:live]
        elif buffer.kind == Kind.NEXT:
            whole = self.after[buffer.index]
        elif buffer.kind in (Kind.SHARED, Kind.CONST):
            whole = self.memory[operand.buffer]
        else:
            whole = self.memory[operand.buffer][rows]
        return whole[:, operand.offset : operand.offset + operand.width]

    def evaluate(self, instruction: Instruction, rows: Rows, live: int | None) -> Tensor:
        args = [self.view(a, rows, live) for a in instruction.args]
        if instruction.op == "linear":
            product = self.factor(args[0]) @ self.matrix(instruction.matrix)
            return product if len(args) == 1 else args[1] + product
        meaning: Callable[..., Tensor] = OPERATIONS[instruction.op].torch
        if instruction.table >= 0:
            table = self.program.tables[instruction.table]
            assert instruction.out is not None
            return meaning(
                args[0], table, *([instruction.out.width] * (instruction.op == "scatter"))
            )
        return meaning(*args, instruction.dims) if instruction.dims else meaning(*args)

    def matrix(self, number: int) -> Tensor:
        matrix, flipped = self.matrices[number], self.frame.flipped
        return matrix.t() if flipped and flipped[number] else matrix

    def accumulate(self, instruction: Instruction) -> None:
        rows = slice(0, self.tokens)
        args = [self.view(a, rows).expand(self.tokens, -1) for a in instruction.args]
        target = self.frame.accumulators[instruction.matrix]
        if instruction.op == "outer":
            target += self.factor(args[0]).T @ self.factor(args[1])
        else:
            product = args[0] * args[1] if len(args) > 1 else args[0]
            target += product.sum(0)
