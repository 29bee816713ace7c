"""The native softmax at sizes that reach each of its ways, on every tier, and what it promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unpad
from engine.every_cell import TIERS, use
from softmax import by_hand
from unpad.engine import native_engine
from unpad.nn import HierarchicalSoftmax, LinearCrossEntropy
from unpad.softmax import native

pytestmark = pytest.mark.skipif(not native_engine.available(), reason="no native engine")


def mixed(words: int) -> torch.Tensor:
    """Classes of a few and of very many words, which lie anywhere."""
    sizes = torch.tensor([1, 3, 200, 17, words - 221])
    return torch.repeat_interleave(torch.arange(5), sizes)[torch.randperm(words)]


# Softmax, tokens: a few tokens (half a panel), many (parts of a group), many words (shared by all
# threads; and more tokens than it takes at once), an odd width, blocks that are not full.
CASES: dict[str, tuple[Any, int]] = {
    "few": (lambda: HierarchicalSoftmax(33, 150), 40),
    "wide": (lambda: HierarchicalSoftmax(96, 1100), 1500),
    "many tokens": (lambda: HierarchicalSoftmax(16, 40), 1100),
    "parts and large classes": (lambda: HierarchicalSoftmax(20, 1600, mixed(1600)), 700),
    "many words": (lambda: LinearCrossEntropy(20, 4300, temperature=0.7), 150),
    "many words, smoothed": (lambda: LinearCrossEntropy(32, 2100, label_smoothing=0.1), 130),
    "many of both": (lambda: LinearCrossEntropy(20, 1300, label_smoothing=0.1), 1300),
    "one token": (lambda: LinearCrossEntropy(7, 1300, bias=False), 1),
}


def drawn(softmax: Any, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.randint(softmax.vocabulary, (tokens,))
    target[torch.rand(tokens) < 0.1] = softmax.ignore_index
    return torch.randn(tokens, softmax.hidden_size), target


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", CASES)
def test_every_tier_gives_the_references_numbers(name: str, tier: str) -> None:
    make, tokens = CASES[name]
    softmax = make().double()
    hidden, target = drawn(softmax, tokens)
    with unpad.engine("torch"):
        wanted = by_hand.taken(softmax, hidden.double(), target)
    with use(f"native {tier}"):
        found = by_hand.taken(softmax, hidden.double(), target)
        by_hand.assert_close(found, wanted, 1e-12)
        none = by_hand.taken(softmax, hidden.double(), target, "none")
        narrow = by_hand.taken(softmax.float(), hidden, target)
    by_hand.assert_close(narrow, wanted, 3e-6)
    with unpad.engine("torch"):
        right = by_hand.taken(softmax.double(), hidden.double(), target, "none")
    # The weights were rounded to float32 in between.
    by_hand.assert_close(none, right, 1e-4)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["wide", "many words"])
def test_bfloat16_products_are_the_references(name: str, tier: str) -> None:
    make, tokens = CASES[name]
    softmax = make()
    softmax.precision = "bfloat16"
    hidden, target = drawn(softmax, tokens)
    with unpad.engine("torch"):
        wanted = by_hand.taken(softmax, hidden, target, "sum")
    with use(f"native {tier}"):
        found = by_hand.taken(softmax, hidden, target, "sum")
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=0)
    for gradient, right in zip(found[1].values(), wanted[1].values(), strict=True):
        # A probability on the edge of two bfloat16 numbers falls to either side.
        error = (gradient - right).abs().max() / right.abs().max()
        assert error < 4e-3


@pytest.mark.parametrize("name", CASES)
def test_a_rows_bits_are_its_own_whatever_the_batch_and_the_threads(name: str) -> None:
    make, tokens = CASES[name]
    softmax = make()
    hidden, target = drawn(softmax, tokens)
    whole, gradients = by_hand.taken(softmax, hidden, target, "none")
    some = torch.randperm(tokens)[: max(1, tokens // 3)]
    alone = softmax(hidden[some].requires_grad_(), target[some], reduction="none")
    assert torch.equal(alone, whole[some])
    x = hidden[some].requires_grad_()
    pull = by_hand.pull(tokens)[some].float()
    (own,) = torch.autograd.grad(softmax(x, target[some], reduction="none"), x, pull)
    assert torch.equal(own, gradients["hidden"][some])


@pytest.mark.parametrize("name", CASES)
def test_all_bits_are_the_same_for_any_number_of_threads(name: str) -> None:
    make, tokens = CASES[name]
    softmax = make()
    hidden, target = drawn(softmax, tokens)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(by_hand.taken(softmax, hidden, target))
    for loss, gradients in found[1:]:
        assert torch.equal(loss, found[0][0])
        assert all(torch.equal(g, found[0][1][name]) for name, g in gradients.items())


@pytest.mark.parametrize("name", ["wide", "parts and large classes", "many words", "many of both"])
def test_only_the_gradients_that_are_wanted_are_made(name: str) -> None:
    make, tokens = CASES[name]
    softmax = make()
    hidden, target = drawn(softmax, tokens)
    _, wanted = by_hand.taken(softmax, hidden, target)
    for kept in wanted:
        named = {"hidden": hidden.clone().requires_grad_(), **dict(softmax.named_parameters())}
        for other, tensor in named.items():
            tensor.requires_grad_(other == kept)
        (found,) = torch.autograd.grad(softmax(named["hidden"], target), named[kept])
        assert torch.equal(found, wanted[kept])


def test_gradients_beyond_the_caches_are_those_within_them() -> None:
    """9 MB of weights: their gradient is written past the caches."""
    softmax = LinearCrossEntropy(256, 9000)
    hidden, target = torch.randn(200, 256), torch.randint(9000, (200,))
    whole = by_hand.taken(softmax, hidden, target)
    with unpad.engine("torch"):
        wanted = by_hand.taken(softmax.double(), hidden.double(), target)
    by_hand.assert_close(whole, wanted, 3e-6)


def test_memory_that_is_not_contiguous_is_read_where_it_lies() -> None:
    softmax = HierarchicalSoftmax(24, 90, torch.arange(90) % 7)
    hidden, target = drawn(softmax, 50)
    _, wanted = by_hand.taken(softmax, hidden, target)
    wide = torch.randn(50, 40)
    wide[:, 8:32] = hidden
    softmax.weight = torch.nn.Parameter(softmax.weight.detach().t().contiguous().t())
    for rows in (wide[:, 8:32], hidden.t().contiguous().t()):
        _, found = by_hand.taken(softmax, rows, target)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_words_that_are_masked_out_have_no_probability() -> None:
    softmax = LinearCrossEntropy(8, 1500)
    with torch.no_grad():
        softmax.bias[:1300] = -torch.inf  # whole blocks of words
    hidden, target = torch.randn(20, 8), torch.randint(1300, 1500, (20,))
    with unpad.engine("torch"):
        wanted = by_hand.taken(softmax, hidden, target)
    by_hand.assert_close(by_hand.taken(softmax, hidden, target), wanted, 3e-6)
    assert softmax(hidden, target - 1300).isinf()


@pytest.mark.parametrize("kind", [HierarchicalSoftmax, LinearCrossEntropy])
def test_nan_in_a_row_stays_in_that_row(kind: Any) -> None:
    softmax = kind(8, 1500)
    hidden, target = torch.randn(20, 8), torch.randint(1500, (20,))
    hidden[3, 2] = torch.nan
    losses = softmax(hidden, target, reduction="none")
    assert losses.isnan().nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize(
    ("width", "classes", "tokens", "pairs"),
    [
        (33, torch.arange(150) % 12, 300, 3600),
        (20, mixed(1600), 131, 90),
        (7, torch.arange(9000) // 2300, 1, 3),
    ],
)
def test_the_likeliest_words_of_classes(
    width: int,
    classes: torch.Tensor,
    tokens: int,
    pairs: int,
    k: int,
    threads: int,
    tier: str,
    request: pytest.FixtureRequest,
) -> None:
    softmax = HierarchicalSoftmax(width, len(classes), classes)
    softmax.double().temperature = 0.7
    hidden = torch.randn(tokens, width, dtype=torch.float64)
    member = torch.nn.functional.one_hot(softmax.classes).bool()
    which = torch.randperm(tokens * member.shape[1])[:pairs]
    of, rows = which // tokens, which % tokens
    powers = by_hand.probabilities(softmax, hidden)
    within = (powers / (powers @ member.double())[:, softmax.classes]).log()[rows]
    within[~member.t()[of]] = -torch.inf
    wanted = within.topk(min(k, len(classes)))
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(threads)
    with use(f"native {tier}"), torch.no_grad():
        head = softmax._head(temperature=0.7, rounds=False)
        found, words = native.best_of(head)(hidden, rows, of, k)
        narrow = softmax.float()._head(temperature=0.7, rounds=False)
        values = native.best_of(narrow)(hidden.float(), rows, of, k)[0]
    found, place = found.sort(1, descending=True)
    torch.testing.assert_close(found, wanted.values, rtol=0, atol=1e-12)
    there = found > -torch.inf
    assert torch.equal(words.gather(1, place)[there], wanted.indices[there])
    assert int(there.sum()) == int(member.sum(0).clamp(max=k)[of].sum())
    values = values.sort(1, descending=True).values
    torch.testing.assert_close(values, wanted.values.float(), rtol=0, atol=1e-5)


def test_the_engine_refuses_what_is_no_word_and_a_short_frame() -> None:
    hidden, losses, weight = torch.zeros(1, 2), torch.zeros(1), torch.zeros(3, 2)
    target = torch.tensor([7])
    frame = [1, 2, 3, 0, hidden.data_ptr(), 2, target.data_ptr(), 0, losses.data_ptr(), 0]
    frame += [weight.data_ptr(), 2, 0, 0, 0] + [0] * 9
    with pytest.raises(ValueError, match="a target is no word"):
        native_engine.softmax_loss(frame, [1.0, 1.0, 0.0], dtype=torch.float32, rounds=False)
    with pytest.raises(ValueError, match="too short"):
        native_engine.softmax_loss(frame[:9], [1.0, 1.0, 0.0], dtype=torch.float32, rounds=False)


@pytest.mark.parametrize(
    ("classes", "k", "row", "number", "message"),
    [
        (0, 1, 0, 0, "no classes"),
        (2, 0, 0, 0, "a size is negative"),
        (2, 1, 4, 0, "token is none"),
        (2, 1, 0, -1, "class is none"),
        (2, 1, 0, 2, "class is none"),
    ],
)
def test_the_engine_refuses_pairs_that_are_none(
    classes: int, k: int, row: int, number: int, message: str
) -> None:
    values, words = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    rows, numbers = torch.tensor([row]), torch.tensor([number])
    frame = [4, 2, 3, classes] + [0] * 4 + [values.data_ptr()] + [0] * 15
    frame += k, 1, rows.data_ptr(), numbers.data_ptr(), words.data_ptr()
    with pytest.raises(ValueError, match=message):
        native_engine.softmax_best(frame, [1.0, 1.0, 0.0], dtype=torch.float32, rounds=False)
