"""Whole numbers in a compiled step: those of torch to the last bit, or the eager loop."""

from __future__ import annotations

import warnings

import pytest
import torch

import unpad
from unpad.compiler.build import trace_count
from unpad.engine import choose

LONG = torch.int64
# Name → (the new state of the old one and x, the state's dtype, whether it stays compiled in
# float32 for the 300 steps below).
CELLS = {
    "count": (lambda n, x: n + 1, LONG, True),
    "down": (lambda n, x: n - 3, LONG, True),
    "steps_beyond_float32": (lambda n, x: n + 5_000_001, LONG, False),
    "beyond_at_once": (lambda n, x: n + 2**40, LONG, False),
    "halved": (lambda n, x: n // 2 + 20_000_000, LONG, False),
    "from_float": (lambda n, x: n + (x[:, 0].abs() * 1e6).long(), LONG, False),
    "captured": (lambda n, x: n + torch.tensor(16_777_217), LONG, False),
    "product": (lambda n, x: n * 3 + 1, LONG, False),
    "doubled": (lambda n, x: torch.add(n, n, alpha=1) // 2 + 1, LONG, False),
    "int8": (lambda n, x: n + 1, torch.int8, False),
    "int16": (lambda n, x: n + 1, torch.int16, True),
    "int32": (lambda n, x: n + 100_000_000, torch.int32, False),
    "uint8": (lambda n, x: n + 1, torch.uint8, False),
    "uint8_down": (lambda n, x: n - 1, torch.uint8, False),
    "narrowed": (lambda n, x: (n + 1).to(torch.int8).long(), LONG, False),
    "cut_to_int8": (lambda n, x: n + (x[:, 0] * 1e3).to(torch.int8), LONG, False),
    "below_0_as_uint8": (lambda n, x: n - 1 + n.to(torch.uint8) // 99, LONG, False),
    "flag_as_uint8": (lambda n, x: n + (x[:, 0] > 0).to(torch.uint8), LONG, True),
    "reset": (lambda n, x: torch.where(x[:, 0] > 0, 0, n + 1), LONG, True),
    "modulo": (lambda n, x: (n + 7) % 5, LONG, True),
    "events": (lambda n, x: n + (x[:, 0] > 0).long(), LONG, True),
    "clamped": (lambda n, x: (n + 3).clamp(max=20), LONG, True),
    "sum_of_flags": (lambda n, x: n + (x > 0).sum(1), LONG, True),
    "or": (lambda n, x: n | (x[:, 0] > 1), torch.bool, True),
    "xor": (lambda n, x: n ^ (x[:, 0] > 0), torch.bool, True),
    "and": (lambda n, x: n & (x[:, 0] > 0), torch.bool, True),
    "not": (lambda n, x: ~n, torch.bool, True),
}


class Whole(unpad.Cell):
    """A state of whole numbers or flags, read as a float at every step."""

    def __init__(self, name: str, first: int) -> None:
        super().__init__()
        self.input_size, self.state_size = 2, (2, torch.Size([]))
        self.change, self.kind, _ = CELLS[name]
        self.first = first

    def initial_state(self, batch_size, *, dtype=None, device=None):
        return torch.zeros(batch_size, 2, dtype=dtype), torch.full(
            (batch_size,), self.first, dtype=self.kind
        )

    def forward(self, x, state):
        n = self.change(state[1], x)
        h = x + n.to(x.dtype)[:, None]
        return h, (h, n)


@pytest.mark.filterwarnings("ignore::unpad.UncompiledCellWarning")
@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CELLS)
def test_every_number_is_that_of_torch(name: str, dtype: torch.dtype, engine: str) -> None:
    cell = Whole(name, 0 if CELLS[name][1] is torch.bool else 5)
    rows = [torch.randn(length, 2, dtype=dtype) for length in (300, 3, 0, 140)]
    with unpad.engine(engine):
        outputs, (_, counts) = unpad.nn.Recurrent(cell)(rows)
    for x, output, count in zip(rows, outputs, counts, strict=True):
        state = cell.initial_state(1, dtype=dtype)
        for token, found in zip(x, output, strict=True):
            wanted, state = cell(token[None], state)
            assert torch.equal(found, wanted[0])
        assert torch.equal(count, state[1][0])
        assert count.dtype == state[1].dtype


@pytest.mark.filterwarnings("ignore::unpad.UncompiledCellWarning")
@pytest.mark.parametrize("name", CELLS)
def test_what_stays_exact_stays_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    eager = choose.eager.run
    monkeypatch.setattr(choose.eager, "run", lambda *a, **k: ran.append(1) or eager(*a, **k))
    unpad.nn.Recurrent(Whole(name, 0))([torch.randn(300, 2)])
    assert (not ran) == CELLS[name][2]


def test_a_counter_leaves_the_program_where_it_would_lose_a_unit() -> None:
    """One trace serves both: near 2^24 the same cell runs in the eager loop."""
    layer, before = unpad.nn.Recurrent(Whole("count", 0)), trace_count()
    rows = [torch.randn(9, 2)]
    for first in (0, 2**24 - 5, -(2**24)):
        state = (torch.zeros(1, 2), torch.tensor([first]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, (_, count) = layer(rows, state)
        assert count.tolist() == [first + 9]
    assert trace_count() == before + 1


def test_the_smallest_number_of_a_dtype_is_no_small_one() -> None:
    """abs(-128) is -128 in int8."""
    cell = Whole("int8", -128)
    _, (_, count) = unpad.nn.Recurrent(cell)([torch.randn(3, 2)])
    assert count.tolist() == [-125]
