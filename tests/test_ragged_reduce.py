"""One vector a sequence: against a loop over the rows, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unpad.errors import ArgumentTypeError
from unpad.ragged import Ragged

LENGTHS = [[2, 0, 3, 1], [0, 0], [], [1], [0, 4, 0, 2], [5, 1, 3]]


def ragged_of(lengths: list[int], features: tuple[int, ...] = (3,)) -> Ragged:
    values = torch.randn(sum(lengths), *features, dtype=torch.float64)
    return Ragged.from_lengths(values, lengths)


def by_hand(ragged: Ragged, name: str, fill: float = 0.0) -> Tensor:
    """The reduction of each row by itself; an empty row is `fill`."""
    results = []
    for row in ragged.to_list():
        if len(row) == 0:
            results.append(torch.full(row.shape[1:], fill, dtype=row.dtype))
        elif name == "last":
            results.append(row[-1])
        elif name == "first":
            results.append(row[0])
        elif name == "max":
            results.append(row.max(0).values)
        else:
            results.append(getattr(row, name)(0))
    shape = (0, *ragged.feature_shape)
    return torch.stack(results) if results else torch.zeros(shape, dtype=ragged.dtype)


@pytest.mark.parametrize("features", [(), (3,), (2, 3)])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", ["last", "first", "sum", "mean", "max"])
def test_a_reduction_is_that_of_each_row(
    name: str, lengths: list[int], features: tuple[int, ...]
) -> None:
    ragged = ragged_of(lengths, features)
    result = getattr(ragged, name)()
    assert result.shape == (len(lengths), *features)
    torch.testing.assert_close(result, by_hand(ragged, name), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("lengths", [[2, 0, 3, 1], [0, 0], [1, 4]])
@pytest.mark.parametrize("name", ["last", "first", "sum", "mean", "max", "reverse"])
def test_gradients_are_exact_dense_and_twice_differentiable(name: str, lengths: list[int]) -> None:
    ragged = ragged_of(lengths, (2,))

    def through(values: Tensor) -> Tensor:
        result = getattr(ragged.with_values(values), name)()
        return result.values if name == "reverse" else result

    values = ragged.values.requires_grad_()
    assert torch.autograd.gradcheck(through, values)
    assert torch.autograd.gradgradcheck(through, values)
    (gradient,) = torch.autograd.grad(through(values).sum(), values)
    assert gradient.layout == torch.strided
    assert gradient.shape == values.shape


@pytest.mark.parametrize("name", ["last", "first", "max"])
def test_an_empty_sequence_gives_what_it_is_told_to(name: str) -> None:
    ragged = ragged_of([0, 2, 0])
    expected = by_hand(ragged, name, fill=-7.0)
    assert torch.equal(getattr(ragged, name)(fill=-7.0), expected)


def test_the_first_of_equal_maxima_takes_the_gradient_as_in_torch() -> None:
    values = torch.tensor([1.0, 3.0, 3.0, 2.0, 2.0], requires_grad=True)
    (mine,) = torch.autograd.grad(Ragged(values, [0, 3, 5]).max().sum(), values)
    rows = values[:3].max(0).values + values[3:].max(0).values
    (theirs,) = torch.autograd.grad(rows, values)
    assert torch.equal(mine, theirs)


def test_max_of_nan_infinities_integers_and_bools() -> None:
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([1.0, nan, 2.0, -inf, -inf, inf, 0.0])
    result = Ragged(values, [0, 3, 5, 7]).max()
    assert result[0].isnan()
    assert result[1:].tolist() == [-inf, inf]
    assert Ragged(torch.tensor([-5, -3, -9]), [0, 2, 2, 3]).max().tolist() == [-3, 0, -9]
    flags = Ragged(torch.tensor([False, True, False]), [0, 2, 3])
    assert flags.max().tolist() == [True, False]
    assert flags.sum().tolist() == [1, 0]


def test_max_is_the_same_with_and_without_a_gradient() -> None:
    ragged = ragged_of([3, 0, 5])
    ragged.values[1, 0] = float("nan")
    with_gradient = ragged.clone().requires_grad_().max(fill=-1)
    torch.testing.assert_close(ragged.max(fill=-1), with_gradient.detach(), equal_nan=True)
    assert with_gradient[0, 0].isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_do_not_stall(dtype: torch.dtype) -> None:
    """4,000 ones added in half precision one by one would stop at 2,048 (bfloat16: 256)."""
    ragged = Ragged(torch.ones(4000, dtype=dtype), [0, 4000])
    assert ragged.sum().dtype == dtype
    assert ragged.sum().item() == 4000
    assert ragged.mean().item() == 1


def test_the_mean_of_integers_is_refused_as_in_torch() -> None:
    with pytest.raises(ArgumentTypeError, match=r"int64.*ragged.float\(\)"):
        Ragged(torch.tensor([1, 2]), [0, 2]).mean()


@pytest.mark.parametrize("name", ["last", "sum", "mean", "max"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_alone_equals_the_row_in_a_crowd_bit_for_bit(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    lengths = torch.randint(0, 200, (64,))
    ragged = Ragged.from_lengths(torch.randn(int(lengths.sum()), 65), lengths)
    crowd = getattr(ragged, name)()
    alone = torch.cat([getattr(ragged[i : i + 1], name)() for i in range(64)])
    turned = getattr(ragged[::-1], name)().flip(0)
    assert torch.equal(crowd, alone)
    assert torch.equal(crowd, turned)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_reverse_turns_each_row_at_its_own_end(lengths: list[int]) -> None:
    ragged = ragged_of(lengths)
    turned = ragged.reverse()
    assert turned.lengths.tolist() == lengths
    for mine, row in zip(turned, ragged, strict=True):
        assert torch.equal(mine, row.flip(0))
    assert turned.reverse().equal(ragged)


def test_reductions_add_no_nan_to_an_empty_batch_in_training() -> None:
    for lengths in ([], [0, 0]):
        values = torch.zeros(0, 3, requires_grad=True)
        ragged = Ragged.from_lengths(values, lengths)
        weight = torch.ones(3, requires_grad=True)
        total = sum(
            (getattr(ragged, name)() * weight).sum() for name in ("last", "sum", "mean", "max")
        )
        total.backward()
        assert weight.grad.tolist() == [0, 0, 0]
        assert values.grad.shape == (0, 3)
