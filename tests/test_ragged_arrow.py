"""Arrow list columns are ragged already: the values are shared, and what does not fit is named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged

ROWS = [[1.5, -2.0], [], [3.0, 4.0, 5.0], [], [6.0]]
FRAMES = [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]]


def address(array: pa.Array) -> int:
    """Where the numbers of a primitive array start."""
    return array.buffers()[1].address + array.offset * array.type.bit_width // 8


@pytest.mark.parametrize(
    "kind",
    [pa.float32(), pa.float64(), pa.float16(), pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    ids=str,
)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_a_list_column_shares_its_numbers(kind: pa.DataType, make: object) -> None:
    rows = [[int(v) for v in row] for row in ROWS] if pa.types.is_integer(kind) else ROWS
    rows = [[np.float16(v) for v in row] for row in rows] if kind == pa.float16() else rows
    array = pa.array(rows, make(kind))  # type: ignore[operator]
    ragged = Ragged.from_arrow(array)
    assert [row.tolist() for row in ragged] == [[float(v) for v in row] for row in rows]
    assert ragged.values.data_ptr() == address(array.values)


def test_a_slice_of_a_column_starts_at_its_own_row_without_a_copy() -> None:
    array = pa.array(ROWS, pa.list_(pa.float32()))
    ragged = Ragged.from_arrow(array[2:])
    assert [row.tolist() for row in ragged] == ROWS[2:]
    assert ragged.values.data_ptr() == address(array.values) + 2 * 4


@pytest.mark.parametrize("inner", [pa.list_(pa.float32(), 2), pa.list_(pa.float32())], ids=str)
def test_nested_lists_of_one_size_are_features(inner: pa.DataType) -> None:
    array = pa.array(FRAMES, pa.list_(inner))
    ragged = Ragged.from_arrow(array)
    assert [row.tolist() for row in ragged] == FRAMES
    assert ragged.feature_shape == (2,)
    assert ragged.values.data_ptr() == address(array.values.flatten())
    assert [row.tolist() for row in Ragged.from_arrow(array[2:])] == FRAMES[2:]


def test_two_levels_of_fixed_features() -> None:
    kind = pa.list_(pa.list_(pa.list_(pa.int64(), 3), 2))
    rows = [[[[1, 2, 3], [4, 5, 6]]], [], [[[7, 8, 9], [10, 11, 12]]] * 2]
    ragged = Ragged.from_arrow(pa.array(rows, kind))
    assert ragged.feature_shape == (2, 3)
    assert [row.tolist() for row in ragged] == rows


def test_fixed_size_lists_are_sequences_of_one_length() -> None:
    array = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    assert [row.tolist() for row in Ragged.from_arrow(array[1:])] == [[3, 4], [5, 6]]


def test_chunks_are_joined_and_one_chunk_is_shared() -> None:
    one = pa.array(ROWS, pa.list_(pa.float32()))
    assert Ragged.from_arrow(pa.chunked_array([one])).values.data_ptr() == address(one.values)
    both = Ragged.from_arrow(pa.chunked_array([one, one[3:]]))
    assert [row.tolist() for row in both] == ROWS + ROWS[3:]
    none = Ragged.from_arrow(pa.chunked_array([], pa.list_(pa.float32())))
    assert (len(none), none.dtype) == (0, torch.float32)


def test_a_column_of_a_table_and_of_anything_that_streams_arrow() -> None:
    table = pa.table({"x": pa.array(ROWS, pa.list_(pa.float32()))})

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table["x"].__arrow_c_stream__(requested_schema)

    assert [row.tolist() for row in Ragged.from_arrow(table["x"])] == ROWS
    assert [row.tolist() for row in Ragged.from_arrow(Stream())] == ROWS


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (pa.array([[1], None, [2]]), ArgumentError, "null in row 1"),
        (pa.array([[1], [2, None]]), ArgumentError, "null in token 2"),
        (pa.array([[[1]], [[2, 3]]]), ArgumentError, "token 1 with 2 features"),
        (
            pa.array([[[1], None]], pa.list_(pa.list_(pa.int64(), 1))),
            ArgumentError,
            "null in token",
        ),
        (pa.array([["a"]]), ArgumentTypeError, "lists of string"),
        (pa.array([1, 2]), ArgumentTypeError, "column of type int64"),
        (pa.array(["ab"]), ArgumentTypeError, "column of type string"),
        ([[1, 2]], ArgumentTypeError, "Ragged.from_list"),
    ],
)
def test_what_does_not_fit_is_named(column: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Ragged.from_arrow(column)


def test_all_empty_and_bool_columns() -> None:
    empty = Ragged.from_arrow(pa.array([[], []], pa.list_(pa.float32())))
    assert (empty.lengths.tolist(), empty.dtype) == ([0, 0], torch.float32)
    frames = Ragged.from_arrow(pa.array([[], []], pa.list_(pa.list_(pa.float32(), 4))))
    assert frames.values.shape == (0, 4)
    flags = Ragged.from_arrow(pa.array([[True, False], [True]]))
    assert [row.tolist() for row in flags] == [[True, False], [True]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("features", [(), (3,), (2, 3)])
@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], []])
def test_to_arrow_and_back(
    dtype: torch.dtype, features: tuple[int, ...], lengths: list[int]
) -> None:
    values = torch.randint(0, 2, (sum(lengths), *features)).to(dtype)
    ragged = Ragged.from_lengths(values, lengths)
    column = ragged.to_arrow()
    assert column.to_pylist() == [row.tolist() for row in ragged]
    assert Ragged.from_arrow(column).equal(ragged)


def test_to_arrow_shares_numbers_and_leaves_the_gradient_behind() -> None:
    ragged = Ragged(torch.randn(3, 2, requires_grad=True), [0, 1, 3])
    column = ragged.to_arrow()
    assert address(column.values.flatten()) == ragged.values.data_ptr()
    with pytest.raises(ArgumentTypeError, match=r"bfloat16.*ragged.float\(\)"):
        ragged.bfloat16().to_arrow()
    with pytest.raises(ArgumentError, match="size 1"):
        Ragged(torch.zeros(3, 0), [0, 3]).to_arrow()
