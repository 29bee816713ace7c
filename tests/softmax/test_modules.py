"""The modules as modules: what they load and refuse, where they run."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
import torch

import unpad
import unpad.functional
from unpad import ArgumentError
from unpad.nn import HierarchicalSoftmax, LinearCrossEntropy

KINDS = [HierarchicalSoftmax, LinearCrossEntropy]


@pytest.mark.parametrize("bias", [True, False])
def test_an_adaptive_softmax_is_loaded_with_its_probabilities(bias: bool) -> None:
    adaptive = torch.nn.AdaptiveLogSoftmaxWithLoss(
        32, 90, [20, 45], div_value=2.0, head_bias=bias, dtype=torch.float64
    )
    softmax = HierarchicalSoftmax.from_adaptive(adaptive)
    hidden, target = torch.randn(50, 32).double(), torch.randint(90, (50,))
    torch.testing.assert_close(softmax.log_prob(hidden), adaptive.log_prob(hidden))
    torch.testing.assert_close(softmax(hidden, target), adaptive(hidden, target).loss)
    assert torch.equal(softmax.predict(hidden), adaptive.predict(hidden))
    plain = HierarchicalSoftmax.from_adaptive(adaptive, reduction="sum")
    torch.testing.assert_close(plain(hidden, target), softmax(hidden, target) * 50)


def test_a_state_dict_brings_its_classes() -> None:
    source = HierarchicalSoftmax(4, 9, [0, 1, 2] * 3)
    target = HierarchicalSoftmax(4, 9)
    hidden = torch.randn(3, 4)
    assert not torch.equal(source.log_prob(hidden), target.log_prob(hidden))
    saved = io.BytesIO()
    torch.save(source.state_dict(), saved)
    saved.seek(0)
    target.load_state_dict(torch.load(saved, weights_only=True))
    assert torch.equal(source.log_prob(hidden), target.log_prob(hidden))
    assert torch.equal(copy.deepcopy(source).log_prob(hidden), source.log_prob(hidden))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_modules_round_operands_and_keep_float32_sums(kind: Any) -> None:
    softmax = kind(24, 50).bfloat16()
    hidden = torch.randn(30, 24).bfloat16().requires_grad_()
    target = torch.randint(50, (30,))
    loss = softmax(hidden, target)
    assert loss.dtype is torch.float32
    loss.backward()
    wide = copy.deepcopy(softmax).double()
    x = hidden.detach().double().requires_grad_()
    wanted = wide(x, target)
    wide.zero_grad()
    wanted.backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=0)
    assert hidden.grad is not None
    assert hidden.grad.dtype is torch.bfloat16
    assert x.grad is not None
    torch.testing.assert_close(hidden.grad.double(), x.grad, rtol=0.02, atol=2e-4)
    for ours, right in zip(softmax.parameters(), wide.parameters(), strict=True):
        assert ours.grad.dtype is torch.bfloat16
        torch.testing.assert_close(ours.grad.double(), right.grad, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_and_precision_round_alike(kind: Any) -> None:
    softmax = kind(24, 50)
    hidden, target = torch.randn(30, 24), torch.randint(50, (30,))
    plain = softmax(hidden, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = softmax(hidden.bfloat16(), target)
        whole, inside = softmax(hidden, target), softmax.log_prob(hidden)
    softmax.precision = "bfloat16"
    assert torch.equal(softmax(hidden, target), whole)  # rows that are still float32
    assert torch.equal(softmax.log_prob(hidden), inside)
    assert torch.equal(softmax(hidden.bfloat16().float(), target), rounded)
    assert rounded != plain
    torch.testing.assert_close(rounded, plain, rtol=0.01, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_compile_calls_it_as_it_is(kind: Any) -> None:
    softmax = kind(4, 9)
    hidden, target = torch.randn(3, 4), torch.randint(9, (3,))
    compiled = torch.compile(lambda x: softmax(2 * x, target), backend="eager")
    assert torch.equal(compiled(hidden), softmax(2 * hidden, target))


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_meta_device_there_are_shapes(kind: Any) -> None:
    softmax = kind(4, 9, device="meta")
    hidden = torch.randn(3, 4, device="meta")
    target = torch.zeros(3, dtype=torch.long, device="meta")
    assert softmax(hidden, target).shape == ()
    assert softmax(hidden, target, reduction="none").shape == (3,)


def arguments(**changed: Any) -> dict[str, Any]:
    return {"hidden": torch.randn(3, 4), "target": torch.zeros(3, dtype=torch.long), **changed}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"target": torch.tensor([0, 9, 1])}, "9 at token 1"),
        ({"target": torch.tensor([0, 1, -7])}, "-7 at token 2"),
        ({"target": torch.tensor([0, 1])}, "shape [2]"),
        ({"target": torch.zeros(3)}, "torch.float32"),
        ({"target": [0, 1, 2]}, "list"),
        ({"hidden": torch.randn(3, 5)}, "[..., 4]"),
        ({"hidden": torch.randn(3, 4).double()}, "torch.float64"),
        ({"hidden": [1.0]}, "list"),
        ({"reduction": "avg"}, "'avg'"),
        ({"target": unpad.Ragged(torch.zeros(3, dtype=torch.long), [0, 3])}, "a Ragged"),
        ({"hidden": unpad.Ragged(torch.randn(3, 4), [0, 3]), "target": torch.zeros(2).long()}, "2"),
        (
            {
                "hidden": unpad.Ragged(torch.randn(3, 4), [0, 3]),
                "target": unpad.Ragged(torch.zeros(3).long(), [0, 1, 3]),
            },
            "lengths [1, 2]",
        ),
    ],
)
def test_bad_calls_are_named(kind: Any, changed: dict[str, Any], said: str) -> None:
    softmax = kind(4, 9)
    with pytest.raises(unpad.UnpadError) as caught:
        softmax(**arguments(**changed))
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocabulary": 2.5}, "vocabulary"),
        ({"bias": 1}, "bias"),
        ({"weight": torch.zeros(9, 4)}, "Parameter"),
        ({"weight": torch.nn.Parameter(torch.zeros(8, 4))}, "[8, 4]"),
        ({"reduction": "all"}, "'all'"),
        ({"temperature": 0}, "temperature"),
        ({"importance": torch.ones(4)}, "[9]"),
        ({"importance": [1.0] * 9}, "importance"),
        ({"ignore_index": 0.5}, "ignore_index"),
        ({"precision": "half"}, "precision"),
    ],
)
def test_bad_options_are_named(kind: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(unpad.UnpadError) as caught:
        kind(**{"hidden_size": 4, "vocabulary": 9, **options})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.topk(torch.randn(4), 0), "k"),
        (lambda s: s.topk(torch.randn(4), 10), "1 to 9"),
        (lambda s: s.sample(torch.randn(4), temperature=-1.0), "temperature"),
        (lambda s: LinearCrossEntropy(4, 9, label_smoothing=1.0), "label_smoothing"),
        (HierarchicalSoftmax.from_adaptive, "AdaptiveLogSoftmaxWithLoss"),
    ],
)
def test_other_mistakes_are_named(call: Any, said: str) -> None:
    with pytest.raises(unpad.UnpadError) as caught:
        call(HierarchicalSoftmax(4, 9))
    assert said in str(caught.value)


def test_the_function_has_the_modules_numbers() -> None:
    softmax = LinearCrossEntropy(4, 9, label_smoothing=0.1, temperature=0.5, ignore_index=3)
    hidden, target = torch.randn(20, 4), torch.randint(9, (20,))
    options: dict[str, Any] = {"label_smoothing": 0.1, "temperature": 0.5, "ignore_index": 3}
    for reduction in ("mean", "sum", "none"):
        wanted = softmax(hidden, target, reduction=reduction)
        found = unpad.functional.linear_cross_entropy(
            hidden, target, softmax.weight, softmax.bias, reduction=reduction, **options
        )
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("weight", "bias", "said"),
    [
        (torch.randn(4), None, "weight"),
        (torch.randn(9, 4), torch.randn(8), "[9]"),
        (torch.randn(9, 4), [0.0] * 9, "bias"),
        (torch.randn(9, 5), None, "[..., 5]"),
    ],
)
def test_weights_that_do_not_fit_the_function_are_named(weight: Any, bias: Any, said: str) -> None:
    with pytest.raises(unpad.UnpadError) as caught:
        unpad.functional.linear_cross_entropy(**arguments(weight=weight, bias=bias))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ([0, 0, 1, 1, 2, 2], "3 classes; allowed: 2"),
        ([0, 0, 0, 2, 2, 2], "class 1"),
        ([0, 0, 0, -1, 1, 1], "class -1 of word 3"),
        ([0, 0, 1], "3 numbers"),
        ([0, 0, 0, 9, 1, 1], "class 9 of word 3"),
    ],
)
def test_classes_that_do_not_fit_are_told_when_they_are_loaded(classes: Any, says: str) -> None:
    softmax = HierarchicalSoftmax(4, 6, [0, 0, 0, 1, 1, 1])
    hidden, before = torch.randn(5, 4), copy.deepcopy(softmax.state_dict())
    state = {k: torch.randn_like(v) if v.is_floating_point() else v for k, v in before.items()}
    with pytest.raises(RuntimeError, match=re.escape(says)):
        softmax.load_state_dict({**state, "classes": torch.tensor(classes)})
    for name, value in softmax.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    softmax.load_state_dict({**state, "classes": torch.tensor([0, 1, 0, 1, 0, 1])})
    total = softmax.log_prob(hidden).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(5))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [HierarchicalSoftmax, LinearCrossEntropy])
def test_an_importance_below_0_or_not_finite_is_refused_by_its_word(
    make: Any, wrong: float
) -> None:
    importance = torch.ones(6)
    importance[4] = wrong
    with pytest.raises(ArgumentError, match=f"`importance`: got {wrong} of word 4"):
        make(3, 6, importance=importance)


@pytest.mark.parametrize("make", [HierarchicalSoftmax, LinearCrossEntropy])
@pytest.mark.parametrize("k", [None, 3])
def test_no_word_is_drawn_from_a_row_that_has_no_distribution(make: Any, k: Any) -> None:
    hidden = torch.randn(4, 3)
    hidden[2, 1] = float("nan")
    with pytest.raises(ArgumentError, match="`hidden`: got NaN or inf in 1 rows"):
        make(3, 40).sample(hidden, k=k)
