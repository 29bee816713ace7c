"""Batches by token budget: nothing lost, nothing over budget, mixed anew, even among ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from unpad.data import RaggedDataset, TokenBudgetBatchSampler, collate_ragged, padding_share
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def rows_of(batches: Any) -> list[int]:
    return sorted(row for batch in batches for row in batch)


@given(LENGTHS, st.integers(1, 60), st.booleans(), st.booleans(), st.integers(0, 3))
def test_every_row_comes_once_and_no_batch_is_over_budget(
    lengths: list[int], budget: int, shuffle: bool, bucketed: bool, epoch: int
) -> None:
    sampler = TokenBudgetBatchSampler(lengths, budget, 8, shuffle=shuffle, bucketed=bucketed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert rows_of(batches) == list(range(len(lengths)))
    assert len(batches) == len(sampler)
    for batch in batches:
        assert sum(lengths[i] for i in batch) <= budget or len(batch) == 1
        assert 1 <= len(batch) <= 8


@given(LENGTHS.filter(bool), st.integers(1, 60), st.integers(1, 5), st.booleans())
def test_ranks_share_the_rows_and_have_equally_many_batches(
    lengths: list[int], budget: int, world: int, bucketed: bool
) -> None:
    ranks = [
        TokenBudgetBatchSampler(lengths, budget, bucketed=bucketed, rank=r, world_size=world)
        for r in range(world)
    ]
    parts = [list(rank) for rank in ranks]
    assert len({len(part) for part in parts}) == 1
    counts = Counter(row for part in parts for batch in part for row in batch)
    assert set(counts) == set(range(len(lengths)))
    if world * len(parts[0]) <= len(lengths):
        assert set(counts.values()) == {1}


def uniform(seed: int, count: int = 4000) -> Any:
    return np.random.default_rng(seed).integers(1, 201, count)


@pytest.mark.parametrize("bucketed", [False, True])
def test_twice_the_budget_gives_half_the_batches(bucketed: bool, seed: int) -> None:
    lengths = uniform(seed)
    counts = [
        len(TokenBudgetBatchSampler(lengths, budget, bucketed=bucketed, seed=seed))
        for budget in (2000, 4000)
    ]
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.05)
    assert counts[1] == pytest.approx(lengths.sum() / 4000, rel=0.05)


@pytest.mark.parametrize("bucketed", [False, True])
def test_membership_changes_with_the_epoch_and_repeats_with_the_seed(
    bucketed: bool, seed: int
) -> None:
    sampler = TokenBudgetBatchSampler(uniform(seed), 2000, bucketed=bucketed, seed=3)
    first = {frozenset(batch) for batch in sampler}
    sampler.set_epoch(1)
    second = {frozenset(batch) for batch in sampler}
    assert len(first & second) < 0.05 * len(first)
    sampler.set_epoch(0)
    assert {frozenset(batch) for batch in sampler} == first
    other = TokenBudgetBatchSampler(uniform(seed), 2000, bucketed=bucketed, seed=4)
    assert {frozenset(batch) for batch in other} != first


def test_buckets_cut_padding_more_than_fivefold(seed: int) -> None:
    lengths = uniform(seed)
    shares = [
        padding_share(
            [lengths[b] for b in TokenBudgetBatchSampler(lengths, 3200, bucketed=bucketed)]
        )
        for bucketed in (False, True)
    ]
    assert shares[0] > 5 * shares[1]


def test_batches_in_buckets_come_in_no_order_of_length(seed: int) -> None:
    lengths = uniform(seed)
    batches = list(TokenBudgetBatchSampler(lengths, 2000, bucketed=True, seed=seed))
    means = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.2


def test_both_sides_of_a_pair_count() -> None:
    pairs = [(3, 4), (1, 1), (5, 5)]
    sampler = TokenBudgetBatchSampler(pairs, 10, shuffle=False)
    assert list(sampler) == [[0, 1], [2]]
    sides = TokenBudgetBatchSampler(
        [(2, 9), (1, 5), (2, 1), (1, 4)], 99, shuffle=False, bucketed=True
    )
    assert list(sides) == [[3, 1, 2, 0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_gives_the_same_ragged_batches_with_workers(workers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = torch.tensor(random.integers(0, 9, 40))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    data = RaggedDataset(torch.randn(int(offsets[-1]), 3), offsets, torch.arange(40))
    sampler = TokenBudgetBatchSampler(lengths.numpy(), 20, seed=seed)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate_ragged, num_workers=workers)
    seen = []
    for x, labels in loader:
        assert isinstance(x, Ragged)
        for row, label in zip(x.to_list(), labels.tolist(), strict=True):
            assert torch.equal(row, data.sequence(label))
            seen.append(label)
    assert sorted(seen) == list(range(40))
    assert seen == [row for batch in sampler for row in batch]


def test_collate_takes_dicts_arrays_and_texts() -> None:
    items = [
        {"x": np.ones((2, 3), np.float32), "y": torch.tensor([1, 2]), "n": 1.5, "id": "a"},
        {"x": np.zeros((0, 3), np.float32), "y": torch.tensor([3]), "n": 2.5, "id": "b"},
    ]
    batch = collate_ragged(items)
    assert batch["x"].lengths.tolist() == [2, 0]
    assert batch["y"].values.tolist() == [1, 2, 3]
    assert batch["n"].tolist() == [1.5, 2.5]
    assert batch["id"] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"lengths": [1, -1], "max_tokens": 4}, ArgumentError, "lengths"),
        ({"lengths": [1.5], "max_tokens": 4}, ArgumentTypeError, "lengths"),
        ({"lengths": [1], "max_tokens": 0}, ArgumentError, "max_tokens"),
        ({"lengths": [1], "max_tokens": 2.5}, ArgumentTypeError, "max_tokens"),
        ({"lengths": [1], "max_tokens": 4, "max_sequences": 0}, ArgumentError, "max_sequences"),
        ({"lengths": [1], "max_tokens": 4, "rank": 2, "world_size": 2}, ArgumentError, "rank"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=f"argument `{name}`"):
        TokenBudgetBatchSampler(**arguments)
