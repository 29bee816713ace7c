"""Every torch function in the table acts on each row as on that row alone; all else is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged, functions, supported_functions

LENGTHS = [[2, 0, 3], []]
PAGE = Path(__file__).parent.parent / "docs" / "ragged.md"

BITWISE = {"bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"}
DRAWN = {"empty_like", "rand_like", "randn_like", "dropout", "alpha_dropout"}
TWO_OPERANDS = set(functions._BINARY.split()) - {"clamp", "clip"}
ABOVE_ONE = {"acosh", "arccosh"}
# What a function needs after its operands.
EXTRA: dict[str, dict[str, Any]] = {
    "clamp": {"min": 0.3, "max": 0.6},
    "clip": {"min": 0.3, "max": 0.6},
    "full_like": {"fill_value": 2.5},
    "lerp": {"weight": 0.25},
    "threshold": {"threshold": 0.5, "value": -1.0},
}


def spellings(name: str) -> list[Callable[..., Any]]:
    """How a function may be called on a batch and on a row alike: as a function, as a method."""
    found = [getattr(home, name) for home in (torch, F) if hasattr(home, name)]
    if hasattr(Tensor, name) and not hasattr(Ragged, name) and name != "where":
        found.append(lambda first, *rest, **options: getattr(first, name)(*rest, **options))
    return found


def rows_like(lengths: list[int], *features: int, low: float = 0.1) -> list[Tensor]:
    return [torch.rand(n, *features, dtype=torch.float64) * 0.8 + low for n in lengths]


def ragged_of(rows: list[Tensor], *features: int, dtype: torch.dtype = torch.float64) -> Ragged:
    return Ragged.from_list(rows, like=torch.zeros(0, *features, dtype=dtype))


def assert_same_rows(ragged: Ragged, rows: list[Tensor]) -> None:
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    for mine, theirs in zip(ragged, rows, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)


def operands(name: str, lengths: list[int]) -> list[list[Tensor]]:
    """Rows for every operand of an elementwise function, in its domain."""
    count = 3 if name in ("addcdiv", "addcmul", "where") else 1
    count = 2 if name in TWO_OPERANDS or name == "lerp" else count
    low = 1.1 if name in ABOVE_ONE else 0.1
    found = [rows_like(lengths, 3, low=low) for _ in range(count)]
    if name in BITWISE:
        return [[(row * 100).long() for row in rows] for rows in found]
    if name == "where":
        found[0] = [row > 0.5 for row in found[0]]
    return found


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", functions.ELEMENTWISE)
def test_elementwise(name: str, lengths: list[int]) -> None:
    rows = operands(name, lengths)
    dtype = torch.int64 if name in BITWISE else torch.float64
    batches = [ragged_of(each, 3, dtype=dtype) for each in rows]
    if name == "where":
        batches[0] = batches[0].with_values(batches[0].values.bool())
    for function in spellings(name):
        result = function(*batches, **EXTRA.get(name, {}))
        assert isinstance(result, Ragged)
        if name in DRAWN:
            assert result.shape == batches[0].shape
            continue
        per_row = [function(*each, **EXTRA.get(name, {})) for each in zip(*rows, strict=True)]
        assert_same_rows(result, per_row)


@pytest.mark.parametrize("name", sorted(TWO_OPERANDS))
def test_two_operands_of_which_one_is_the_same_for_every_token(name: str) -> None:
    rows = operands(name, [2, 0, 3])[0]
    ragged = ragged_of(rows, 3)
    feature = rows[0][0].clone()
    function = spellings(name)[0]
    assert_same_rows(function(ragged, feature), [function(row, feature) for row in rows])
    if name not in ("clamp_min", "clamp_max", "ldexp"):
        assert_same_rows(function(feature, ragged), [function(feature, row) for row in rows])


PER_TOKEN: dict[str, Callable[[Any], Any]] = {
    "alpha_dropout": lambda r: F.alpha_dropout(r, 0.0),
    "dropout": lambda r: F.dropout(r, 0.0),
    "embedding": lambda r: F.embedding((r * 4).long(), torch.arange(10.0).reshape(5, 2).double()),
    "layer_norm": lambda r: F.layer_norm(r, (3,), torch.arange(3.0).double()),
    "linear": lambda r: F.linear(r, torch.arange(6.0).reshape(2, 3).double()),
    "matmul": lambda r: torch.matmul(r, torch.arange(6.0).reshape(3, 2).double()),
    "one_hot": lambda r: F.one_hot((r * 4).long(), 5),
    "rms_norm": lambda r: F.rms_norm(r, (3,)),
}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", functions.PER_TOKEN)
def test_per_token(name: str, lengths: list[int]) -> None:
    rows = rows_like(lengths, 3)
    call = PER_TOKEN[name]
    assert_same_rows(call(ragged_of(rows, 3)), [call(row) for row in rows])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", functions.ALONG_FEATURES)
def test_along_features(name: str, lengths: list[int]) -> None:
    rows = rows_like(lengths, 2, 4)
    ragged = ragged_of(rows, 2, 4)
    for function in spellings(name):
        for dim in (-1, -2):
            result = function(ragged, dim=dim)
            assert_same_rows(result, [function(row, dim=dim) for row in rows])
        for dim in (0, 1, -3):
            with pytest.raises(ArgumentError, match=rf"`dim`.*\[{dim}\] in .*Ragged.*dim=-1"):
                function(ragged, dim=dim)


LOSSES: dict[str, tuple[Callable[[int], Tensor], Callable[[int], Tensor]]] = {
    name: (lambda n: torch.rand(n, 3).double(), lambda n: torch.rand(n, 3).double())
    for name in functions.LOSSES
}
for _name in ("cross_entropy", "nll_loss"):
    LOSSES[_name] = (lambda n: torch.randn(n, 3).double(), lambda n: torch.randint(0, 3, (n,)))


@pytest.mark.parametrize("name", functions.LOSSES)
def test_a_loss_is_the_mean_over_real_tokens_only(name: str) -> None:
    make_input, make_target = LOSSES[name]
    inputs = [make_input(n) for n in (1, 0, 9)]
    targets = [make_target(n) for n in (1, 0, 9)]
    x, y = Ragged.from_list(inputs), Ragged.from_list(targets)
    function = getattr(F, name)
    per_row = [function(a, b, reduction="none") for a, b in zip(inputs, targets, strict=True)]
    each = [entry for row in per_row for entry in row.flatten()]
    torch.testing.assert_close(function(x, y), sum(each) / len(each))
    torch.testing.assert_close(function(x, y, reduction="sum"), sum(each))
    assert_same_rows(function(x, y, reduction="none"), per_row)


@pytest.mark.parametrize("lengths", [[], [0, 0]], ids=str)
@pytest.mark.parametrize("name", functions.LOSSES)
def test_a_loss_over_no_token_is_zero_and_so_is_its_gradient(name: str, lengths: list[int]) -> None:
    make_input, make_target = LOSSES[name]
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    x = Ragged.from_lengths(make_input(0), lengths) * weight
    loss = getattr(F, name)(x, Ragged.from_lengths(make_target(0), lengths))
    loss.backward()
    assert loss.item() == 0
    assert weight.grad.tolist() == [0, 0, 0]


def test_losses_take_weights_and_ignored_targets() -> None:
    x = Ragged(torch.randn(5, 3), [0, 2, 5])
    y = x.with_values(torch.tensor([0, -100, 2, 1, -100]))
    weight = torch.tensor([0.2, 1.0, 3.0])
    expected = F.cross_entropy(x.values[[0, 2, 3]], y.values[[0, 2, 3]], weight)
    torch.testing.assert_close(nn.CrossEntropyLoss(weight)(x, y), expected)
    assert torch.equal(
        F.binary_cross_entropy_with_logits(x, x.sigmoid(), pos_weight=weight),
        F.binary_cross_entropy_with_logits(x.values, x.values.sigmoid(), pos_weight=weight),
    )


def test_whole_batches() -> None:
    a = Ragged(torch.arange(5.0), [0, 2, 2, 5])
    assert torch.cat([a, a]).lengths.tolist() == [2, 0, 3, 2, 0, 3]
    assert [part.lengths.tolist() for part in torch.chunk(a, 2)] == [[2, 0], [3]]
    assert torch.index_select(a, 0, torch.tensor([2])).values.tolist() == [2, 3, 4]
    assert torch.equal(a, a.clone())
    assert not torch.equal(a, a + 1)
    assert not torch.equal(a, Ragged(a.values, [0, 1, 2, 5]))
    assert torch.allclose(a, a + 1e-9)
    assert torch.allclose(a, a + 1, atol=2)
    assert not torch.allclose(a, a + 1)
    assert set(functions.WHOLE_BATCH) == {"allclose", "cat", "chunk", "equal", "index_select"}


def test_every_name_in_the_table_is_a_function_of_torch() -> None:
    for names in supported_functions().values():
        assert all(functions.objects_named(name) for name in names)


def test_the_page_lists_exactly_the_functions_that_are_supported() -> None:
    page = PAGE.read_text()
    for group, names in supported_functions().items():
        block = re.search(rf"\*\*{group}\*\*[^\n]*\n+((?:`.*\n)+)", page, re.IGNORECASE)
        assert block is not None, group
        assert re.findall(r"`(\w+)`", block.group(1)) == sorted(names), group


# Operators ---------------------------------------------------------------------------------------

OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a // b,
    lambda a, b: a % b,
    lambda a, b: a**b,
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_with_numbers_features_and_batches(operator: Callable[[Any, Any], Any]) -> None:
    rows, others = rows_like([2, 0, 3], 3), rows_like([2, 0, 3], 3)
    a, b = ragged_of(rows, 3), ragged_of(others, 3)
    pairs = zip(rows, others, strict=True)
    assert_same_rows(operator(a, b), [operator(x, y) for x, y in pairs])
    for other in (0.5, 2, torch.tensor(0.25), rows[0][0].clone(), torch.rand(1).double()):
        assert_same_rows(operator(a, other), [operator(row, other) for row in rows])
        assert_same_rows(operator(other, a), [operator(other, row) for row in rows])


def test_logical_operators_and_signs() -> None:
    rows = [torch.tensor([True, False]), torch.tensor([True])]
    a = Ragged.from_list(rows)
    b = a.with_values(torch.tensor([True, True, False]))
    assert (a & b).values.tolist() == [True, False, False]
    assert (a | b).values.tolist() == [True, True, True]
    assert (a ^ b).values.tolist() == [False, True, True]
    assert (~a).values.tolist() == [False, True, False]
    assert (True & a).values.tolist() == [True, False, True]
    assert (False | a).values.tolist() == [True, False, True]
    assert (True ^ a).values.tolist() == [False, True, False]
    c = Ragged(torch.tensor([-1.0, 2.0]), [0, 2])
    assert (-c).values.tolist() == [1, -2]
    assert abs(c).values.tolist() == [1, 2]


def test_one_weight_a_token_scales_all_features_even_when_sizes_agree_by_chance() -> None:
    """[T] beside [T, F] with T = F: torch alone would line tokens up with features."""
    values, weights = torch.rand(3, 3), torch.rand(3)
    a, w = Ragged(values, [0, 1, 3]), Ragged(weights, [0, 1, 3])
    assert torch.equal((a * w).values, values * weights[:, None])
    assert torch.equal((w * a).values, values * weights[:, None])
    assert torch.equal(torch.where(w > 0.5, a, 0.0).values, values * (weights > 0.5)[:, None])


def test_different_lengths_are_never_combined() -> None:
    a, b = Ragged(torch.zeros(4), [0, 1, 4]), Ragged(torch.zeros(4), [0, 2, 4])
    for combine in (
        lambda: a + b,
        lambda: torch.mul(a, b),
        lambda: torch.where(a > 0, b, 0.0),
        lambda: a == b,
        lambda: F.mse_loss(a, b),
    ):
        with pytest.raises(ArgumentError, match=r"lengths \[2, 2\].*lengths \[1, 3\]"):
            combine()


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 3), (4, 3), (1, 3), (1, 1, 3)])
def test_a_tensor_that_could_mean_rows_or_tokens_is_refused(shape: tuple[int, ...]) -> None:
    ragged = Ragged(torch.zeros(4, 3), [0, 1, 4])
    with pytest.raises(ArgumentError, match=r"repeat_like.*with_values"):
        ragged + torch.zeros(shape)
    with pytest.raises(ArgumentError, match=r"repeat_like.*with_values"):
        torch.zeros(shape) * ragged
    with pytest.raises(ArgumentError, match="features"):
        Ragged(torch.zeros(4), [0, 1, 4]) + torch.zeros(4)


def test_features_and_arrays_that_do_not_fit_are_refused() -> None:
    a, b = Ragged(torch.zeros(4, 3), [0, 1, 4]), Ragged(torch.zeros(4, 2), [0, 1, 4])
    with pytest.raises(ArgumentError, match=r"features \[2\].*\[3\]"):
        a + b
    for combine in (lambda: a + np.zeros(3), lambda: np.zeros(3) + a):
        with pytest.raises(ArgumentTypeError, match=r"torch\.as_tensor"):
            combine()
    assert (np.float32(2) * a + 1).values.sum() == 12


# Modules and refusals --------------------------------------------------------------------------


def test_a_stack_of_torch_modules_acts_on_every_token() -> None:
    model = nn.Sequential(
        nn.Embedding(7, 4),
        nn.Linear(4, 6),
        nn.LayerNorm(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.RMSNorm(6),
        nn.GELU(),
        nn.Linear(6, 3),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.LogSoftmax(-1),
    ).eval()
    rows = [torch.randint(0, 7, (n,)) for n in (3, 0, 5)]
    result = model(Ragged.from_list(rows))
    for mine, row in zip(result, rows, strict=True):
        torch.testing.assert_close(mine, model(row))
    mine = torch.autograd.grad(result.sum().square().sum(), [*model.parameters()])
    padded = torch.stack([model(row).sum(0) for row in rows]).square().sum()
    theirs = torch.autograd.grad(padded, [*model.parameters()])
    torch.testing.assert_close(mine, theirs)


def test_dropout_drops_and_scales() -> None:
    ragged = Ragged(torch.ones(1000, 3), [0, 400, 1000])
    dropped = nn.Dropout(0.5)(ragged).values
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert 0.4 < (dropped == 0).float().mean() < 0.6


def test_supported_functions_are_methods_too() -> None:
    ragged = Ragged(torch.randn(5, 3), [0, 2, 5])
    assert torch.equal(ragged.tanh().values, ragged.values.tanh())
    assert torch.equal(ragged.clamp(min=0).values, ragged.values.clamp(min=0))
    assert torch.equal(ragged.argmax(-1).values, ragged.values.argmax(-1))
    assert torch.equal(F.tanh(ragged).values, ragged.values.tanh())
    assert torch.equal((ragged @ torch.ones(3, 2)).values, ragged.values @ torch.ones(3, 2))
    with pytest.raises(AttributeError, match=r"no `cummax`.*ragged.map"):
        ragged.cummax(0)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ragged.nonsense


REFUSED: list[tuple[str, Callable[[Ragged], Any], str]] = [
    ("softmax over tokens", lambda r: torch.softmax(r, 0), "softmax"),
    ("softmax with no dim", lambda r: F.softmax(r, dim=None), "softmax"),
    ("a sum of everything", torch.sum, "sum"),
    ("a mean of everything", torch.mean, "mean"),
    ("a standard deviation", lambda r: torch.std(r, -1), "std"),
    ("batch times batch", lambda r: torch.matmul(r, r), "matmul"),
    ("batch @ batch", lambda r: r @ r, "matmul"),
    ("vector on the right", lambda r: r @ torch.zeros(3), "matmul"),
    ("weight on the left", lambda r: torch.matmul(torch.zeros(3, 3), r), "matmul"),
    ("a sort", torch.sort, "torch.sort"),
    ("a stack", lambda r: torch.stack([r, r]), "torch.stack"),
    ("a convolution", nn.Conv1d(3, 3, 1), "conv1d"),
    ("attention", lambda r: F.scaled_dot_product_attention(r, r, r), "scaled_dot_product"),
    ("an output given", lambda r: torch.add(r, 1, out=r), "out="),
    ("in place on a tensor", lambda r: torch.zeros(3).add_(r), "add_"),
    ("a loss with a tensor", lambda r: F.mse_loss(r, r.values), "mse_loss"),
    ("a loss of a tensor", lambda r: F.mse_loss(r.values, r), "mse_loss"),
    ("a batch as a weight", lambda r: F.linear(torch.zeros(2, 3), r), "linear"),
    ("equal to a tensor", lambda r: torch.equal(r, r.values), "equal"),
    ("chunks over features that are not", lambda r: torch.chunk(r, 2, dim=1), "dim"),
]


@pytest.mark.parametrize(
    ("call", "name"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_would_mix_tokens_is_refused_by_name(call: Callable[[Ragged], Any], name: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=name) as caught:
        call(Ragged(torch.zeros(4, 3), [0, 1, 4]))
    assert "remedy: " in str(caught.value)


def test_functions_of_features_need_features() -> None:
    """A weight as wide as the number of tokens must not turn tokens into features."""
    ragged = Ragged(torch.zeros(4), [0, 1, 4])
    target = ragged.with_values(torch.zeros(4, dtype=torch.int64))
    for call in (
        lambda: F.linear(ragged, torch.zeros(2, 4)),
        lambda: ragged @ torch.zeros(4, 2),
        lambda: F.layer_norm(ragged, (4,)),
        lambda: F.cross_entropy(ragged, target),
        lambda: torch.softmax(ragged, -1),
        lambda: F.layer_norm(ragged.map(lambda v: v[:, None]), (4, 1)),
        lambda: F.mse_loss(ragged, ragged.map(lambda v: v[:, None])),
    ):
        with pytest.raises(ArgumentError, match="features"):
            call()


def test_torch_layers_that_look_at_the_whole_batch_point_to_ours() -> None:
    ragged = Ragged(torch.zeros(4, 3), [0, 1, 4])
    for module in (nn.LSTM(3, 3), nn.BatchNorm1d(3)):
        with pytest.raises(AttributeError, match=r"unpad.nn in place of torch.nn"):
            module(ragged)


def test_map_keeps_tokens_and_says_so() -> None:
    ragged = Ragged(torch.ones(4, 3), [0, 1, 4])
    assert ragged.map(lambda values: values.sum(-1)).values.tolist() == [3, 3, 3, 3]
    with pytest.raises(ArgumentError, match=r"shape \[3\].*\[4, ...\]"):
        ragged.map(lambda values: values.sum(0))
    with pytest.raises(ArgumentTypeError, match="return a tensor"):
        ragged.map(lambda values: None)  # type: ignore[arg-type,return-value]


def test_gradients_flow_through_operators_and_losses() -> None:
    values = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(3, dtype=torch.float64, requires_grad=True)

    def through(values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        ragged = torch.tanh(Ragged(values, [0, 1, 1, 4]) * scale + 1)
        return ragged.values, F.mse_loss(ragged, ragged.detach() * 0)

    assert torch.autograd.gradcheck(through, (values, scale))
