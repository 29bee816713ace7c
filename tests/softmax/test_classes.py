"""Class makers, and what is said of bad classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unpad
from unpad.functional import (
    classes_by_bigrams,
    classes_by_embedding,
    classes_by_frequency,
    classes_in_order,
)
from unpad.nn import HierarchicalSoftmax


def test_without_classes_groups_are_balanced_and_in_order() -> None:
    softmax = HierarchicalSoftmax(4, 10_000)
    assert torch.equal(softmax.classes, torch.arange(10_000) // 100)
    sizes = HierarchicalSoftmax(4, 10_123).classes.bincount()
    assert len(sizes) == 101
    assert int(sizes.max() - sizes.min()) <= 1


def test_lists_of_words_ragged_lists_and_numbers_mean_the_same() -> None:
    lists = [[4, 0], [1, 2, 3]]
    wanted = torch.tensor([0, 1, 1, 1, 0])
    ragged = unpad.Ragged.from_list([torch.tensor(row) for row in lists])
    for classes in (lists, ragged, wanted, wanted.numpy(), wanted.tolist(), [{0, 4}, {1, 2, 3}]):
        assert torch.equal(HierarchicalSoftmax(4, 5, classes).classes, wanted)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([[0, 1], [], [2, 3]], "class 1 without a word"),
        ([0, 2, 2, 4], "class 4 of word 3"),
        ([0, 2, 2, 3], "class 1 without a word"),
        ([[0, 1], [2, 1, 3]], "word 1 in the classes 0 and 1"),
        ([[0, 1, 1], [2, 3]], "word 1 twice in class 0"),
        ([[0], [2]], "no class for words 1, 3"),
        ([[0, 1, 2]], "no class for word 3"),
        ([[0, 1, 2, 3, 4]], "word 4 in class 0"),
        ([0, -1, 0, 0], "class -1 of word 1"),
        ([0, 0, 0], "3 numbers"),
        ([0.5, 0, 0, 0], "integers"),
        ("abcd", "a list, tuple, NumPy array or tensor of integers"),
        ([[0, 1], 2, 3], "classes[1]"),
    ],
)
def test_bad_classes_are_named(classes: Any, said: str) -> None:
    with pytest.raises(unpad.UnpadError) as caught:
        HierarchicalSoftmax(4, 4, classes)
    assert said in str(caught.value)


def test_by_frequency_keeps_the_frequent_together() -> None:
    counts = torch.randint(1, 1000, (50,))
    classes = classes_by_frequency(counts, 6)
    for number in range(5):
        assert counts[classes == number].min() >= counts[classes == number + 1].max()
    assert classes.bincount().tolist() == classes_in_order(50, 6).bincount().tolist()


def test_by_frequency_in_tokens_gives_classes_that_occur_equally_often() -> None:
    counts = 1e6 / torch.arange(1, 2001)  # Zipf
    classes = classes_by_frequency(counts, 20, balance="tokens")
    mass = torch.zeros(20).index_add(0, classes, counts) / counts.sum()
    assert len(mass) == 20
    assert float(mass.sort().values[2:-2].max()) < 0.07
    some = classes_by_frequency([0, 0, 0, 7], 4, balance="tokens")
    assert sorted(some.tolist()) == [0, 1, 2, 3]


def test_by_embedding_finds_clouds_and_is_balanced() -> None:
    centres = torch.randn(5, 8) * 20
    cloud = torch.arange(100) % 5
    classes = classes_by_embedding(centres[cloud] + torch.randn(100, 8), 5, seed=3)
    pairs = {(int(c), int(k)) for c, k in zip(classes, cloud, strict=True)}
    sizes = classes_by_embedding(torch.randn(103, 8), 10).bincount()
    assert len(pairs) <= 7  # a start with two centres in one cloud may split it
    assert sorted(sizes.tolist()) == [10] * 7 + [11] * 3


def test_by_bigrams_finds_the_words_that_follow_the_same_words() -> None:
    kinds = torch.arange(60) % 3  # a cycle of kinds: 0 -> 1 -> 2 -> 0
    steps = torch.arange(6000) % 3
    text = steps + 3 * torch.randint(20, (6000,))
    classes = classes_by_bigrams(text, 60, 3)
    assert len({(int(c), int(k)) for c, k in zip(classes, kinds, strict=True)}) == 3


def test_by_bigrams_does_not_look_across_rows() -> None:
    text = [[0, 2], [1, 2], [0, 3], [1, 3]] * 5
    rows = unpad.Ragged.from_list([torch.tensor(row) for row in text])
    assert classes_by_bigrams(rows, 4, 2).shape == (4,)
    joined = [word for row in text for word in row]
    across = classes_by_bigrams(joined, 4, 2)
    assert across[0] == across[1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: classes_in_order(3, 4), "at most 3"),
        (lambda: classes_by_frequency([1, -2]), "-2.0 of word 1"),
        (lambda: classes_by_frequency([[1, 2]]), "[V]"),
        (lambda: classes_by_frequency(["a"]), "numbers"),
        (lambda: classes_by_frequency([1.0, float("inf")]), "inf of word 1"),
        (lambda: classes_by_embedding([[0.0], [float("nan")]]), "word 1's vector"),
        (lambda: classes_by_bigrams([0, 5], 3), "5 at 1"),
        (lambda: classes_by_bigrams([0, 1], 3, 9), "at most 3"),
    ],
)
def test_what_cannot_be_grouped_is_named(call: Any, said: str) -> None:
    with pytest.raises(unpad.UnpadError) as caught:
        call()
    assert said in str(caught.value)
