"""Losses, gradients and probabilities of both softmaxes against the definition, on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import unpad
from softmax import by_hand
from unpad.nn import HierarchicalSoftmax, LinearCrossEntropy

V, H = 37, 12
SHUFFLED = torch.arange(V).mul(17).remainder(V).floor_divide(5)  # 8 classes, words anywhere
UNEVEN = [[3], list(range(10, V)), [0, 2, 1, 9, 8, 7], [4, 5, 6]]


def softmaxes() -> dict[str, Any]:
    """Every kind of module, by name; made by a call, in float64."""
    made = {"dtype": torch.float64}
    return {
        "in order": lambda: HierarchicalSoftmax(H, V, **made),
        "shuffled": lambda: HierarchicalSoftmax(H, V, SHUFFLED, **made),
        "uneven": lambda: HierarchicalSoftmax(H, V, UNEVEN, **made),
        "one class": lambda: HierarchicalSoftmax(H, V, [0] * V, **made),
        "a class a word": lambda: HierarchicalSoftmax(H, V, range(V), **made),
        "no bias": lambda: HierarchicalSoftmax(H, V, SHUFFLED, bias=False, **made),
        "cold": lambda: HierarchicalSoftmax(H, V, UNEVEN, temperature=0.4, **made),
        "weighed": lambda: HierarchicalSoftmax(H, V, importance=torch.rand(V).double(), **made),
        "one word": lambda: HierarchicalSoftmax(H, 1, **made),
        "full": lambda: LinearCrossEntropy(H, V, **made),
        "full, no bias": lambda: LinearCrossEntropy(H, V, bias=False, **made),
        "full, cold": lambda: LinearCrossEntropy(H, V, temperature=0.4, **made),
        "full, smoothed": lambda: LinearCrossEntropy(H, V, label_smoothing=0.2, **made),
        "full, weighed": lambda: LinearCrossEntropy(H, V, importance=torch.rand(V), **made),
    }


@pytest.fixture(params=["torch", "auto"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    with unpad.engine(request.param):
        yield request.param


def drawn(softmax: Any, tokens: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = softmax.weight.dtype
    hidden = torch.randn(tokens, softmax.hidden_size, dtype=dtype)
    target = torch.randint(softmax.vocabulary, (tokens,))
    return hidden, torch.where(torch.rand(tokens) < 0.2, softmax.ignore_index, target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", softmaxes())
def test_the_loss_and_every_gradient_are_those_of_the_definition(
    name: str, reduction: str, engine: str
) -> None:
    softmax = softmaxes()[name]()
    hidden, target = drawn(softmax)
    wanted = by_hand.loss(softmax, hidden, target, reduction)
    by_hand.assert_close(by_hand.taken(softmax, hidden, target, reduction), wanted, 1e-10)


@pytest.mark.parametrize("name", softmaxes())
def test_in_float32_they_are_right_to_a_few_roundings(name: str, engine: str) -> None:
    softmax = softmaxes()[name]().float()
    hidden, target = drawn(softmax)
    wanted = by_hand.loss(softmax, hidden, target)
    by_hand.assert_close(by_hand.taken(softmax, hidden, target), wanted, 2e-6)


@pytest.mark.parametrize("name", softmaxes())
def test_probabilities_are_those_of_the_definition_and_sum_to_1(name: str, engine: str) -> None:
    softmax = softmaxes()[name]()
    hidden, _ = drawn(softmax)
    found = softmax.log_prob(hidden).exp()
    torch.testing.assert_close(found, by_hand.probabilities(softmax, hidden), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.sum(1), found.new_ones(len(hidden)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", softmaxes())
def test_the_loss_of_a_word_is_minus_its_log_probability(name: str, engine: str) -> None:
    softmax = softmaxes()[name]()
    if getattr(softmax, "label_smoothing", 0) or softmax.importance is not None:
        pytest.skip("the loss is more than a log probability")
    hidden = torch.randn(softmax.vocabulary, H, dtype=torch.float64)
    words = torch.arange(softmax.vocabulary)
    losses = softmax(hidden, words, reduction="none")
    torch.testing.assert_close(-losses, softmax.log_prob(hidden)[words, words])


def test_a_full_softmax_is_torchs_linear_and_cross_entropy(engine: str) -> None:
    softmax = LinearCrossEntropy(H, V, label_smoothing=0.1, dtype=torch.float64)
    linear = torch.nn.Linear(H, V, dtype=torch.float64)
    softmax.load_state_dict(linear.state_dict())
    hidden, target = drawn(softmax)
    wanted = torch.nn.functional.cross_entropy(linear(hidden), target, label_smoothing=0.1)
    torch.testing.assert_close(softmax(hidden, target), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [HierarchicalSoftmax, LinearCrossEntropy])
def test_second_derivatives_are_those_of_the_definition(kind: Any, engine: str) -> None:
    softmax = kind(3, 5, dtype=torch.float64)
    hidden, target = drawn(softmax, 4)
    weights = [hidden.requires_grad_(), *softmax.parameters()]

    def loss(*_: torch.Tensor) -> torch.Tensor:
        return softmax(hidden, target)

    assert torch.autograd.gradgradcheck(loss, weights)


def test_a_tied_weight_gets_both_gradients_and_is_never_copied(engine: str) -> None:
    embedding = torch.nn.Embedding(V, H, dtype=torch.float64)
    softmax = HierarchicalSoftmax(H, V, SHUFFLED, weight=embedding.weight)
    assert softmax.weight is embedding.weight
    assert softmax.bias is not None
    assert softmax.bias.dtype is torch.float64
    words, target = torch.randint(V, (9,)), torch.randint(V, (9,))
    softmax(embedding(words), target).backward()
    free = HierarchicalSoftmax(H, V, SHUFFLED, dtype=torch.float64)
    free.load_state_dict(softmax.state_dict())
    hidden = embedding(words).detach().requires_grad_()
    free(hidden, target).backward()
    assert free.weight.grad is not None
    assert hidden.grad is not None
    wanted = free.weight.grad.index_add(0, words, hidden.grad)
    torch.testing.assert_close(embedding.weight.grad, wanted)


@pytest.mark.parametrize("softmax", [HierarchicalSoftmax(H, V), LinearCrossEntropy(H, V)])
def test_a_ragged_batch_has_the_loss_of_its_tokens(softmax: Any, engine: str) -> None:
    hidden = unpad.Ragged.from_list([torch.randn(n, H) for n in (3, 0, 5)])
    target = hidden.with_values(torch.randint(V, (8,)))
    wanted = softmax(hidden.values, target.values)
    assert torch.equal(softmax(hidden, target), wanted)
    losses = softmax(hidden, target, reduction="none")
    assert losses.lengths.tolist() == [3, 0, 5]
    torch.testing.assert_close(losses.values.mean(), wanted)
    assert softmax.log_prob(hidden).feature_shape == (V,)
    assert softmax.predict(hidden).values.shape == (8,)
    padded = softmax(hidden.values.reshape(2, 4, H), target.values.reshape(2, 4), reduction="none")
    torch.testing.assert_close(padded, losses.values.reshape(2, 4))


@pytest.mark.parametrize("softmax", [HierarchicalSoftmax(H, V), LinearCrossEntropy(H, V)])
def test_no_token_has_a_loss_of_0_and_gradients_of_0(softmax: Any, engine: str) -> None:
    for tokens in (0, 4):  # none at all, or all ignored: even NaN is not read then
        hidden = torch.full((tokens, H), torch.nan, requires_grad=True)
        softmax.zero_grad()
        loss = softmax(hidden, torch.full((tokens,), -100))
        loss.backward()
        assert loss.item() == 0
        assert torch.equal(hidden.grad, torch.zeros(tokens, H))
        assert all(not p.grad.any() for p in softmax.parameters())


def test_a_loss_goes_through_backward_as_often_as_it_is_asked(engine: str) -> None:
    softmax = HierarchicalSoftmax(H, V)
    hidden, target = drawn(softmax)
    hidden.requires_grad_()
    loss = softmax(hidden, target)
    inputs = [hidden, *softmax.parameters()]
    first = [g.clone() for g in torch.autograd.grad(loss, inputs, retain_graph=True)]
    second = torch.autograd.grad(3 * loss, inputs)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(3 * a, b)
