"""The length profile against padding done for real."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from unpad.data import profile_lengths
from unpad.errors import ArgumentError


def padded_share(batches: list[np.ndarray]) -> float:
    blocks = [pad_sequence([torch.ones(n) for n in batch]) for batch in batches]
    total = sum(block.numel() for block in blocks)
    return 1 - float(sum(block.sum() for block in blocks)) / total


def test_the_sorted_share_is_that_of_real_padded_blocks(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 50, 100)
    ordered = np.sort(lengths)
    for share in profile_lengths(lengths).padding:
        batches = [ordered[i : i + share.batch_size] for i in range(0, 100, share.batch_size)]
        assert share.sorted == pytest.approx(padded_share(batches), abs=1e-6)
        assert share.token_budget < share.shuffled


def test_counts_quantiles_and_histogram_add_up(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 300, 777)
    profile = profile_lengths(lengths)
    assert (profile.sequences, profile.tokens) == (777, lengths.sum())
    assert profile.empty == np.count_nonzero(lengths == 0)
    assert profile.quantiles[0.0] == lengths.min()
    assert profile.quantiles[1.0] == lengths.max()
    for low, high, count in profile.histogram:
        assert count == np.count_nonzero((lengths >= low) & (lengths <= high))
    assert sum(count for _, _, count in profile.histogram) == 777


def test_equal_and_empty_lengths_waste_nothing() -> None:
    for lengths in ([7] * 40, [0, 0]):
        profile = profile_lengths(lengths)
        assert profile.waste == 1
        assert {s.shuffled for s in profile.padding} == {0.0}


def test_no_lengths_at_all_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one length"):
        profile_lengths([])
