"""Rows: indexing, joining and cutting batches."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError
from unpad.ragged.core import Core
from unpad.ragged.lengths import Integers, as_integers, offsets_of, ranges

if TYPE_CHECKING:
    from typing_extensions import Self


class Selection(Core):
    """The part of `Ragged` that picks, joins and cuts rows."""

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice | Integers | Sequence[bool]) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        """Pick rows: an int gives a tensor, anything else a batch.

        Args:
            index: an int (negative from the end), a slice, integers [N], or a bool mask [B].

        Returns:
            for an int, the sequence [length, *features], a view; else a batch of the rows in the
            order asked for (a slice with step 1 is a view).

        Raises:
            RowIndexError: a row that is not there.
            ArgumentError: a mask of another size.
            ArgumentTypeError: any other index, tuples included.

        Gradients flow to the rows picked. An empty selection is an empty batch.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.tensor([1, 2, 3]), [0, 2, 2, 3])
        >>> ragged[0], ragged[-1]
        (tensor([1, 2]), tensor([3]))
        >>> ragged[ragged.lengths > 0].lengths
        tensor([2, 1])
        """
        if isinstance(index, slice):
            return self._slice(index)
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            raise ArgumentTypeError(
                "index",
                index,
                "one index over rows",
                "index features with ragged.map(lambda values: values[:, ...])",
            )
        flags = _as_flags(index)
        if flags is not None:
            return self._select(self._rows_where(flags))
        if isinstance(index, (list, np.ndarray)) or (isinstance(index, Tensor) and index.dim()):
            return self._select(as_integers(cast(Integers, index), argument="index"))
        return self._row(index)

    def __iter__(self) -> Iterator[Tensor]:
        lengths: list[int] = self.lengths.tolist()
        return iter(self.values.split(lengths) if lengths else ())

    def __getitems__(self, rows: list[int]) -> list[Self]:
        """Give a DataLoader all rows of a batch at once: the batch is a dataset of its rows."""
        return [self[rows]]

    def _row(self, index: Any) -> Tensor:
        try:
            row = operator.index(index)
        except TypeError:
            raise ArgumentTypeError(
                "index",
                index,
                "an int, a slice, integers [N] or a bool mask [B]",
                "convert it to one of these",
            ) from None
        if not -self.batch_size <= row < self.batch_size:
            raise self._no_row(row)
        row %= self.batch_size
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def _slice(self, index: slice) -> Self:
        begin, end, step = index.indices(self.batch_size)
        if step != 1:
            return self._select(
                torch.arange(self.batch_size, device="cpu")[list(range(begin, end, step))]
            )
        offsets = self.offsets[begin : max(begin, end) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return self._trusted(self.values[first:last], offsets - first)

    def _rows_where(self, flags: Tensor) -> Tensor:
        if flags.shape != (self.batch_size,):
            raise ArgumentError(
                "index",
                f"a mask of shape {list(flags.shape)}",
                f"a mask of shape [{self.batch_size}], one entry a row",
                "to drop tokens instead of rows, use ragged.keep(mask)",
            )
        return flags.cpu().nonzero().flatten()

    def _in_range(self, rows: Tensor) -> Tensor:
        size = self.batch_size
        outside = (rows < -size) | (rows >= size)
        if bool(outside.any()):
            raise self._no_row(int(rows[outside][0]))
        return torch.where(rows < 0, rows + size, rows)

    def _no_row(self, row: int) -> RowIndexError:
        size = self.batch_size
        allowed = f"{-size} to {size - 1}" if size else "nothing: the batch has no rows"
        return RowIndexError("index", row, allowed, "look at len(ragged)")

    def _select(self, rows: Tensor) -> Self:
        rows = self._in_range(rows)
        offsets = offsets_of(self.lengths[rows])
        return self._gather(ranges(self.offsets[:-1][rows], offsets), offsets)

    def _gather(self, tokens: Tensor, offsets: Tensor) -> Self:
        """Build a batch of these tokens of this one."""
        return self._trusted(self.values.index_select(0, tokens.to(self.device)), offsets)

    @overload
    def index_select(self, dim: int, index: Integers, /) -> Self: ...
    @overload
    def index_select(self, index: Integers, /) -> Self: ...
    def index_select(self, *arguments: Any) -> Self:
        """Pick rows by integers [N], in that order, with repeats: `index_select(index)`.

        torch's form `index_select(0, index)` is the same. Errors and gradients as for indexing.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1, 2, 3]), [0, 2, 3]).index_select([1, 1]).to_list()
        [tensor([3]), tensor([3])]
        """
        *dims, index = arguments
        if dims not in ([], [0]):
            raise ArgumentError(
                "dim", dims, "0, the rows", "pick features with ragged.map(lambda values: ...)"
            )
        return self._select(as_integers(index, argument="index"))

    def keep(self, mask: Core | Tensor) -> Self:
        """Drop the tokens where the mask is false; all rows stay.

        Args:
            mask: bool values [T], or a bool batch of the same lengths.

        Raises:
            ArgumentTypeError: not bool. ArgumentError: other lengths.

        A row that loses all its tokens has length 0. The gradient of a dropped token is 0.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.tensor([1., -2., 3.]), [0, 2, 3])
        >>> ragged.keep(ragged.values > 0).lengths
        tensor([1, 1])
        """
        flags = self._token_flags(mask, "mask")
        before = torch.zeros(self.num_tokens + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(flags, 0, out=before[1:])
        return self._gather(flags.nonzero().flatten(), before[self.offsets])

    def _token_flags(self, flags: Core | Tensor, argument: str) -> Tensor:
        """Check one flag a token and return them as a bool CPU tensor [T]."""
        if isinstance(flags, Core):
            if not self.same_lengths(flags):
                raise ArgumentError(
                    argument,
                    f"a batch of lengths {flags.lengths.tolist()}",
                    f"the lengths {self.lengths.tolist()} of this batch",
                    "build it with ragged.with_values(flags)",
                )
            flags = flags.values
        if flags.dtype != torch.bool:
            raise ArgumentTypeError(
                argument, f"dtype {flags.dtype}", "bool", f"compare it with 0: {argument} != 0"
            )
        if flags.shape != (self.num_tokens,):
            raise ArgumentError(
                argument,
                f"flags of shape {list(flags.shape)}",
                f"[{self.num_tokens}], one flag a token",
                "give one flag for each token, sequences end to end",
            )
        return flags.cpu()

    @classmethod
    def cat(cls, batches: Sequence[Core], dim: int = 0) -> Self:
        """Join batches: rows under rows (dim 0), in time (dim 1), or features (dim < 0).

        Args:
            batches: at least one. dim 0 needs the same features; dim 1 the same number of rows:
                row i of the result is row i of each, one after the other (what undoes `chunks`);
                a negative dim joins features of batches of equal lengths.

        Raises:
            ArgumentTypeError: something else than a list of batches.
            ArgumentError: an empty list, or batches that do not fit.

        Gradients flow to every batch. `torch.cat` does the same.

        >>> from unpad.ragged import Ragged
        >>> a, b = Ragged(torch.tensor([1, 2]), [0, 1, 2]), Ragged(torch.tensor([3]), [0, 0, 1])
        >>> Ragged.cat([a, b]).lengths
        tensor([1, 1, 0, 1])
        >>> Ragged.cat([a, b], dim=1).to_list()
        [tensor([1]), tensor([2, 3])]
        """
        batches = _as_batches(batches)
        if dim < 0:
            return cls._cat_features(batches, dim)
        if dim > 1:
            raise ArgumentError(
                "dim", dim, "0 (rows), 1 (time) or negative (features)", "count features from -1"
            )
        _check_same_features(batches)
        if dim == 0:
            lengths = torch.cat([batch.lengths for batch in batches])
            return cls._trusted(torch.cat([batch.values for batch in batches]), offsets_of(lengths))
        return cls._cat_time(batches)

    @classmethod
    def _cat_features(cls, batches: Sequence[Core], dim: int) -> Self:
        first = batches[0]
        if any(not first.same_lengths(batch) for batch in batches):
            raise ArgumentError(
                "batches",
                [batch.lengths.tolist() for batch in batches],
                "batches of equal lengths, row by row",
                "join rows with dim=0 or time with dim=1",
            )
        if -dim >= min(batch.values.dim() for batch in batches):
            raise ArgumentError(
                "dim",
                dim,
                f"a feature dimension of features {list(first.feature_shape)}",
                "add a feature dimension: ragged.map(lambda values: values.unsqueeze(-1))",
            )
        return cls._trusted(torch.cat([batch.values for batch in batches], dim), first.offsets)

    @classmethod
    def _cat_time(cls, batches: Sequence[Core]) -> Self:
        size = batches[0].batch_size
        if any(batch.batch_size != size for batch in batches):
            raise ArgumentError(
                "batches",
                [batch.batch_size for batch in batches],
                "the same number of rows in every batch",
                "join rows with dim=0",
            )
        rows = cls.cat(batches)
        # Row i of the result is row i of every batch: pieces i, B + i, 2 B + i, ...
        order = torch.arange(len(rows), device="cpu").reshape(len(batches), size).T.flatten()
        lengths = rows.lengths.reshape(len(batches), size).sum(0)
        return cls._trusted(rows._select(order).values, offsets_of(lengths))

    def chunk(self, chunks: int) -> list[Self]:
        """Cut the rows into at most this many batches of equal size, as `torch.chunk` does; views.

        An empty batch gives this many empty ones.

        Raises:
            ArgumentError: fewer than one chunk.

        >>> from unpad.ragged import Ragged
        >>> [len(part) for part in Ragged(torch.zeros(3), [0, 1, 2, 3]).chunk(2)]
        [2, 1]
        """
        if chunks < 1:
            raise ArgumentError("chunks", chunks, "at least 1", "use 1 to keep the batch whole")
        parts = torch.arange(self.batch_size, device="cpu").chunk(chunks)
        ends = itertools.accumulate(len(part) for part in parts)
        return [self[end - len(part) : end] for part, end in zip(parts, ends, strict=True)]


def _as_flags(index: Any) -> Tensor | None:
    """Return a bool index as a tensor, None for an index of integers."""
    if isinstance(index, Tensor):
        return index if index.dtype == torch.bool else None
    if isinstance(index, np.ndarray) and index.dtype == np.bool_:
        return torch.from_numpy(np.array(index))
    if isinstance(index, list) and index:
        entries = cast("list[object]", index)
        if all(isinstance(entry, (bool, np.bool_)) for entry in entries):
            return torch.tensor([bool(entry) for entry in entries], device="cpu")
    return None


def _as_batches(batches: Any) -> list[Core]:
    if isinstance(batches, Core) or not isinstance(batches, (list, tuple)):
        raise ArgumentTypeError(
            "batches", batches, "a list of Ragged batches", "wrap them in a list: [a, b]"
        )
    found = list(cast("Sequence[Any]", batches))
    if not found:
        raise ArgumentError("batches", found, "at least one batch", "start from an empty batch")
    for batch in found:
        if not isinstance(batch, Core):
            raise ArgumentTypeError(
                "batches",
                batch,
                "Ragged batches only",
                "convert it with Ragged.from_list or Ragged.from_padded",
            )
    return found


def _check_same_features(batches: Sequence[Core]) -> None:
    first = batches[0].feature_shape
    for batch in batches:
        if batch.feature_shape != first:
            raise ArgumentError(
                "batches",
                f"features {list(batch.feature_shape)}",
                f"features {list(first)}, as in the first batch",
                "bring them to the same features first",
            )
