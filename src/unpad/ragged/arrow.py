"""Arrow list columns: ragged already, so the values are shared and only offsets are read.

Layouts: https://arrow.apache.org/docs/format/Columnar.html. pyarrow is imported when a column is
converted, never before: the core needs torch and NumPy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged.core import Core

if TYPE_CHECKING:
    from typing_extensions import Self

_ALLOWED = "a list column of numbers, or of fixed-size lists of numbers"
_MOST_LIST_TOKENS = 2**31 - 1


class ArrowConversion(Core):
    """The part of `Ragged` that converts from and to Arrow list columns."""

    @classmethod
    def from_arrow(cls, column: Any) -> Self:
        """Convert an Arrow list column.

        Args:
            column: a pyarrow ListArray, LargeListArray, FixedSizeListArray or ChunkedArray of
                these, or any object with Arrow's stream interface (a Polars series). The lists
                hold numbers, or lists of numbers of one size: the features of a token.

        Returns:
            a batch whose row i is the list in row i; an empty list has length 0.

        Raises:
            ArgumentTypeError: another type of column, or lists of something else than numbers.
            ArgumentError: a null (the message names the row), or features of unequal size.

        The values share the column's memory where Arrow lays them out as torch does: one chunk, no
        bools. Arrow's data never changes, so do not write into them; `clone()` first.

        >>> import pyarrow as pa
        >>> from unpad.ragged import Ragged
        >>> Ragged.from_arrow(pa.array([[1, 2], [], [3]])).to_list()
        [tensor([1, 2]), tensor([], dtype=torch.int64), tensor([3])]
        """
        array = _one_chunk(column)
        _refuse_nulls(array, "row")
        offsets, tokens = _open_list(array)
        return cls(_as_features(tokens), torch.from_numpy(offsets))

    def to_arrow(self) -> Any:
        """Return a pyarrow ListArray (a LargeListArray from 2**31 tokens on).

        Features become nested fixed-size lists. The values are shared where they are contiguous on
        the CPU, and cut off from their gradient history.

        Raises:
            ArgumentTypeError: a dtype that Arrow does not have (bfloat16, complex).

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1, 2, 3]), [0, 2, 2, 3]).to_arrow().to_pylist()
        [[1, 2], [], [3]]
        """
        import pyarrow as pa

        if self.dtype == torch.bfloat16 or self.dtype.is_complex:
            raise ArgumentTypeError(
                "values", f"dtype {self.dtype}", "dtypes that Arrow has", "use ragged.float()"
            )
        flat = self.values.detach().cpu().contiguous().reshape(-1).numpy()
        tokens: Any = pa.array(flat)
        for size in reversed(self.feature_shape):
            tokens = _fixed_size_lists(tokens, size, self)
        offsets = self.offsets.numpy()
        if self.num_tokens > _MOST_LIST_TOKENS:
            return pa.LargeListArray.from_arrays(pa.array(offsets), tokens)
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), tokens)


def _fixed_size_lists(tokens: Any, size: int, ragged: Core) -> Any:
    import pyarrow as pa

    if size == 0:
        raise ArgumentError(
            "values",
            f"features {list(ragged.feature_shape)}",
            "features of at least size 1",
            "drop the dimension of size 0 before converting",
        )
    return pa.FixedSizeListArray.from_arrays(tokens, size)


def _one_chunk(column: Any) -> Any:
    """Return a single Arrow array; more than one chunk is the one case that copies."""
    import pyarrow as pa

    if isinstance(column, pa.Array):
        return column
    if not isinstance(column, pa.ChunkedArray):
        if not hasattr(column, "__arrow_c_stream__"):
            raise ArgumentTypeError(
                "column", column, _ALLOWED, "use Ragged.from_list for a Python list"
            )
        column = pa.chunked_array(column)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _open_list(array: Any) -> tuple[Any, Any]:
    """Return offsets (int64, from 0) and the tokens of a list array without nulls."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        size: int = array.type.list_size
        return np.arange(len(array) + 1, dtype=np.int64) * size, array.flatten()
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        offsets = array.offsets.to_numpy().astype(np.int64)
        tokens = array.values[int(offsets[0]) : int(offsets[-1])]
        return offsets - offsets[0], tokens
    raise ArgumentTypeError(
        "column", f"a column of type {array.type}", _ALLOWED, "select a list column"
    )


def _as_features(tokens: Any) -> Tensor:
    """Return tokens, plain or nested in lists of one size, as a tensor [T, *features]."""
    import pyarrow as pa

    _refuse_nulls(tokens, "token")
    if pa.types.is_nested(tokens.type):
        offsets, inner = _open_list(tokens)
        return _as_features(inner).unflatten(0, (len(tokens), _one_size(tokens, offsets)))
    return _as_tensor(tokens)


def _one_size(tokens: Any, offsets: Any) -> int:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(tokens.type):
        size: int = tokens.type.list_size
        return size
    sizes = np.diff(offsets)
    if len(sizes) == 0:
        return 0
    if (sizes != sizes[0]).any():
        token = int((sizes != sizes[0]).argmax())
        raise ArgumentError(
            "column",
            f"token {token} with {sizes[token]} features, token 0 with {sizes[0]}",
            "the same number of features in every token",
            "for sequences of sequences convert column.flatten() and call regroup on the result",
        )
    return int(sizes[0])


def _as_tensor(numbers: Any) -> Tensor:
    import pyarrow as pa

    kind = numbers.type
    if pa.types.is_boolean(kind):
        return torch.from_numpy(np.array(numbers.to_numpy(zero_copy_only=False)))
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ArgumentTypeError("column", f"lists of {kind}", _ALLOWED, "encode them as numbers")
    if len(numbers) == 0:
        return torch.from_numpy(np.empty(0, kind.to_pandas_dtype()))
    # DLPack shares the buffer; torch.from_numpy would too, with a warning that it is read-only.
    return torch.from_dlpack(numbers)


def _refuse_nulls(array: Any, what: str) -> None:
    if array.null_count:
        first = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ArgumentError(
            "column",
            f"null in {what} {first} ({array.null_count} in all)",
            "a column without nulls",
            "drop or fill them first: pyarrow.compute.drop_null or fill_null",
        )
