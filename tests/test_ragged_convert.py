"""Every form of batch goes in and out unchanged, in its order, with exact gradients."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged

LENGTHS = [[2, 0, 3, 1], [0, 0], [], [1], [0, 4, 0, 2], [5, 1, 3], [1, 300, 2]]
FULL = [lengths for lengths in LENGTHS if lengths and min(lengths) > 0]


def rows_of(lengths: list[int], features: tuple[int, ...] = (3,)) -> list[Tensor]:
    return [torch.randn(length, *features, dtype=torch.float64) for length in lengths]


def ragged_of(lengths: list[int], features: tuple[int, ...] = (3,)) -> Ragged:
    return Ragged.from_list(rows_of(lengths, features), like=torch.zeros(0, *features).double())


def assert_rows(ragged: Ragged, rows: list[Tensor]) -> None:
    """The batch is these rows: as many, in this order, bit for bit."""
    assert len(ragged) == len(rows)
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    for mine, theirs in zip(ragged.to_list(), rows, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("features", [(), (3,), (2, 3)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_list_comes_back_as_it_was(lengths: list[int], features: tuple[int, ...]) -> None:
    rows = rows_of(lengths, features)
    assert_rows(Ragged.from_list(rows), rows)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_padded_steps_come_out_and_pads_are_never_read(
    lengths: list[int], batch_first: bool
) -> None:
    rows = rows_of(lengths)
    x = torch.full((len(lengths), max(lengths, default=0) + 2, 3), float("nan")).double()
    for i, row in enumerate(rows):
        x[i, : len(row)] = row
    given = x if batch_first else x.transpose(0, 1).contiguous()
    assert_rows(Ragged.from_padded(given, lengths, batch_first=batch_first), rows)
    assert_rows(
        Ragged.from_padded(x.transpose(0, 1), lengths, batch_first=False),  # a strided view
        rows,
    )


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("value", [0.0, -7.5, float("nan")])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_to_padded_places_every_token_and_fills_the_rest(
    lengths: list[int], value: float, batch_first: bool
) -> None:
    rows, steps = rows_of(lengths), max(lengths, default=0) + 3
    expected = torch.full((len(rows), steps, 3), value, dtype=torch.float64)
    for i, row in enumerate(rows):
        expected[i, : len(row)] = row
    ragged = Ragged.from_list(rows, like=torch.zeros(0, 3).double())
    padded = ragged.to_padded(total_length=steps, value=value, batch_first=batch_first)
    expected = expected if batch_first else expected.transpose(0, 1)
    torch.testing.assert_close(padded, expected, rtol=0, atol=0, equal_nan=True)
    assert ragged.to_padded(batch_first=batch_first).shape[1 if batch_first else 0] == max(
        lengths, default=0
    )


def test_a_total_length_that_is_too_short_is_refused_with_the_length_it_needs() -> None:
    with pytest.raises(ArgumentError, match=r"total_length.*got 2.*at least 3"):
        ragged_of([1, 3]).to_padded(total_length=2)


@pytest.mark.parametrize("lengths", FULL)
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_a_packed_sequence_comes_out_in_the_order_before_packing(
    lengths: list[int], enforce_sorted: bool
) -> None:
    lengths = sorted(lengths, reverse=True) if enforce_sorted else lengths
    rows = rows_of(lengths)
    assert_rows(Ragged.from_packed(pack_sequence(rows, enforce_sorted=enforce_sorted)), rows)


@pytest.mark.parametrize("lengths", FULL)
def test_to_packed_is_what_torch_packs(lengths: list[int]) -> None:
    rows = rows_of(lengths)
    theirs = pack_sequence(rows, enforce_sorted=False)
    mine = Ragged.from_list(rows).to_packed()
    assert isinstance(mine, PackedSequence)
    assert torch.equal(mine.data, theirs.data)
    assert torch.equal(mine.batch_sizes, theirs.batch_sizes)
    back = torch.nn.utils.rnn.pad_packed_sequence(mine, batch_first=True)
    assert torch.equal(back[0], Ragged.from_list(rows).to_padded())
    assert back[1].tolist() == lengths


def test_a_packed_sequence_of_a_padded_batch_with_a_shorter_total() -> None:
    x = torch.randn(3, 9, 2)
    packed = pack_padded_sequence(x, [4, 6, 1], batch_first=True, enforce_sorted=False)
    assert_rows(Ragged.from_packed(packed), [x[0, :4], x[1, :6], x[2, :1]])


@pytest.mark.parametrize("lengths", [[2, 0], []])
def test_to_packed_says_that_torch_has_no_empty_rows(lengths: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"PackedSequence.*ragged\[ragged.lengths > 0\]"):
        ragged_of(lengths).to_packed()


@pytest.mark.parametrize("lengths", [lengths for lengths in LENGTHS if lengths])
def test_a_nested_tensor_shares_its_values(lengths: list[int]) -> None:
    rows = rows_of(lengths)
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    ragged = Ragged.from_nested(nested)
    assert_rows(ragged, rows)
    assert ragged.values.data_ptr() == nested.values().data_ptr()
    there = ragged.to_nested()
    assert there.values().data_ptr() == ragged.values.data_ptr()
    for mine, theirs in zip(there.unbind(), rows, strict=True):
        assert torch.equal(mine, theirs)


def test_an_empty_batch_goes_through_nested() -> None:
    back = Ragged.from_nested(ragged_of([]).to_nested())
    assert len(back) == 0
    assert back.values.shape == (0, 3)


def test_a_strided_nested_tensor_and_one_with_narrowed_rows() -> None:
    rows = rows_of([2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its strided layout a prototype
        strided = torch.nested.nested_tensor(rows, layout=torch.strided)
    assert_rows(Ragged.from_nested(strided), rows)
    x = torch.randn(3, 5, 2)
    narrowed = torch.nested.narrow(
        x, 1, torch.tensor([0, 1, 2]), torch.tensor([2, 0, 3]), layout=torch.jagged
    )
    assert_rows(Ragged.from_nested(narrowed), [x[0, :2], x[1, 1:1], x[2, 2:5]])


def test_a_tensor_nested_in_another_dimension_is_refused() -> None:
    nested = torch.nested.nested_tensor(rows_of([2, 3]), layout=torch.jagged)
    with pytest.raises(ArgumentError, match="ragged in dimension 2"):
        Ragged.from_nested(nested.transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_a_mask_with_holes_skips_the_steps(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 2)
    x[0, 1] = float("nan")
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=dtype)
    expected = [x[0, [0, 2]], x[1, :0], x[2]]
    assert_rows(Ragged.from_mask(x, mask), expected)
    turned = Ragged.from_mask(x.transpose(0, 1), mask.T, batch_first=False)
    assert_rows(turned, expected)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(2, 3), ArgumentTypeError, "mask > 0.5"),
        (torch.ones(3, 2, dtype=torch.bool), ArgumentError, r"\[2, 3\]"),
        (torch.full((2, 3), 2), ArgumentError, "mask != 0"),
    ],
)
def test_a_bad_mask_is_refused(mask: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Ragged.from_mask(torch.zeros(2, 3), mask)


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [3, 1]])
def test_gradients_go_to_real_steps_only_and_are_exact(lengths: list[int]) -> None:
    """Each way in and out is a selection of entries: its gradient is tested numerically, twice."""
    x = torch.randn(len(lengths), 3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(3) < torch.tensor(lengths)[:, None]

    def through(x: Tensor) -> tuple[Tensor, ...]:
        ragged = Ragged.from_padded(x, lengths)
        return (
            ragged.values,
            ragged.to_padded(value=2.0),
            Ragged.from_padded(x.transpose(0, 1), lengths, batch_first=False).values,
            Ragged.from_mask(x, mask).values,
            Ragged.from_list(ragged.to_list()).to_padded(batch_first=False),
        )

    assert torch.autograd.gradcheck(through, x)
    assert torch.autograd.gradgradcheck(through, x)
    Ragged.from_padded(x, lengths).values.sum().backward()
    assert torch.equal(x.grad, mask[..., None].expand_as(x).double())


def test_gradients_go_through_nested() -> None:
    """To first order: torch itself has no second derivative of its jagged layout's values."""
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def through(x: Tensor) -> Tensor:
        return Ragged.from_nested(Ragged(x, [0, 2, 2, 5]).to_nested()).values.square()

    assert torch.autograd.gradcheck(through, x)


def test_gradients_go_through_packing() -> None:
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def through(x: Tensor) -> tuple[Tensor, Tensor]:
        packed = Ragged(x, [0, 1, 4, 6]).to_packed()
        return packed.data, Ragged.from_packed(packed).values

    assert torch.autograd.gradcheck(through, x)


def test_a_full_batch_and_a_nested_one_are_not_copied() -> None:
    x = torch.randn(3, 4, 2)
    assert Ragged.from_padded(x).values.data_ptr() == x.data_ptr()
    assert Ragged.from_padded(x, [4, 4, 4]).values.data_ptr() == x.data_ptr()
    turned = x.transpose(0, 1)
    assert Ragged.from_padded(turned, batch_first=False).values.data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "lengths",
    [
        [2, 0, 3],
        (2, 0, 3),
        np.array([2, 0, 3]),
        np.array([2, 0, 3], dtype=np.uint8),
        np.array([2, 0, 3], dtype=">i4"),
        [np.int64(2), np.int32(0), 3],
        [torch.tensor(2), 0, torch.tensor(3)],
        torch.tensor([2, 0, 3]),
        torch.tensor([2, 0, 3], dtype=torch.int32),
        range(2, 5),
    ],
    ids=lambda lengths: type(lengths).__name__,
)
def test_lengths_come_in_any_form(lengths: object) -> None:
    x = torch.randn(3, 4)
    expected = [2, 3, 4] if isinstance(lengths, range) else [2, 0, 3]
    assert_rows(
        Ragged.from_padded(x, lengths),  # type: ignore[arg-type]
        [row[:length] for row, length in zip(x, expected, strict=True)],
    )


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([2, -1, 3], ValueError, r"`lengths`.*-1.*lengths >= 0"),
        ([2, 5, 3], ValueError, r"`lengths`.*5 for row 1.*0 to 4"),
        ([2, 3], ValueError, r"`lengths`.*2 lengths.*3 sequences"),
        ([[2, 3, 4]], ValueError, r"`lengths`.*one dimension"),
        ([[2, 3], [4]], ValueError, r"`lengths`.*one dimension"),
        (torch.tensor([[2], [3], [4]]), ValueError, r"`lengths`.*one dimension"),
        (3, TypeError, r"`lengths`.*got 3"),
        (torch.tensor(3), ValueError, r"`lengths`.*one dimension"),
        ([2.0, 3.0, 1.0], TypeError, r"`lengths`.*integers"),
        (torch.tensor([2.0, 3.0, 1.0]), TypeError, r"`lengths`.*integers.*to\(torch.int64\)"),
        (np.array([2.0, 3.0, 1.0]), TypeError, r"`lengths`.*integers"),
        ([True, False, True], TypeError, r"`lengths`.*integers"),
        (torch.tensor([True, False, True]), TypeError, r"`lengths`.*integers"),
        (np.array([True, False, True]), TypeError, r"`lengths`.*integers"),
        (["2", "3", "1"], TypeError, r"`lengths`.*integers"),
        ([2, None, 3], TypeError, r"`lengths`.*integers"),
        ([2, 2**70, 3], TypeError, r"`lengths`.*64 bits"),
        ("213", TypeError, r"`lengths`"),
    ],
)
def test_bad_lengths_are_refused_by_name(
    lengths: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Ragged.from_padded(torch.zeros(3, 4), lengths)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Ragged.from_list(torch.tensor(3)), ArgumentTypeError, "list"),
        (lambda: Ragged.from_list(7), ArgumentTypeError, "wrap a single sequence in a list"),
        (lambda: Ragged.from_list("abc"), ArgumentTypeError, "sequences"),
        (lambda: Ragged.from_list([1, 2]), ArgumentError, "single number in row 0"),
        (lambda: Ragged.from_list([[1], ["a"]]), ArgumentTypeError, "row 1"),
        (lambda: Ragged.from_list([[1], None]), ArgumentTypeError, "row 1"),
        (lambda: Ragged.from_list([ragged_of([1])]), ArgumentTypeError, r"Ragged\.cat"),
        (
            lambda: Ragged.from_list([torch.zeros(2, 3), torch.zeros(2, 4)]),
            ArgumentError,
            r"features \[4\] in row 1.*features \[3\]",
        ),
        (lambda: Ragged.from_padded(torch.zeros(3), [1]), ArgumentError, r"x.unsqueeze\(0\)"),
        (lambda: Ragged.from_padded(np.zeros((3, 2)), [1]), ArgumentTypeError, "as_tensor"),
        (lambda: Ragged.from_packed(torch.zeros(3)), ArgumentTypeError, "PackedSequence"),
        (lambda: Ragged.from_nested(torch.zeros(3)), ArgumentTypeError, "nested tensor"),
    ],
)
def test_what_is_no_batch_is_refused_in_words(
    make: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()  # type: ignore[operator]


def test_lists_of_arrays_numbers_and_frames() -> None:
    read_only = np.arange(6, dtype=np.float32).reshape(3, 2)
    read_only.flags.writeable = False
    frames = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    ragged = Ragged.from_list(
        [read_only, read_only[::-1], [[1.0, 2.0]], frames, [np.ones(2, np.float32)], []]
    )
    assert ragged.lengths.tolist() == [3, 3, 1, 2, 1, 0]
    assert ragged.dtype == torch.float32
    assert torch.equal(ragged[1], torch.tensor([[4.0, 5.0], [2.0, 3.0], [0.0, 1.0]]))
    assert torch.equal(ragged[3], torch.stack(frames))
    assert Ragged.from_list([[1, 2], [], [3]]).dtype == torch.int64


def test_empty_sequences_need_no_features_and_an_empty_list_can_be_given_them() -> None:
    ragged = Ragged.from_list([torch.zeros(0), torch.randn(2, 3), torch.zeros(0, 3)])
    assert ragged.lengths.tolist() == [0, 2, 0]
    assert Ragged.from_list([torch.zeros(0, 3), torch.zeros(0, 3)]).feature_shape == (3,)
    empty = Ragged.from_list([], like=torch.zeros(5, 3).double())
    assert (len(empty), empty.values.shape, empty.dtype) == (0, (0, 3), torch.float64)
    assert Ragged.from_list([]).values.shape == (0,)
