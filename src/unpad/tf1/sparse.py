"""TensorFlow's sparse values: what labels come as, what decoders give, what gradients may be."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from unpad.cells.arguments import as_numbers
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged
from unpad.ragged.lengths import offsets_of, rows_of


class SparseTensor(NamedTuple):
    """A matrix by its entries, as TensorFlow gives labels and decoded paths.

    Attributes:
        indices: int64 [N, 2], the row and the column of each entry.
        values: [N].
        dense_shape: int64 [2].

    >>> ragged = SparseTensor(torch.tensor([[0, 0], [2, 0]]), torch.tensor([7, 8]), [3, 1])
    >>> sparse_of(to_ragged(ragged)).indices
    tensor([[0, 0],
            [2, 0]])
    """

    indices: Any
    values: Any
    dense_shape: Any


class IndexedSlices(NamedTuple):
    """A few rows of a tensor, as TensorFlow gives the gradient of a lookup; indices may repeat.

    Attributes:
        values: [N, ...], the rows.
        indices: int64 [N], where each row belongs.
        dense_shape: the shape of the whole tensor, or None.

    >>> IndexedSlices(torch.ones(1, 2), torch.tensor([4]), [9, 2]).indices
    tensor([4])
    """

    values: Any
    indices: Any
    dense_shape: Any = None


def is_sparse(given: Any) -> bool:
    """Whether this is a sparse tensor: torch's, ours, or anything with the same three parts."""
    if isinstance(given, Tensor):
        return given.layout == torch.sparse_coo
    return all(hasattr(given, part) for part in ("indices", "values", "dense_shape"))


def refuse_triple(given: Any, argument: str = "labels") -> None:
    """Refuse the parts of a sparse tensor as a plain tuple: TensorFlow 1 fed placeholders so."""
    if is_sparse(given) or not isinstance(given, (tuple, list)):
        return
    parts = cast("list[Any]", given)
    first = parts[0] if len(parts) == 3 else None
    pairs = isinstance(first, (Tensor, np.ndarray)) and first.ndim == 2 and first.shape[1] == 2
    if isinstance(first, (tuple, list)):
        rows = cast("list[Any]", first)
        pairs = bool(rows) and all(isinstance(row, (tuple, list)) and len(row) == 2 for row in rows)
    if pairs:
        raise ArgumentTypeError(
            argument,
            "three parts in a plain tuple or list",
            "unpad.tf1.SparseTensor, a Ragged or a list of rows",
            "name the parts: tf1.SparseTensor(indices, values, dense_shape)",
        )


def to_ragged(given: Any, argument: str = "labels") -> Ragged:
    """Return a sparse matrix of integers as a Ragged: each row's entries by column, gaps closed."""
    if isinstance(given, Tensor):
        given = SparseTensor(given._indices().T, given._values(), given.shape)
    indices, values, shape = (
        as_numbers(f"{argument}.{name}", getattr(given, name)).cpu()
        for name in ("indices", "values", "dense_shape")
    )
    if (indices.numel() and (indices.dim() != 2 or indices.shape[1] != 2)) or len(shape) != 2:
        raise ArgumentError(
            argument,
            f"indices {list(indices.shape)} and dense_shape {shape.tolist()}",
            "indices [N, 2] and a dense_shape of two numbers, rows and columns",
            "give each value its row and column",
        )
    indices, rows = indices.reshape(-1, 2).to(torch.int64), int(shape[0])
    row, column = indices.unbind(1)
    outside = (row < 0) | (row >= rows) | (column < 0)
    if len(indices) != len(values) or bool(outside.any()):
        raise ArgumentError(
            argument,
            f"{len(indices)} indices {indices[:8].tolist()} for {len(values)} values",
            f"an index [row, column] for each value, rows from 0 to {rows - 1}",
            "check indices and dense_shape",
        )
    key = row * (int(column.max()) + 1 if len(column) else 1) + column
    order = key.argsort(stable=True)
    if bool((key[order].diff() == 0).any()):
        raise ArgumentError(argument, "an index twice", "each index once", "leave one out")
    lengths = torch.bincount(row, minlength=rows)
    return Ragged(values[order], offsets_of(lengths))


def sparse_of(ragged: Ragged) -> SparseTensor:
    """Return a Ragged as TensorFlow's sparse matrix, as wide as its longest row."""
    rows = rows_of(ragged.offsets)
    columns = torch.arange(ragged.num_tokens, device="cpu") - ragged.offsets[rows]
    return SparseTensor(
        torch.stack([rows, columns], 1),
        ragged.values,
        torch.tensor([len(ragged), ragged.max_length], device="cpu"),
    )


def slices_values(given: Any, argument: str) -> Tensor:
    """Return the numbers of a dense tensor, of IndexedSlices or of a sparse tensor, as they are."""
    if isinstance(given, Tensor):
        return given._values() if given.layout == torch.sparse_coo else given
    if all(hasattr(given, part) for part in ("values", "indices")):
        return cast("Tensor", given.values)
    raise ArgumentTypeError(
        argument, given, "a tensor, IndexedSlices, a sparse tensor or None", "leave others out"
    )


def with_values(given: Any, values: Tensor) -> Any:
    """Return what was given with other numbers in the same places."""
    if not isinstance(given, Tensor):
        return IndexedSlices(values, given.indices, getattr(given, "dense_shape", None))
    if given.layout != torch.sparse_coo:
        return values
    return torch.sparse_coo_tensor(
        given._indices(),
        values,
        given.shape,
        check_invariants=False,
        is_coalesced=given.is_coalesced(),
    )
