"""What is asked of a distribution over words: the best, the k best, a draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import unpad
from unpad.nn import HierarchicalSoftmax, LinearCrossEntropy

H = 16


@pytest.fixture(params=["torch", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with unpad.engine(request.param):
        yield request.param


def peaked(softmax: Any, scale: float) -> Any:
    """Larger weights: distributions from flat to sure, as in training."""
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.mul_(scale)
    return softmax


@pytest.mark.parametrize("scale", [0.3, 3.0, 20.0])
def test_predict_is_the_arg_max_over_all_words_in_10_000_cases(scale: float, engine: str) -> None:
    words = 400
    classes = torch.randperm(words) % 23
    softmax = peaked(HierarchicalSoftmax(H, words, classes, dtype=torch.float64), scale)
    hidden = torch.randn(3400, H, dtype=torch.float64)
    assert torch.equal(softmax.predict(hidden), softmax.log_prob(hidden).argmax(1))


@pytest.mark.parametrize("k", [1, 2, 7, 60])
@pytest.mark.parametrize("scale", [0.3, 6.0])
@pytest.mark.parametrize("kind", [HierarchicalSoftmax, LinearCrossEntropy])
def test_topk_is_torchs_topk_of_all_log_probabilities(
    kind: Any, scale: float, k: int, engine: str
) -> None:
    softmax = peaked(kind(H, 60, dtype=torch.float64), scale)
    hidden = torch.randn(5, 40, H, dtype=torch.float64)
    wanted = softmax.log_prob(hidden).topk(k)
    values, words = softmax.topk(hidden, k)
    torch.testing.assert_close(values, wanted.values)
    assert torch.equal(words, wanted.indices)


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flat_distributions_are_searched_exactly_too(
    k: int, dtype: torch.dtype, engine: str
) -> None:
    """Where many classes are about as likely, none can be left out by its own probability."""
    softmax = peaked(HierarchicalSoftmax(H, 900, torch.randperm(900) % 31, dtype=dtype), 0.5)
    hidden = torch.randn(700, H, dtype=dtype)
    hidden[5] = torch.nan
    with torch.no_grad():
        softmax.bias[(softmax.classes == 4).nonzero()[1:]] = -torch.inf  # a class of one word
        every = softmax.log_prob(hidden)
    values, words = softmax.topk(hidden, k)
    rows = torch.arange(700) != 5
    wanted = every[rows].topk(k).values
    torch.testing.assert_close(values[rows], wanted)
    torch.testing.assert_close(every.gather(1, words)[rows], wanted)
    assert values[5].isnan().all()


def test_nan_rows_end_and_leave_the_others_alone(engine: str) -> None:
    softmax = HierarchicalSoftmax(H, 60)
    hidden = torch.randn(4, H)
    hidden[1] = torch.nan
    values, words = softmax.topk(hidden, 3)
    assert values[1].isnan().all()
    assert not values[[0, 2, 3]].isnan().any()
    assert bool((words >= 0).all() and (words < 60).all())


@pytest.mark.parametrize("kind", [HierarchicalSoftmax, LinearCrossEntropy])
@pytest.mark.parametrize("temperature", [None, 0.3])
def test_draws_are_as_frequent_as_they_are_probable(
    kind: Any, temperature: float | None, engine: str
) -> None:
    softmax = peaked(kind(H, 12), 3.0)
    hidden = torch.randn(H)
    generator = torch.Generator().manual_seed(5)
    draws = softmax.sample(
        hidden.expand(20_000, H), temperature=temperature, generator=generator
    ).bincount(minlength=12)
    wanted = softmax.log_prob(hidden, temperature=temperature).exp()
    torch.testing.assert_close(draws / 20_000, wanted, rtol=0, atol=0.015)


@pytest.mark.parametrize("kind", [HierarchicalSoftmax, LinearCrossEntropy])
def test_a_draw_from_the_k_best_is_one_of_them(kind: Any, engine: str) -> None:
    softmax = kind(H, 30)
    hidden = torch.randn(6, 9, H)
    drawn = softmax.sample(hidden, k=4, generator=torch.Generator().manual_seed(1))
    again = softmax.sample(hidden, k=4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, again)
    assert drawn.shape == (6, 9)
    assert bool((softmax.topk(hidden, 4)[1] == drawn[..., None]).any(-1).all())
    assert torch.equal(softmax.sample(hidden, k=1), softmax.predict(hidden))


def test_ragged_rows_come_back_ragged(engine: str) -> None:
    softmax = HierarchicalSoftmax(H, 30)
    hidden = unpad.Ragged.from_list([torch.randn(n, H) for n in (2, 0, 3)])
    values, words = softmax.topk(hidden, 2)
    assert torch.equal(words.values, softmax.topk(hidden.values, 2)[1])
    assert values.lengths.tolist() == [2, 0, 3]
    assert softmax.sample(hidden, k=2).lengths.tolist() == [2, 0, 3]
    assert softmax.sample(hidden).lengths.tolist() == [2, 0, 3]


def test_the_likeliest_words_are_different_ones_where_words_cannot_be() -> None:
    softmax = HierarchicalSoftmax(8, 50)
    hidden = torch.randn(3, 8)
    with torch.no_grad():
        assert softmax.bias is not None
        softmax.class_bias[2] = -torch.inf
        softmax.bias[0:3] = -torch.inf
    values, words = softmax.topk(hidden, 50)
    assert all(len(row.unique()) == 50 for row in words)
    torch.testing.assert_close(values, softmax.log_prob(hidden).gather(1, words))
