"""oracle = torch engine = native engine on every tier: results, states and every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import oracle
import unpad
from engine.every_cell import ENGINES, RANDOM, SHIPPED, TIERS, use
from random_cells import SEEDS, random_cell
from unpad.cells import regularize
from unpad.engine import choose, randomness
from unpad.nn import GRU, LSTM, RNN, GRUCell, LSTMCell, Recurrent, RNNCell

RAGGED = [2, 0, 5, 1, 3]
FLOAT64, FLOAT32 = (torch.float64, 1e-10), (torch.float32, 1e-5)


def assert_engines_agree(
    cell: nn.Module,
    lengths: list[int],
    seed: int,
    *,
    reverse: bool = False,
    kinds=(FLOAT64, FLOAT32),
) -> None:
    """Every engine against the float64 oracle, which is given the very numbers of each dtype."""
    for dtype, tolerance in kinds:
        for buffer in cell.buffers():
            buffer.requires_grad_(False)
        cell = cell.to(dtype)
        memories = [b.requires_grad_() for b in cell.buffers() if b.is_floating_point()]
        x, offsets, state = oracle.batch(cell, lengths, dtype=dtype, seed=seed)
        doubled = oracle.as_double(cell)
        copies = [b.requires_grad_() for b in doubled.buffers() if b.is_floating_point()]
        wanted = oracle.outcome(
            oracle.loop, doubled, x.double(), offsets, oracle.double(state),
            reverse=reverse, captured=copies,
        )  # fmt: skip
        if dtype is torch.float32:  # no worse than torch's own float32 by more than twice
            with unpad.engine("eager"):
                plain = oracle.outcome(
                    choose.run, cell, x, offsets, state, reverse=reverse, captured=memories
                )
            tolerance = max(tolerance, 2 * oracle.largest_error(plain, wanted))
        for name in ENGINES:
            with use(name):
                actual = oracle.outcome(
                    choose.run, cell, x, offsets, state, reverse=reverse, captured=memories
                )
            try:
                oracle.assert_same(actual, wanted, tolerance)
            except AssertionError as error:
                raise AssertionError(f"{name}, {dtype}: {error}") from error


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_cell(name: str, reverse: bool, seed: int) -> None:
    assert_engines_agree(SHIPPED[name](), RAGGED, seed, reverse=reverse)


@pytest.mark.parametrize("lengths", oracle.LENGTHS, ids=str)
@pytest.mark.parametrize("name", ["lstm", "layer norm lstm", "stack"])
def test_lengths_of_every_kind(name: str, lengths: list[int], seed: int) -> None:
    assert_engines_agree(SHIPPED[name](), lengths, seed)
    assert_engines_agree(SHIPPED[name](), lengths, seed, reverse=True)


@pytest.mark.parametrize("lengths", [[], [0, 0, 0], [0, 4, 1]], ids=str)
@pytest.mark.parametrize("name", SHIPPED)
def test_biases_of_one_where_there_is_little_to_add_them_to(
    name: str, lengths: list[int], seed: int
) -> None:
    cell = SHIPPED[name]()
    with torch.no_grad():
        for parameter in cell.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1)
    assert_engines_agree(cell, lengths, seed)


@pytest.mark.parametrize("number", SEEDS)
def test_a_random_cell(number: int, seed: int) -> None:
    assert_engines_agree(random_cell(number), [3, 1, 0, 4], seed, reverse=bool(number % 2))


@settings(max_examples=30)
@given(number=st.integers(40, 10_000), lengths=oracle.lengths(5, 5), reverse=st.booleans())
def test_random_cells_and_lengths(number: int, lengths: list[int], reverse: bool) -> None:
    assert_engines_agree(random_cell(number), lengths, number, reverse=reverse, kinds=[FLOAT64])


@pytest.mark.slow
@settings(max_examples=300)
@example(number=331, lengths=[0, 6], reverse=False)  # 1.8e-5 in torch's float32 as well
@given(number=st.integers(40, 100_000), lengths=oracle.lengths(6, 6), reverse=st.booleans())
def test_many_random_cells_and_lengths(number: int, lengths: list[int], reverse: bool) -> None:
    assert_engines_agree(random_cell(number), lengths, number, reverse=reverse)


@settings(max_examples=25)
@given(
    make=st.sampled_from([RNNCell, GRUCell, LSTMCell]),
    inputs=st.sampled_from([1, 3, 130]),
    hidden=st.sampled_from([1, 3, 130]),
    lengths=oracle.lengths(5, 4),
    reverse=st.booleans(),
)
def test_any_sizes(make, inputs: int, hidden: int, lengths: list[int], reverse: bool) -> None:
    torch.manual_seed(inputs * hidden)
    assert_engines_agree(make(inputs, hidden), lengths, inputs, reverse=reverse)


class Replayed:
    """The masks that a run drew, given to the oracle's calls of the same tokens one by one."""

    def __init__(self, drawn: list[torch.Tensor], offsets: torch.Tensor, reverse: bool) -> None:
        self.drawn, self.count = drawn, 0
        bounds = offsets.tolist()
        self.tokens = [
            t
            for start, end in itertools.pairwise(bounds)
            for t in (reversed(range(start, end)) if reverse else range(start, end))
        ]

    def __call__(self, x: torch.Tensor, drop: float, *, per_sequence: bool) -> torch.Tensor:
        step, which = divmod(self.count, len(self.drawn))
        self.count += 1
        return self.drawn[which][self.tokens[step]].reshape(x.shape).to(x.dtype)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", RANDOM)
def test_noise_with_the_masks_that_were_drawn(name: str, reverse: bool, monkeypatch) -> None:
    cell = RANDOM[name]().double()
    x, offsets, state = oracle.batch(cell, RAGGED)
    draw, drawn = randomness.drawn, []
    monkeypatch.setattr(randomness, "drawn", lambda *a: drawn.append(draw(*a)) or drawn[-1])
    actual = {}
    for engine in ENGINES:
        drawn.clear()
        torch.manual_seed(3)
        with use(engine):
            actual[engine] = oracle.outcome(choose.run, cell, x, offsets, state, reverse=reverse)
    assert drawn
    assert all(0 < float(mask.mean()) < 1 for mask in drawn)
    replayed = Replayed(list(drawn), offsets, reverse)
    monkeypatch.setattr(regularize, "keep_mask", replayed)
    wanted = oracle.outcome(oracle.loop, cell, x, offsets, state, reverse=reverse)
    assert replayed.count == len(drawn) * len(x)
    for outcome in actual.values():
        oracle.assert_same(outcome, wanted, 1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_over_time_are_one_a_sequence_and_differ_between_sequences(engine: str) -> None:
    class Mask(unpad.Cell):
        input_size = state_size = output_size = 40

        def forward(self, x, h):
            return unpad.noise.keep_mask(h, 0.5, per_sequence=True), h + x

    offsets = oracle.offsets_of([4, 0, 3])
    with use(engine):
        mask, _, _ = choose.run(Mask(), torch.ones(7, 40), offsets, torch.zeros(3, 40))
    assert torch.equal(mask[:4], mask[:1].expand(4, -1))
    assert torch.equal(mask[4:], mask[4:5].expand(3, -1))
    assert not torch.equal(mask[0], mask[4])


# -- through the layers: pads of NaN, both directions, several layers ------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [RNN, GRU, LSTM, "own"], ids=["RNN", "GRU", "LSTM", "own"])
def test_pads_of_nan_change_nothing(make, engine: str) -> None:
    lengths = [4, 0, 1, 6]
    if make == "own":
        layer = Recurrent([LSTMCell(3, 4), GRUCell(4, 5)], batch_first=True)
    else:
        layer = make(3, 5, num_layers=2, bidirectional=True, batch_first=True)
    layer = layer.double()
    clean = torch.randn(4, 6, 3, dtype=torch.float64)
    for row, length in enumerate(lengths):
        clean[row, length:] = float("nan")
    x = clean.requires_grad_()
    with use(engine):
        output, _ = layer(x, lengths=lengths)
        output.square().sum().backward()
    got = {"x": x.grad, **{n: p.grad for n, p in layer.named_parameters()}}
    layer.zero_grad()
    with unpad.engine("eager"):
        alone = [
            layer(clean.detach()[row : row + 1, :length], lengths=[length])[0]
            for row, length in enumerate(lengths)
        ]
        torch.cat(alone, 1).square().sum().backward()
    for row, length in enumerate(lengths):
        oracle.assert_close(output[row, :length], alone[row][0], 1e-10, f"row {row}")
        assert (got["x"][row, length:] == 0).all()
    for name, parameter in layer.named_parameters():
        assert got[name].isfinite().all(), name
        oracle.assert_close(got[name], parameter.grad, 1e-10, name)


def test_every_tier_of_this_machine_was_meant() -> None:
    """Neither an engine that is missing nor one tier alone makes these tests pass unseen."""
    assert "torch" in ENGINES
    assert not TIERS or "generic" in TIERS
