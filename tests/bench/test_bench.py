"""Measuring: rivals take turns and are believed or timed, and all three compute the same."""

from __future__ import annotations

import math
import time

import pytest
import torch

from unpad.bench import (
    DISTRIBUTIONS,
    Milliseconds,
    Rivals,
    Task,
    alternate,
    compare,
    draw,
    machine,
    operations,
    padding_gain,
    place,
    relative_error,
    typical_batch,
)

LENGTHS = [3, 1, 6]


def test_rivals_take_turns_after_two_calls_to_warm_up() -> None:
    calls: list[str] = []
    rivals = {name: lambda name=name: calls.append(name) for name in "ab"}
    times, foreign = alternate(rivals, seconds=0, least=3)
    assert calls[:4] == ["a", "a", "b", "b"]
    rounds = [calls[i : i + 2] for i in range(4, 10, 2)]
    assert [sorted(turn) for turn in rounds] == [["a", "b"]] * 3
    assert {timing.rounds for timing in times.values()} == {3}
    assert foreign >= 0


def test_a_rival_that_times_itself_is_believed_and_any_other_is_timed() -> None:
    times, _ = alternate(
        {"told": lambda: Milliseconds(7), "slept": lambda: time.sleep(0.01)}, seconds=0, least=2
    )
    assert times["told"].median == 7
    assert times["slept"].median >= 10


def test_progress_is_told_after_each_round_and_ends_at_one() -> None:
    shares: list[float] = []
    alternate({"a": int}, seconds=0, least=4, each_round=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_three_rivals_have_the_gradients_of_float64(cell: str, layers: int) -> None:
    rivals = Rivals(Task(cell, 4, layers, input_size=3), LENGTHS)
    exact = rivals.exact()
    for way in ("unpad", "padded", "packed"):
        assert relative_error(rivals.gradients(way), exact) < 1e-5
    assert exact[0].shape == (sum(LENGTHS), 3)
    assert rivals.torch.weight_hh_l0.dtype == torch.float32


def test_a_comparison_has_two_gains_that_make_the_ratio() -> None:
    row = compare(Task("GRU", 4), LENGTHS, threads=1, seconds=0, least=2)
    assert row["ratio"] == pytest.approx(row["padding gain"] * row["loop gain"])
    assert row["padding gain"] == 18 / 10
    assert row["ratio"] == row[row["peer"]].median / row["unpad"].median
    assert row[row["peer"]].median == min(row["padded"].median, row["packed"].median)
    assert max(row["error"], row["peer error"]) < 1e-5
    assert row["share of peak"] > 0 or math.isnan(row["share of peak"])


def test_the_operations_are_those_of_the_products_forward_and_for_both_gradients() -> None:
    # An LSTM's two products of a token: [1, 3] x [3, 16] and [1, 4] x [4, 16].
    assert Task("LSTM", 4, 1, 3).operations(tokens=10) == 10 * 3 * 2 * (3 * 16 + 4 * 16)
    assert operations(1, 3, 4, layers=2) == 3 * 2 * (3 * 4 + 4 * 4 + 2 * 4 * 4)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_gives_the_same_positive_lengths_for_a_seed(name: str) -> None:
    lengths = draw(name, 64, seed=3)
    assert lengths == draw(name, 64, seed=3)
    assert len(lengths) == 64
    assert 1 <= min(lengths) <= max(lengths) <= 1000


def test_a_typical_batch_has_the_median_padding_and_no_empty_sequence() -> None:
    lengths = [0, *range(1, 200)]
    batch = typical_batch(lengths, 8)
    gains = sorted(padding_gain(typical_batch(lengths, 8, seed=seed)) for seed in range(20))
    assert len(batch) == 8
    assert 0 not in batch
    assert gains[0] <= padding_gain(batch) <= gains[-1]


def test_a_batch_of_long_sequences_is_made_small_enough() -> None:
    assert sum(typical_batch([1000] * 8, 8, most=2500)) == 2000
    assert typical_batch([1000] * 8, 8, most=10) == [1000]


def test_the_line_of_the_machine_names_engine_peak_and_malloc() -> None:
    facts = {**machine(), "engine": "native, avx2", "peak GF/s a core": 98.3, "malloc": "tuned"}
    line = place(facts)
    for part in (f"{facts['cores']} cores of 98.3 GF/s", "native, avx2", "malloc tuned"):
        assert part in line
