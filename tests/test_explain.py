"""What explain says of a cell: numbers worked out by hand, the engine, and the reason for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import unpad
from unpad import Cell, explain
from unpad.engine import native_engine
from unpad.nn import GRUCell, LayerNormLSTMCell, LSTMCell, RNNCell, Stack

I, H = 3, 5  # noqa: E741 - the letters of the equations


def total(found: dict[str, int], direction: str) -> int:
    return sum(n for key, n in found.items() if key.startswith(direction))


@pytest.mark.parametrize(
    ("cell", "gates"),
    [(RNNCell(I, H), 1), (GRUCell(I, H), 3), (LSTMCell(I, H), 4), (LayerNormLSTMCell(I, H), 4)],
    ids=lambda v: type(v).__name__,
)
def test_multiply_adds_by_part(cell: nn.Module, gates: int) -> None:
    """Of x before the loop and after it, of h in it; the weights' gradients are sums after it."""
    counts = explain(cell).multiply_adds
    of_x, of_h = gates * H * I, gates * H * H
    assert counts["forward before"] == of_x
    assert counts["forward loop"] == of_h
    assert counts["backward loop"] == of_h
    assert counts["backward after"] == of_x + (of_x + of_h)
    assert total(counts, "forward") == of_x + of_h
    assert total(counts, "backward") == 2 * (of_x + of_h)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)], ids=str)
def test_bytes_saved_per_token(dtype: torch.dtype, size: int) -> None:
    # i, f together, g, o, tanh(c), and c and h before the step: 7 H
    assert explain(LSTMCell(I, H).to(dtype)).saved_bytes == 7 * H * size
    # tanh's result, and h before the step
    assert explain(RNNCell(I, H).to(dtype)).saved_bytes == 2 * H * size
    # the product of h, r, z, n, and h before the step: 3 H + 3 H + H
    assert explain(GRUCell(I, H).to(dtype)).saved_bytes == 7 * H * size
    # LN of two products 4 H each and of c: results and one deviation each; i f, g, o, tanh; h, c
    assert explain(LayerNormLSTMCell(I, H).to(dtype)).saved_bytes == (9 * H + 3 + 7 * H) * size


def test_dtype_may_be_asked_for() -> None:
    cell = LSTMCell(I, H)
    assert explain(cell, dtype=torch.float32).saved_bytes == 7 * H * 4
    assert explain(cell.double(), dtype=torch.float64).saved_bytes == 7 * H * 8


def test_a_stack_has_loops_one_after_the_other() -> None:
    found = explain(Stack([LSTMCell(3, 5), GRUCell(5, 2)]))
    text = str(found)
    assert text.index("loop 1") < text.index("between loops") < text.index("loop 2")
    assert found.multiply_adds["forward before"] == 4 * 5 * 3
    assert found.multiply_adds["forward loop"] == 4 * 5 * 5 + 3 * 2 * 2
    assert found.multiply_adds["forward between"] == 3 * 2 * 5


def test_the_engine_and_the_parts_are_named() -> None:
    found = explain(LSTMCell(I, H))
    expected = "native" if native_engine.available() else "torch"
    assert found.engine == expected
    assert found.refusal == ""
    lines = str(found).splitlines()
    assert lines[0].startswith(f"LSTMCell: {expected} engine")
    assert f"{7 * H * 4} bytes saved per token" in lines[0]
    assert "forward" in lines
    assert "backward" in lines
    assert any(line.strip().startswith("before: 60 multiply-adds") for line in lines)
    assert any(line.strip().startswith("loop: 100 multiply-adds") for line in lines)
    assert any(line.strip().startswith("once a run") for line in lines)
    assert repr(found) == str(found) == found.text


def test_half_precision_is_said_to_run_on_the_torch_engine() -> None:
    assert explain(LSTMCell(I, H).half()).engine == "torch"


def test_a_refused_cell_names_operation_line_and_reason() -> None:
    class Sorts(Cell):
        input_size = state_size = 3

        def forward(self, x, h):
            h = torch.tanh(h + x.sort(dim=1).values)
            return h, h

    with pytest.warns(unpad.UncompiledCellWarning):
        found = explain(Sorts())
    assert found.engine == "eager"
    assert found.multiply_adds == {}
    for words in (found.refusal, str(found)):
        assert "aten.sort" in words
        assert "test_explain.py:" in words
        assert "not in the table of operations" in words


def test_what_is_no_cell_is_refused_in_words() -> None:
    with pytest.raises(unpad.ArgumentTypeError, match=r"LSTM.*use unpad\.nn\.LSTMCell"):
        explain(unpad.nn.LSTM(3, 4))


def test_explaining_traces_once_and_running_not_again() -> None:
    cell = LSTMCell(I, H)
    before = unpad.trace_count()
    explain(cell)
    explain(cell)
    assert unpad.trace_count() == before + 1
