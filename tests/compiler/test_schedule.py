"""What stays in the loop: only what depends on a state and feeds one."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import oracle
from random_cells import random_cell
from unpad import Cell
from unpad.compiler.build import Compiled, compile_cell
from unpad.compiler.differentiate import Needs
from unpad.compiler.program import Kind, Pass, Phase, PhaseKind
from unpad.nn import GRUCell, LayerNormLSTMCell, LSTMCell, RNNCell, Stack


def made(cell: nn.Module) -> Compiled:
    cell = cell.double()
    x, _, state = oracle.batch(cell, [2])
    return compile_cell(cell, x, state)


def all_needs(compiled: Compiled, **changes) -> Needs:
    step = compiled.step
    wanted = {
        "x": True,
        "states": compiled.floating,
        "matrices": (True,) * len(step.matrices),
        "shared": (True,) * len(step.shared_widths),
        "from_states": (False,) * len(step.states),
    }
    return Needs(**{**wanted, **changes})


def passes(cell: nn.Module, **changes) -> tuple[Pass, Pass]:
    compiled = made(cell)
    programs = compiled.programs(all_needs(compiled, **changes), False)
    none = (False,) * len(compiled.step.states)
    return programs.forward.program, programs.backward(True, none).scheduled.program


def kinds(program: Pass) -> list[str]:
    return [phase.kind.name for phase in program.phases]


def ops(phase: Phase) -> list[str]:
    return [instruction.op for instruction in phase.instructions]


def test_an_lstm_is_one_product_before_and_one_in_the_loop() -> None:
    forward, backward = passes(LSTMCell(3, 4))
    assert kinds(forward) == ["BULK", "LOOP"]
    assert ops(forward.phases[0]) == ["linear"]
    assert ops(forward.phases[1]).count("linear") == 1
    assert kinds(backward) == ["LOOP", "BULK", "REDUCE"]
    assert ops(backward.phases[0]).count("linear") == 1
    assert ops(backward.phases[1]) == ["linear"]
    assert sorted(ops(backward.phases[2])) == ["outer", "outer", "sum_rows"]


def test_what_feeds_no_state_comes_after_the_loop() -> None:
    class Head(Cell):
        input_size, state_size, output_size = 3, 4, 7

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = RNNCell(3, 4), nn.Linear(4, 7)

        def forward(self, x, h):
            _, h = self.cell(x, h)
            return torch.softmax(self.head(h), 1), h

    forward, backward = passes(Head())
    assert kinds(forward) == ["BULK", "LOOP", "BULK"]
    assert ops(forward.phases[2])[:2] == ["linear", "softmax"]
    assert backward.phases[0].kind == PhaseKind.BULK
    assert "linear" in ops(backward.phases[0])


def test_recurrences_that_do_not_feed_back_are_loops_of_their_own() -> None:
    forward, backward = passes(Stack([LSTMCell(3, 4), GRUCell(4, 5), RNNCell(5, 2)]))
    assert kinds(forward) == ["BULK", "LOOP", "BULK", "LOOP", "BULK", "LOOP"]
    assert [p for p in kinds(backward) if p == "LOOP"] == ["LOOP"] * 3
    assert kinds(backward)[-1] == "REDUCE"


def test_states_that_feed_each_other_share_a_loop() -> None:
    class Crossed(Cell):
        input_size, state_size = 2, (2, 2)

        def forward(self, x, state):
            a, b = state
            return a, (torch.tanh(b + x), torch.tanh(a - x))

    assert kinds(passes(Crossed())[0]).count("LOOP") == 1


def test_a_chain_against_the_order_of_the_states_is_ordered_by_dependence() -> None:
    class Backwards(Cell):
        input_size, state_size = 2, (2, 2)

        def forward(self, x, state):
            second, first = state
            first = torch.tanh(first + x)
            second = torch.tanh(second * first)
            return second, (second, first)

    cell = Backwards()
    forward, _ = passes(cell)
    loops = [p for p in forward.phases if p.kind == PhaseKind.LOOP]
    written = [
        {forward.buffers[i.out.buffer].index for i in p.instructions if i.out is not None
         and forward.buffers[i.out.buffer].kind == Kind.NEXT}
        for p in loops
    ]  # fmt: skip
    assert written == [{1}, {0}]


def test_no_loop_where_no_state_is_read() -> None:
    class Plain(Cell):
        input_size, state_size = 3, 3

        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(3, 3)

        def forward(self, x, h):
            y = torch.tanh(self.map(x))
            return y, y

    forward, _ = passes(Plain())
    loops = [p for p in forward.phases if p.kind == PhaseKind.LOOP]
    assert all(set(ops(p)) == {"copy"} for p in loops)


@pytest.mark.parametrize("number", range(0, 40, 2))
def test_every_buffer_is_written_before_it_is_read(number: int) -> None:
    for program in passes(random_cell(number)):
        own = (Kind.WINDOW, Kind.SCRATCH)
        written: dict[int, set[int]] = {}
        for phase in program.phases:
            for instruction in phase.instructions:
                for arg in instruction.args:
                    if program.buffers[arg.buffer].kind in own:
                        columns = set(range(arg.offset, arg.offset + arg.width))
                        assert columns <= written.get(arg.buffer, set())
                out = instruction.out
                if out is not None:
                    known = written.setdefault(out.buffer, set())
                    known |= set(range(out.offset, out.offset + out.width))


@pytest.mark.parametrize("number", range(0, 40, 2))
def test_scratch_never_outlives_its_phase(number: int) -> None:
    for program in passes(random_cell(number)):
        home: dict[int, int] = {}
        for at, phase in enumerate(program.phases):
            for instruction in phase.instructions:
                for operand in (*instruction.args, instruction.out):
                    if operand and program.buffers[operand.buffer].kind == Kind.SCRATCH:
                        assert home.setdefault(operand.buffer, at) == at


def test_what_is_cheap_stays_where_its_operands_are_at_hand() -> None:
    _, backward = passes(GRUCell(3, 4))
    assert kinds(backward) == ["LOOP", "BULK", "REDUCE"]  # 1 - z: z is read in the loop anyway
    assert "sub" in ops(backward.phases[0])
    forward, backward = passes(LayerNormLSTMCell(3, 4))
    assert kinds(forward) == ["BULK", "LOOP"]
    assert ops(forward.phases[0]).count("inv_std") == 1  # of the input's product
    assert ops(forward.phases[1]).count("inv_std") == 2  # those of the state's product and of c
    windows = [b.width for b in forward.buffers if b.kind == Kind.WINDOW]
    assert windows == [16]  # the input's part of the gates alone waits for the loop
    assert ops(backward.phases[1]) == ["scaled_normalize_grad", "linear"]


def test_a_sum_of_products_keeps_no_product() -> None:
    _, backward = passes(LayerNormLSTMCell(3, 4))
    sums = [i for i in backward.phases[-1].instructions if i.op == "sum_rows"]
    assert sorted(len(i.args) for i in sums) == [1, 1, 2, 2, 2]  # biases, of x and h one; gains
    windows = [b.width for b in backward.buffers if b.kind == Kind.WINDOW]
    assert sorted(windows) == [4, 16, 16, 16]  # three norms' gradients, the sum of two of them


@pytest.mark.parametrize("size", [4, 20, 64])
def test_what_is_kept_starts_on_lines_of_its_own(size: int) -> None:
    """Narrow values (a standard deviation) after wide ones, without a hole or an overlap."""
    compiled = made(LayerNormLSTMCell(3, size))
    streams = compiled.programs(all_needs(compiled), False).streams
    wide = [start for start, width in streams.kept_columns if width >= 16]
    assert all(start % 16 == 0 for start in wide)
    ends = sorted((start, start + width) for start, width in streams.kept_columns)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] <= streams.kept_width
    assert streams.kept_width % 16 == 0 or size == 4  # a tiny cell pays for no hole
