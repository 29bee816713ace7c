"""Passes for the native engine's tests, and a way to run one on both engine and reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from engine.pass_reference import Interpreter, Memory
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
from unpad.engine.native_engine import NativePass


@dataclass
class Builder:
    """Collects buffers and instructions, so that a test reads like algebra."""

    buffers: list[Buffer] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    matrices: list[tuple[int, int]] = field(default_factory=list)
    accumulators: list[tuple[int, int]] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    tables: list[tuple[int, ...]] = field(default_factory=list)
    n_streams: int = 0
    n_shared: int = 0

    def buffer(self, kind: Kind, width: int, index: int = -1) -> Operand:
        self.buffers.append(Buffer(kind, width, index))
        return Operand(len(self.buffers) - 1, 0, width)

    def stream(self, width: int) -> Operand:
        self.n_streams += 1
        return self.buffer(Kind.STREAM, width, self.n_streams - 1)

    def shared(self, width: int) -> Operand:
        self.n_shared += 1
        return self.buffer(Kind.SHARED, width, self.n_shared - 1)

    def constant(self, value: float) -> Operand:
        self.constants.append(value)
        return self.buffer(Kind.CONST, 1, len(self.constants) - 1)

    def window(self, width: int) -> Operand:
        return self.buffer(Kind.WINDOW, width)

    def scratch(self, width: int) -> Operand:
        return self.buffer(Kind.SCRATCH, width)

    def state(self, width: int, history: bool) -> tuple[Operand, Operand]:
        stream = -1
        if history:
            stream, self.n_streams = self.n_streams, self.n_streams + 1
        self.states.append(State(width, stream))
        k = len(self.states) - 1
        return self.buffer(Kind.PREV, width, k), self.buffer(Kind.NEXT, width, k)

    def history(self, k: int) -> Operand:
        return self.buffer(Kind.STREAM, self.states[k].width, self.states[k].stream)

    def matrix(self, rows: int, cols: int) -> int:
        self.matrices.append((rows, cols))
        return len(self.matrices) - 1

    def accumulator(self, rows: int, cols: int) -> int:
        self.accumulators.append((rows, cols))
        return len(self.accumulators) - 1

    def table(self, *entries: int) -> int:
        self.tables.append(entries)
        return len(self.tables) - 1

    def phase(self, kind: PhaseKind, *instructions: Instruction) -> None:
        self.phases.append(Phase(kind, instructions))

    def build(self) -> Pass:
        return Pass(
            tuple(self.buffers),
            tuple(self.phases),
            tuple(self.states),
            tuple(self.matrices),
            tuple(self.accumulators),
            tuple(self.constants),
            tuple(self.tables),
            self.n_streams,
            self.n_shared,
        )


def columns(operand: Operand, offset: int, width: int) -> Operand:
    return replace(operand, offset=operand.offset + offset, width=width)


def op(name: str, out: Operand | None, *args: Operand, **rest: Any) -> Instruction:
    return Instruction(name, out, args, **rest)


def stream_widths(pass_: Pass) -> list[int]:
    widths = [1] * pass_.n_streams
    for b in pass_.buffers:
        if b.kind == Kind.STREAM:
            widths[b.index] = max(widths[b.index], b.width)
    for s in pass_.states:
        if s.stream >= 0:
            widths[s.stream] = max(widths[s.stream], s.width)
    return widths


def shared_widths(pass_: Pass) -> list[int]:
    widths = [1] * pass_.n_shared
    for b in pass_.buffers:
        if b.kind == Kind.SHARED:
            widths[b.index] = b.width
    return widths


def memory_for(pass_: Pass, lengths: list[int], dtype: torch.dtype, scale: float = 1.0) -> Memory:
    """Random caller's memory as tensors; streams have odd row strides, matrices are transposed."""
    tokens, batch = sum(lengths), len(lengths)

    def rand(*shape: int) -> Any:
        return (scale * torch.randn(shape, dtype=torch.float64)).to(dtype)

    return Memory(
        streams=[rand(tokens, w + 3)[:, 1 : w + 1] for w in stream_widths(pass_)],
        shared=[rand(w) for w in shared_widths(pass_)],
        matrices=[rand(n, k).T if i % 2 else rand(k, n) for i, (k, n) in enumerate(pass_.matrices)],
        accumulators=[rand(*size) for size in pass_.accumulators],
        initial=[rand(batch, s.width) for s in pass_.states],
        final=[rand(batch, s.width) for s in pass_.states],
    )


def as_arrays(memory: Memory) -> Memory:
    def convert(tensors: list[Any]) -> list[Any]:
        return [np.array(t.double().numpy()) for t in tensors]

    return Memory(
        convert(memory.streams),
        convert(memory.shared),
        convert(memory.matrices),
        convert(memory.accumulators),
        convert(memory.initial),
        convert(memory.final),
    )


def offsets_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64)


def run_native(
    pass_: Pass | NativePass,
    memory: Memory,
    lengths: list[int],
    dtype: torch.dtype,
    *,
    reverse: bool = False,
    threads: int = 1,
) -> None:
    compiled = pass_ if isinstance(pass_, NativePass) else NativePass(pass_)
    compiled.run(
        dtype=dtype,
        offsets=offsets_of(lengths),
        streams=memory.streams,
        shared=memory.shared,
        matrices=memory.matrices,
        accumulators=memory.accumulators,
        initial=memory.initial,
        final=memory.final,
        reverse=reverse,
        threads=threads,
    )


def assert_like_reference(
    pass_: Pass,
    lengths: list[int],
    dtype: torch.dtype,
    *,
    memory: Memory | None = None,
    reverse: bool = False,
    threads: int = 1,
) -> None:
    memory = memory or memory_for(pass_, lengths, dtype)
    wanted = as_arrays(memory)
    offsets = [int(n) for n in offsets_of(lengths)]
    with np.errstate(all="ignore"):
        Interpreter(pass_, wanted, offsets, reverse).run()
    run_native(pass_, memory, lengths, dtype, reverse=reverse, threads=threads)
    for name in ("streams", "accumulators", "final"):
        for i, (got, want) in enumerate(
            zip(getattr(memory, name), getattr(wanted, name), strict=True)
        ):
            assert_close(got, want, dtype, f"{name}[{i}]")


def assert_close(got: torch.Tensor, want: Any, dtype: torch.dtype, what: str) -> None:
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    np.testing.assert_allclose(
        got.double().numpy(), want, rtol=tolerance, atol=tolerance * scale, err_msg=what
    )


BULK, LOOP, REDUCE = PhaseKind.BULK, PhaseKind.LOOP, PhaseKind.REDUCE
