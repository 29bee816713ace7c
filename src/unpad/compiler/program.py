"""A Program: what an engine runs, as plain data.

A program holds two passes, forward and backward, of the same form. A pass is a list of phases over
the rows (tokens) of a ragged batch:

- a *bulk* phase runs its instructions on all rows of a window, in any order;
- a *loop* phase runs them step by step, since it carries a state from token to token;
- a *reduce* phase sums over the rows of a window into accumulators (every parameter's gradient).

Every value of a row is a flat vector of ``width`` numbers: shapes were resolved by the compiler
into widths, column offsets and the ``dims`` of an instruction. That is what keeps an engine small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """Where a buffer lives, and what its row number counts."""

    STREAM = 0  # caller's memory, one row a token
    WINDOW = 1  # the engine's, one row a token of the current window
    SCRATCH = 2  # the engine's, one row block; lives within one phase
    SHARED = 3  # one vector for all rows
    CONST = 4  # one number for all rows
    PREV = 5  # state before the step
    NEXT = 6  # state after the step


class PhaseKind(IntEnum):
    """How a phase goes over the rows."""

    BULK = 0
    LOOP = 1
    REDUCE = 2


@dataclass(frozen=True)
class Buffer:
    """``index``: number of the external stream, shared vector, constant or state; else -1."""

    kind: Kind
    width: int
    index: int = -1


@dataclass(frozen=True)
class Operand:
    """Columns [offset, offset + width) of a buffer."""

    buffer: int
    offset: int
    width: int


@dataclass(frozen=True)
class Instruction:
    """``out = op(args)`` on rows; ``dims`` views a row as [outer, n, inner] where the op needs it.

    ``matrix`` is the weight of a ``linear`` and the accumulator of ``outer`` and ``sum_rows``;
    ``table`` the index table of ``take`` and ``scatter``.
    """

    op: str
    out: Operand | None
    args: tuple[Operand, ...]
    dims: tuple[int, ...] = ()
    matrix: int = -1
    table: int = -1


@dataclass(frozen=True)
class Phase:
    """Instructions that run together."""

    kind: PhaseKind
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class State:
    """``stream`` >= 0: that external stream keeps the state before every token."""

    width: int
    stream: int = -1


@dataclass(frozen=True)
class Pass:
    """One direction of a program; ``stream_widths`` has the width of every external stream."""

    buffers: tuple[Buffer, ...]
    phases: tuple[Phase, ...]
    states: tuple[State, ...]
    matrices: tuple[tuple[int, int], ...]
    accumulators: tuple[tuple[int, int], ...]
    constants: tuple[float, ...]
    tables: tuple[tuple[int, ...], ...]
    n_streams: int
    n_shared: int
    stream_widths: tuple[int, ...] = field(default=())
