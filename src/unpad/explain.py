"""What the compiler made of a cell, drawn as text."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_precision
from unpad.cells.cell import feature_shape, first_floating, start
from unpad.cells.compose import check_cell, size_of
from unpad.compiler.build import Compiled, Programs
from unpad.compiler.differentiate import Needs
from unpad.compiler.once import Once, OnceRef, once_refs
from unpad.compiler.program import Instruction, Kind, Operand, Pass, PhaseKind
from unpad.compiler.schedule import Scheduled
from unpad.compiler.trace import Refused
from unpad.engine import choose, native_engine

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
}


@dataclass(frozen=True)
class Explanation:
    """The program of a cell; ``str`` draws it.

    Attributes:
        name: the cell's class.
        engine: native, torch or eager: which engine runs it.
        refusal: why the compiler cannot take the cell, with operation and source line; else "".
        multiply_adds: per token, by part: "forward before", "forward loop", "backward after", ...
        saved_bytes: per token, what the forward pass keeps for the backward pass.

    >>> import unpad
    >>> made = unpad.explain(unpad.nn.RNNCell(2, 3))
    >>> made.multiply_adds["forward loop"]  # 3 x 3, the product of the state
    9
    """

    name: str
    engine: str
    refusal: str
    multiply_adds: dict[str, int]
    saved_bytes: int
    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


def explain(
    cell: nn.Module, *, dtype: torch.dtype | None = None, precision: str | None = None
) -> Explanation:
    """Draw the program that a cell was compiled to.

    It tells what runs before, in and after the loop, forward and backward, the multiply-adds per
    token in each, the bytes saved per token, and which engine will run it; where that is not the
    native one, the operation and the source line that are the reason.

    Args:
        cell: any cell.
        dtype: of input and floating states; the dtype of its first parameter unless given.
        precision: of products, as for `unpad.nn.Recurrent`.

    Raises:
        ArgumentTypeError: it is not a cell.
        What the cell's own forward raises.

    >>> import unpad
    >>> print(explain(unpad.nn.RNNCell(2, 3)))  # doctest: +ELLIPSIS
    RNNCell: ...
    """
    check_cell(cell, "cell")
    check_precision(precision)
    first = first_floating(cell)
    dtype = dtype or (torch.get_default_dtype() if first is None else first.dtype)
    device = None if first is None else first.device
    features = feature_shape(size_of(cell, "input_size"))
    x = torch.zeros(2, *features, dtype=dtype, device=device)
    compiled = choose.compiled(cell, x, start(cell, 2, x))
    name = type(cell).__name__
    if isinstance(compiled, Refused):
        text = f"{name}: eager engine, a torch loop over time\n  since {compiled}"
        return Explanation(name, "eager", str(compiled), {}, 0, text)
    return _drawn(name, compiled, x, choose.rounds(x, precision))


def _drawn(name: str, compiled: Compiled, x: Tensor, rounds: bool) -> Explanation:
    step = compiled.step
    states = len(step.states)
    needs = Needs(
        x=True,
        states=compiled.floating,
        matrices=(True,) * len(step.matrices),
        shared=(True,) * len(step.shared_widths),
        from_states=(False,) * states,
    )
    programs = compiled.programs(needs, False)
    engine = "native" if choose.native_takes(x) else "torch"
    counts: dict[str, int] = {}
    lines: list[str] = []
    backward = programs.backward(True, (False,) * states).scheduled
    for direction, scheduled in (("forward", programs.forward), ("backward", backward)):
        names = _Names(compiled, programs, scheduled, direction)
        lines.append(direction)
        for title, instructions in _parts(scheduled.program):
            count = sum(_multiply_adds(i, scheduled.program) for i in instructions)
            key = f"{direction} {title.split()[0].rstrip(':')}"
            counts[key] = counts.get(key, 0) + count
            lines.append(f"  {title}" + (f": {count:,} multiply-adds a token" if count else ""))
            lines += [f"    {names.instruction(i)}" for i in instructions]
    streams = programs.streams
    kept = (*streams.saved, *streams.histories.values())
    size = sum(streams.forward_widths[s] for s in kept)
    size *= choose.working_dtype(x).itemsize
    isa = f" ({native_engine.tier()})" if engine == "native" else ""
    isa += ", products in bfloat16" if rounds else ""
    head = f"{name}: {engine} engine{isa}, {size:,} bytes saved per token for the backward pass"
    text = "\n".join([head, *_once_lines(compiled.once, compiled), *lines])
    return Explanation(name, engine, "", counts, size, text)


def _parts(program: Pass) -> list[tuple[str, tuple[Instruction, ...]]]:
    """Phases under their titles: before, loop, between, after, sums."""
    loops = [i for i, phase in enumerate(program.phases) if phase.kind == PhaseKind.LOOP]
    parts: list[tuple[str, tuple[Instruction, ...]]] = []
    for i, phase in enumerate(program.phases):
        if phase.kind == PhaseKind.LOOP:
            title = "loop" if len(loops) == 1 else f"loop {loops.index(i) + 1}"
        elif phase.kind == PhaseKind.REDUCE:
            title = "after: sums over time"
        else:
            before = not loops or i < loops[0]
            title = "before" if before else "after" if i > loops[-1] else "between loops"
        parts.append((title, phase.instructions))
    return parts


def _multiply_adds(instruction: Instruction, program: Pass) -> int:
    if instruction.op == "linear":
        rows, columns = program.matrices[instruction.matrix]
        return rows * columns
    if instruction.op == "outer":
        return instruction.args[0].width * instruction.args[1].width
    return 0


def _once_lines(once: Once, compiled: Compiled) -> list[str]:
    lines = [
        f"  {label}{i} = {_expression(ref, once, compiled)}"
        for label, refs in (("W", once.matrices), ("v", once.shared))
        for i, ref in enumerate(refs)
    ]
    return ["once a run", *lines] if lines else []


def _expression(ref: OnceRef, once: Once, compiled: Compiled) -> str:
    if ref.number < once.leaves:
        return compiled.leaves[ref.number].attribute or f"captured tensor {ref.number}"
    if ref in once.pieces:
        pieces = [[_expression(t, once, compiled) for t in piece] for piece in once.pieces[ref]]
        sums = [functools.reduce(lambda a, b: f"add({a}, {b})", terms) for terms in pieces]
        return sums[0] if len(sums) == 1 else f"cat({', '.join(sums)})"
    for function, args, _, results in once.calls:
        if ref.number in results:
            given = [_expression(a, once, compiled) for a in once_refs(args)]
            name = getattr(function, "__name__", str(function)).split(".")[0].strip("_")
            return given[0] if name == "vector" else f"{name}({', '.join(given)})"
    return "?"


class _Names:
    """What operands are called in the drawing."""

    def __init__(
        self, compiled: Compiled, programs: Programs, scheduled: Scheduled, direction: str
    ) -> None:
        self.scheduled, self.program = scheduled, scheduled.program
        streams = programs.streams
        names = {0: "x", streams.output: "output" if direction == "forward" else "d output"}
        names |= {1 + i: f"noise{i}" for i in range(streams.noises)}
        names |= {s: f"saved{i}" for i, s in enumerate(streams.saved)}
        names |= {s: f"state{k}.before" for k, s in streams.histories.items()}
        if direction == "backward":
            names[streams.grad_x] = "d x"
            alive = [k for k, lives in enumerate(programs.alive) if lives]
            self.states = [f"d state{k}" for k in alive]
        else:
            self.states = [f"state{k}" for k in range(len(compiled.step.states))]
        self.streams = names

    def operand(self, operand: Operand) -> str:
        buffer = self.program.buffers[operand.buffer]
        name = self.buffer(operand.buffer)
        if operand.width == buffer.width:
            return name
        return f"{name}[{operand.offset}:{operand.offset + operand.width}]"

    def buffer(self, number: int) -> str:
        buffer = self.program.buffers[number]
        if buffer.kind == Kind.STREAM:
            return self.streams.get(buffer.index, f"stream{buffer.index}")
        if buffer.kind == Kind.SHARED:
            return f"v{self.scheduled.shared[buffer.index]}"
        if buffer.kind == Kind.CONST:
            return f"{self.program.constants[buffer.index]:g}"
        if buffer.kind in (Kind.PREV, Kind.NEXT):
            return self.states[buffer.index] + (".new" if buffer.kind == Kind.NEXT else "")
        return f"{'w' if buffer.kind == Kind.WINDOW else 't'}{number}"

    def instruction(self, i: Instruction) -> str:
        args = [self.operand(a) for a in i.args]
        if i.op in ("outer", "sum_rows"):
            return f"sum {i.matrix} += " + ("ᵀ " if i.op == "outer" else " * ").join(args)
        assert i.out is not None
        out = f"{self.operand(i.out)} ="
        if i.op == "linear":
            number, flipped = self.scheduled.matrices[i.matrix][0], self.scheduled.flipped[i.matrix]
            product = f"{args[0]} · W{number}{'ᵀ' if flipped else ''}"
            return f"{out} {product}" + (f" + {args[1]}" if len(args) > 1 else "")
        if i.op in _SIGNS:
            return f"{out} {args[0]} {_SIGNS[i.op]} {args[1]}"
        if i.op == "mul_add":
            return f"{out} {args[0]} * {args[1]} + {args[2]}"
        return f"{out} {args[0]}" if i.op == "copy" else f"{out} {i.op}({', '.join(args)})"
