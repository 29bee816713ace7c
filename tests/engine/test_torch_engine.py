"""The torch engine runs any pass as the plain interpreter does: it is the specification."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import oracle
import unpad
from engine.every_cell import SHIPPED
from engine.native_passes import (
    BULK,
    LOOP,
    REDUCE,
    Builder,
    as_arrays,
    assert_close,
    memory_for,
    offsets_of,
    op,
)
from engine.pass_reference import Interpreter
from random_cells import random_cell
from unpad.compiler.build import compile_cell
from unpad.compiler.differentiate import Needs
from unpad.compiler.program import Pass
from unpad.engine import choose
from unpad.engine.torch_engine import Frame, run_pass

BATCHES = [[3, 0, 1, 5], [0, 0], [], [1, 1, 1], [7]]


def assert_like_interpreter(pass_: Pass, lengths: list[int], *, reverse: bool = False) -> None:
    memory = memory_for(pass_, lengths, torch.float64, scale=0.5)
    wanted = as_arrays(memory)
    with np.errstate(all="ignore"):
        Interpreter(pass_, wanted, [int(n) for n in offsets_of(lengths)], reverse).run()
    frame = Frame(
        offsets=oracle.offsets_of(lengths),
        direction=-1 if reverse else 1,
        streams=list(memory.streams),
        shared=memory.shared,
        matrices=memory.matrices,
        accumulators=memory.accumulators,
        initial=memory.initial,
        final=memory.final,
    )
    run_pass(pass_, frame)
    for name in ("streams", "accumulators", "final"):
        pairs = zip(getattr(memory, name), getattr(wanted, name), strict=True)
        for i, (got, want) in enumerate(pairs):
            assert_close(got, want, torch.float64, f"{name}[{i}]")


def passes_of(cell: nn.Module) -> list[Pass]:
    cell = cell.double()
    x, _, state = oracle.batch(cell, [2])
    made = compile_cell(cell, x, state)
    step = made.step
    needs = Needs(
        x=True,
        states=made.floating,
        matrices=(True,) * len(step.matrices),
        shared=(True,) * len(step.shared_widths),
        from_states=(True,) * len(step.states),
    )
    programs = made.programs(needs, True)
    backward = programs.backward(True, (True,) * len(step.states))
    return [programs.forward.program, backward.scheduled.program]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm all", "layer norm lstm", "stack"])
def test_both_passes_of_a_cell(name: str, reverse: bool) -> None:
    for pass_ in passes_of(SHIPPED[name]()):
        for lengths in BATCHES:
            assert_like_interpreter(pass_, lengths, reverse=reverse)


@pytest.mark.parametrize("number", range(1, 40, 4))
def test_both_passes_of_a_random_cell(number: int) -> None:
    for pass_ in passes_of(random_cell(number)):
        assert_like_interpreter(pass_, BATCHES[0], reverse=bool(number % 2))


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_a_pass_by_hand(lengths: list[int]) -> None:
    b = Builder()
    x, y, kept = b.stream(5), b.stream(5), b.window(5)
    prev, after = b.state(5, history=True)
    total = b.scratch(5)
    b.phase(BULK, op("mul", kept, x, b.constant(0.5)))
    b.phase(
        LOOP,
        op("linear", total, prev, kept, matrix=b.matrix(5, 5)),
        op("tanh", after, total),
        op("sub", y, after, prev),
    )
    b.phase(
        REDUCE,
        op("outer", None, x, y, matrix=b.accumulator(5, 5)),
        op("sum_rows", None, y, matrix=b.accumulator(1, 5)),
    )
    assert_like_interpreter(b.build(), lengths)


def test_it_runs_where_there_is_no_native_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an install without a compiler: right, and said once."""
    monkeypatch.setattr(choose.native_engine, "_missing", "built without it")
    monkeypatch.setattr(choose, "_warned", set())
    cell = SHIPPED["lstm"]().double()
    x, offsets, state = oracle.batch(cell, [2, 0, 3])
    with pytest.warns(RuntimeWarning, match=r"torch engine.*built without it"):
        actual = oracle.outcome(choose.run, cell, x, offsets, state)
    oracle.assert_same(actual, oracle.expected(cell, x, offsets, state), 1e-10)
    choose.run(cell, x, offsets, state)  # a second warning would be an error
    assert unpad.explain(cell).engine == "torch"
    with unpad.engine("native"), pytest.raises(unpad.ArgumentError, match="built without it"):
        choose.run(cell, x, offsets, state)


def test_the_numbers_of_a_frame_that_are_not_results_are_left_alone() -> None:
    (forward, _) = passes_of(SHIPPED["lstm"]())
    lengths = [2, 3]
    memory = memory_for(forward, lengths, torch.float64)
    given = [t.clone() for t in (memory.streams[0], *memory.matrices, *memory.shared)]
    initial = [t.clone() for t in memory.initial]
    run_pass(
        forward,
        Frame(
            oracle.offsets_of(lengths), 1, list(memory.streams), memory.shared, memory.matrices,
            memory.accumulators, memory.initial, memory.final,
        ),
    )  # fmt: skip
    after = (memory.streams[0], *memory.matrices, *memory.shared)
    assert all(torch.equal(a, b) for a, b in zip(after, given, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(memory.initial, initial, strict=True))
