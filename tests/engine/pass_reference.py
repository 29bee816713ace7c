"""What a Pass means, in plain NumPy: one sequence at a time, one token at a time, float64.

The oracle of the native engine. It shares nothing with it but the data classes of the pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unpad.compiler.program import Kind, PhaseKind

if TYPE_CHECKING:
    from unpad.compiler.program import Instruction, Operand, Pass

Array = Any
_erf = np.vectorize(math.erf, otypes=[float])


def _logical(f: Any) -> Any:
    return lambda *args: f(*args).astype(float)


ELEMENTWISE: dict[str, Any] = {
    "copy": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "sign": lambda x: (x > 0) * 1.0 - (x < 0) * 1.0,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "square": np.square,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "softplus": lambda x: np.logaddexp(0, x),
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "logical_not": _logical(np.logical_not),
    "isnan": _logical(np.isnan),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "remainder": np.remainder,
    "eq": _logical(np.equal),
    "ne": _logical(np.not_equal),
    "lt": _logical(np.less),
    "le": _logical(np.less_equal),
    "gt": _logical(np.greater),
    "ge": _logical(np.greater_equal),
    "logical_and": _logical(np.logical_and),
    "logical_or": _logical(np.logical_or),
    "sigmoid_grad": lambda g, s: g * s * (1 - s),
    "tanh_grad": lambda g, t: g * (1 - t * t),
    "where": lambda c, a, b: np.where(c != 0, a, b),
    "mul_add": lambda a, b, c: a * b + c,
}


def _onehot(x: Array) -> Array:
    out = np.zeros_like(x)
    np.put_along_axis(out, np.argmax(x, axis=1, keepdims=True), 1.0, axis=1)
    return out


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def over_features(op: str, args: list[Array], dims: tuple[int, ...]) -> Array:
    x = args[0].reshape(dims)
    if op in ("normalize", "inv_std"):
        scale = 1 / np.sqrt(x.var(axis=1, keepdims=True) + args[1])
        return scale if op == "inv_std" else (x - x.mean(axis=1, keepdims=True)) * scale
    if op == "scaled_normalize_grad":
        return over_features("normalize_grad", [args[0] * args[3], *args[1:3]], dims)
    if op == "normalize_grad":
        y, scale = args[1].reshape(dims), args[2].reshape(-1, 1)
        pulled = y * (x * y).mean(axis=1, keepdims=True)
        return scale * (x - x.mean(axis=1, keepdims=True) - pulled)
    return {"sum": lambda: x.sum(axis=1), "max": lambda: x.max(axis=1)}.get(
        op, {"softmax": lambda: _softmax(x), "onehot_max": lambda: _onehot(x)}.get(op, lambda: x)
    )()


def value_of(pass_: Pass, instruction: Instruction, args: list[Array], matrices: Any) -> Array:
    op, width = instruction.op, instruction.out.width if instruction.out else 0
    if op in ELEMENTWISE:
        return np.broadcast_to(ELEMENTWISE[op](*args), (width,))
    if op == "expand":
        outer, n, inner = instruction.dims
        return np.repeat(args[0].reshape(outer, 1, inner), n, axis=1).reshape(-1)
    if op == "take":
        return args[0][list(pass_.tables[instruction.table])]
    if op == "scatter":
        out = np.zeros(width)
        np.add.at(out, list(pass_.tables[instruction.table]), args[0])
        return out
    if op == "linear":
        return args[0] @ matrices[instruction.matrix] + (args[1] if len(args) == 2 else 0)
    return over_features(op, args, instruction.dims).reshape(-1)


@dataclass
class Memory:
    """The caller's arrays, all float64; streams, accumulators and final are overwritten."""

    streams: list[Array]
    shared: list[Array]
    matrices: list[Array]
    accumulators: list[Array]
    initial: list[Array]
    final: list[Array]


class Interpreter:
    def __init__(self, pass_: Pass, memory: Memory, offsets: list[int], reverse: bool) -> None:
        self.pass_, self.memory, self.offsets, self.reverse = pass_, memory, offsets, reverse
        self.window = [np.zeros((offsets[-1], b.width)) for b in pass_.buffers]
        self.scratch = [np.zeros(b.width) for b in pass_.buffers]
        self.prev = [np.zeros(s.width) for s in pass_.states]
        self.next = [np.zeros(s.width) for s in pass_.states]

    def run(self) -> None:
        for total in self.memory.accumulators:
            total[:] = 0
        for phase in self.pass_.phases:
            for b in range(len(self.offsets) - 1):
                tokens = list(range(self.offsets[b], self.offsets[b + 1]))
                self.sequence(phase, b, tokens[::-1] if self.reverse else tokens)

    def sequence(self, phase: Any, b: int, tokens: list[int]) -> None:
        loop = phase.kind == PhaseKind.LOOP
        mine = [k for k in range(len(self.prev)) if loop and self.belongs(k, phase)]
        for k in mine:
            self.prev[k] = self.memory.initial[k][b].copy()
        for t in tokens:
            for k in mine:
                if self.pass_.states[k].stream >= 0:
                    stream = self.memory.streams[self.pass_.states[k].stream]
                    stream[t, : self.prev[k].shape[0]] = self.prev[k]
            for instruction in phase.instructions:
                self.step(instruction, t)
            for k in mine:
                self.prev[k] = self.next[k].copy()
        for k in mine:
            self.memory.final[k][b] = self.prev[k]

    def belongs(self, k: int, phase: Any) -> bool:
        buffers = [self.pass_.buffers[i.out.buffer] for i in phase.instructions if i.out]
        return any(b.kind == Kind.NEXT and b.index == k for b in buffers)

    def row(self, buffer: int, t: int) -> Array:
        b, m = self.pass_.buffers[buffer], self.memory
        return {
            Kind.STREAM: lambda: m.streams[b.index][t],
            Kind.WINDOW: lambda: self.window[buffer][t],
            Kind.SCRATCH: lambda: self.scratch[buffer],
            Kind.SHARED: lambda: m.shared[b.index],
            Kind.CONST: lambda: np.array([self.pass_.constants[b.index]]),
            Kind.PREV: lambda: self.prev[b.index],
            Kind.NEXT: lambda: self.next[b.index],
        }[b.kind]()

    def read(self, o: Operand, t: int) -> Array:
        return self.row(o.buffer, t)[o.offset : o.offset + o.width].copy()

    def step(self, instruction: Instruction, t: int) -> None:
        args = [self.read(o, t) for o in instruction.args]
        if instruction.op == "outer":
            self.memory.accumulators[instruction.matrix] += np.outer(*args)
        elif instruction.op == "sum_rows":
            self.memory.accumulators[instruction.matrix][0] += np.prod(args, axis=0)
        else:
            o = instruction.out
            assert o is not None
            value = value_of(self.pass_, instruction, args, self.memory.matrices)
            self.row(o.buffer, t)[o.offset : o.offset + o.width] = value
