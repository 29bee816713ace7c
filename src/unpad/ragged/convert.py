"""To and from the forms that batches come in: lists, padded, masked, packed, nested."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged.core import Core
from unpad.ragged.lengths import (
    Integers,
    as_lengths,
    offsets_of,
    padded_positions,
    ranges,
    refuse_masked,
    spread,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class Conversion(Core):
    """The part of `Ragged` that converts to and from other containers."""

    @classmethod
    def from_list(cls, sequences: Iterable[Any], *, like: Tensor | None = None) -> Self:
        """Put sequences end to end.

        Args:
            sequences: tensors, NumPy arrays or lists of numbers, each [length, *features] with
                the same features. Length 0 is welcome: shape (0, *features), or just (0,).
            like: gives features, dtype and device to a list that holds no sequence or only
                shapeless empty ones; ignored otherwise.

        Returns:
            a batch of len(sequences) rows; mixed dtypes are promoted as `torch.cat` does.

        Raises:
            ArgumentTypeError: not a list of sequences.
            ArgumentError: a row whose features or device differ from the first row's.

        Gradients flow to every tensor of the list. The values are a copy.

        >>> from unpad.ragged import Ragged
        >>> Ragged.from_list([torch.zeros(2, 3), torch.zeros(0, 3)])
        Ragged(2 sequences, 2 tokens, features=[3], float32, lengths=[2, 0])
        """
        rows = _as_rows(sequences)
        lengths = as_lengths([len(row) for row in rows])
        shaped = [row for row in rows if not _is_shapeless(row)]
        if not shaped:
            shaped = [rows[0] if rows else torch.zeros(0)] if like is None else [like[:0]]
        _check_alike(rows, shaped[0])
        return cls._trusted(torch.cat(shaped), offsets_of(lengths))

    def to_list(self) -> list[Tensor]:
        """Return the sequences as tensors [length, *features]; views, gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1, 2, 3]), [0, 2, 2, 3]).to_list()
        [tensor([1, 2]), tensor([], dtype=torch.int64), tensor([3])]
        """
        if self.batch_size == 0:
            return []
        return list(self.values.split(self.lengths.tolist()))

    @classmethod
    def from_padded(
        cls, x: Tensor, lengths: Integers | None = None, *, batch_first: bool = True
    ) -> Self:
        """Take the real steps out of a padded batch; pads are never read.

        Args:
            x: [B, S, *features], or [S, B, *features] with `batch_first=False`.
            lengths: [B], each from 0 to S: list, tuple, NumPy array or integer tensor on any
                device. None means that every sequence has S steps.
            batch_first: which of the two forms `x` has.

        Raises:
            ArgumentTypeError, ArgumentError: see `as_lengths`; or x has fewer than two dimensions.

        The gradient of a pad is 0. No copy where every length is S and x is batch-major in memory.

        >>> from unpad.ragged import Ragged
        >>> Ragged.from_padded(torch.tensor([[1, 2, 9], [3, 9, 9]]), [2, 1]).values
        tensor([1, 2, 3])
        """
        batch_size, steps = _padded_shape(x, batch_first)
        if lengths is None:
            checked = as_lengths([steps] * batch_size)
        else:
            checked = as_lengths(lengths, batch_size=batch_size, max_length=steps)
        offsets = offsets_of(checked)
        # A transposed batch is flattened in the order that it has in memory: no copy of the pads.
        if not x.is_contiguous() and x.transpose(0, 1).is_contiguous():
            x, batch_first = x.transpose(0, 1), not batch_first
        flat = x.flatten(0, 1)
        if batch_first and int(offsets[-1]) == len(flat):
            return cls._trusted(flat, offsets)
        positions = padded_positions(offsets, steps, batch_first=batch_first)
        return cls._trusted(flat.index_select(0, positions.to(x.device)), offsets)

    def to_padded(
        self,
        *,
        total_length: int | None = None,
        value: float = 0.0,
        batch_first: bool = True,
    ) -> Tensor:
        """Return the batch padded behind each sequence.

        Args:
            total_length: the number of steps S; None takes the longest length.
            value: what the pads hold.
            batch_first: [B, S, *features] if true, else [S, B, *features].

        Raises:
            ArgumentError: `total_length` is shorter than the longest sequence.

        An empty sequence is a row of pads. Gradients flow from the real steps only.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1., 2., 3.]), [0, 2, 3]).to_padded(total_length=3, value=-1)
        tensor([[ 1.,  2., -1.],
                [ 3., -1., -1.]])
        """
        steps = self.max_length if total_length is None else total_length
        if steps < self.max_length:
            raise ArgumentError(
                "total_length",
                total_length,
                f"at least {self.max_length}, the longest sequence",
                "leave it out to pad to the longest, or shorten the sequences first",
            )
        positions = padded_positions(self.offsets, steps, batch_first=batch_first)
        flat = self.values.new_full((self.batch_size * steps, *self.feature_shape), value)
        flat = flat.index_copy(0, positions.to(self.device), self.values)
        shape = (self.batch_size, steps) if batch_first else (steps, self.batch_size)
        return flat.reshape(*shape, *self.feature_shape)

    @classmethod
    def from_mask(cls, x: Tensor, mask: Tensor, *, batch_first: bool = True) -> Self:
        """Keep the steps where the mask is true; pads and holes alike are skipped.

        A hole in the mask means that the step did not happen: [a, b, c] under [1, 0, 1] is the
        sequence [a, c].

        Args:
            x: [B, S, *features], or [S, B, *features] with `batch_first=False`.
            mask: bool, or integers 0 and 1, shaped like the first two dimensions of x.

        Raises:
            ArgumentTypeError: a mask of floats.
            ArgumentError: a mask of another shape, or with numbers other than 0 and 1.

        A row without a true step becomes an empty sequence. The gradient of a skipped step is 0.

        >>> from unpad.ragged import Ragged
        >>> Ragged.from_mask(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 1]])).values
        tensor([1, 3])
        """
        _padded_shape(x, batch_first)
        kept = _as_mask(mask, x)
        if not batch_first:
            kept, x = kept.transpose(0, 1), x.transpose(0, 1)
        rows, steps = kept.nonzero(as_tuple=True)
        offsets = offsets_of(kept.sum(1).cpu())
        flat = x.flatten(0, 1)
        positions = rows * kept.shape[1] + steps
        return cls._trusted(flat.index_select(0, positions.to(x.device)), offsets)

    @classmethod
    def from_packed(cls, packed: PackedSequence) -> Self:
        """Convert a `PackedSequence`; rows come in the order that they had before packing.

        Gradients flow. A packed sequence holds no empty rows.

        >>> from torch.nn.utils.rnn import pack_sequence
        >>> from unpad.ragged import Ragged
        >>> rows = [torch.tensor([1, 2]), torch.tensor([3, 4, 5])]
        >>> Ragged.from_packed(pack_sequence(rows, enforce_sorted=False)).to_list()
        [tensor([1, 2]), tensor([3, 4, 5])]
        """
        if not isinstance(packed, PackedSequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(
                "packed", packed, "a PackedSequence", "use from_padded or from_list instead"
            )
        sizes = packed.batch_sizes
        places = torch.arange(int(sizes[0]), device="cpu")
        if packed.unsorted_indices is not None:
            places = packed.unsorted_indices.cpu()
        # Row i of the sorted batch is alive while more than i rows are; the sizes never increase.
        lengths = torch.searchsorted(-sizes, -(places + 1), right=True)
        offsets = offsets_of(lengths)
        positions = _packed_positions(offsets, sizes, places)
        return cls._trusted(packed.data.index_select(0, positions.to(packed.data.device)), offsets)

    def to_packed(self) -> PackedSequence:
        """Return a `PackedSequence` that remembers the order of the rows. Gradients flow.

        Raises:
            ArgumentError: an empty batch or an empty sequence, which a PackedSequence cannot hold.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1, 2, 3]), [0, 1, 3]).to_packed().data
        tensor([2, 1, 3])
        """
        if self.batch_size == 0 or int(self.lengths.min()) == 0:
            raise ArgumentError(
                "ragged",
                f"lengths {self.lengths.tolist()}",
                "lengths of at least 1 and at least one row (torch's PackedSequence needs them)",
                "drop the empty rows first: ragged[ragged.lengths > 0]",
            )
        order = self.lengths.argsort(descending=True, stable=True)
        places = order.argsort()
        alive = torch.zeros(self.max_length + 1, dtype=torch.int64, device="cpu")
        alive.index_add_(0, self.lengths, torch.ones_like(self.lengths))
        sizes = self.batch_size - alive.cumsum(0)[:-1]
        positions = _packed_positions(self.offsets, sizes, places)
        source = torch.empty_like(positions).index_copy_(
            0, positions, torch.arange(len(positions), device="cpu")
        )
        data = self.values.index_select(0, source.to(self.device))
        return PackedSequence(data, sizes, order.to(self.device), places.to(self.device))

    @classmethod
    def from_nested(cls, nested: Tensor) -> Self:
        """Convert a nested tensor [B, (lengths), *features].

        The jagged layout shares its values: no copy (but where rows were narrowed). The strided
        layout is copied. Gradients flow.

        Raises:
            ArgumentTypeError: not a nested tensor.
            ArgumentError: jagged in a dimension other than the second.

        >>> from unpad.ragged import Ragged
        >>> rows = [torch.ones(2, 3), torch.ones(0, 3)]
        >>> nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
        >>> Ragged.from_nested(nested).lengths
        tensor([2, 0])
        """
        if not isinstance(nested, Tensor) or not nested.is_nested:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(
                "nested", nested, "a nested tensor", "use from_padded or from_list instead"
            )
        if nested.layout != torch.jagged:
            return cls.from_list(list(nested.unbind()))
        return cls._from_jagged(nested)

    @classmethod
    def _from_jagged(cls, nested: Any) -> Self:
        if nested._ragged_idx != 1:
            raise ArgumentError(
                "nested",
                f"a nested tensor that is ragged in dimension {nested._ragged_idx}",
                "ragged in dimension 1: [B, (lengths), *features]",
                "transpose it back first",
            )
        starts, lengths = nested.offsets().cpu().to(torch.int64), nested.lengths()
        values: Tensor = nested.values()
        if lengths is None:
            begin, end = int(starts[0]), int(starts[-1])
            whole = begin == 0 and end == len(values)
            return cls._trusted(values if whole else values[begin:end], starts - begin)
        offsets = offsets_of(lengths.cpu().to(torch.int64))
        positions = ranges(starts[: len(offsets) - 1], offsets)
        return cls._trusted(values.index_select(0, positions.to(values.device)), offsets)

    def to_nested(self) -> Tensor:
        """Return a nested tensor in the jagged layout over the same values; no copy.

        Gradients flow. Length 0 is kept.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.ones(2, 3), [0, 2, 2]).to_nested().is_nested
        True
        """
        return torch.nested.nested_tensor_from_jagged(
            self.values,
            self.offsets.to(self.device),
            min_seqlen=int(self.lengths.min()) if self.batch_size else 0,
            max_seqlen=self.max_length,
        )


def _as_rows(sequences: Iterable[Any]) -> list[Tensor]:
    single = isinstance(sequences, (Tensor, np.ndarray)) and sequences.ndim == 0
    if single or isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError(
            "sequences", sequences, "a list of sequences", "wrap a single sequence in a list"
        )
    rows = [_as_row(number, row) for number, row in enumerate(sequences)]
    for number, row in enumerate(rows):
        if row.dim() == 0:
            raise ArgumentError(
                "sequences",
                f"a single number in row {number}",
                "rows [length, *features]",
                "wrap one sequence in a list: from_list([sequence])",
            )
    return rows


def _as_row(number: int, row: Any) -> Tensor:
    if isinstance(row, Core):
        raise ArgumentTypeError(
            "sequences", f"a Ragged in row {number}", "single sequences", "use Ragged.cat(batches)"
        )
    steps = isinstance(row, (list, tuple)) and row and isinstance(row[0], np.ndarray)
    for part in cast("list[Any]", row) if steps else [row]:
        refuse_masked(part, f"sequences[{number}]")
    try:
        if isinstance(row, np.ndarray):
            return _from_array(cast("npt.NDArray[Any]", row))
        if isinstance(row, (list, tuple)) and row and isinstance(row[0], Tensor):
            return torch.stack(list(cast("list[Tensor]", row)))
        if isinstance(row, (list, tuple)) and row and isinstance(row[0], np.ndarray):
            return _from_array(np.stack(cast("list[npt.NDArray[Any]]", row)))
        return torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(
            "sequences",
            f"row {number}: {type(row).__name__}, which torch cannot read ({error})",
            "tensors, NumPy arrays or lists of numbers",
            "convert the row to a tensor [length, *features]",
        ) from error


def _from_array(array: npt.NDArray[Any]) -> Tensor:
    """Share an array where torch can; copy a read-only, reversed or byte-swapped one."""
    native = array.dtype.newbyteorder("=")
    return torch.as_tensor(np.require(array, native, requirements=["C", "W"]))


def _is_shapeless(row: Tensor) -> bool:
    """Say whether a row is an empty one of shape (0,), which says nothing about features."""
    return row.shape == (0,)


def _check_alike(rows: list[Tensor], first: Tensor) -> None:
    for number, row in enumerate(rows):
        if row.shape[1:] != first.shape[1:] and not _is_shapeless(row):
            raise ArgumentError(
                "sequences",
                f"features {list(row.shape[1:])} in row {number}",
                f"features {list(first.shape[1:])}, as in the first row",
                "give every row the shape [length, *features] with the same features",
            )
        if row.device != first.device:
            raise ArgumentError(
                "sequences",
                f"row {number} on {row.device}",
                f"{first.device}, where the first row is",
                "move the rows to one device",
            )


def _padded_shape(x: Tensor, batch_first: bool) -> tuple[int, int]:
    """Return (B, S) of a padded batch."""
    if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError("x", x, "a padded tensor", "convert it with torch.as_tensor")
    if x.dim() < 2:
        raise ArgumentError(
            "x",
            f"a tensor of shape {list(x.shape)}",
            "[B, S, *features], or [S, B, *features] with batch_first=False",
            "add the batch dimension: x.unsqueeze(0)",
        )
    return (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])


def _as_mask(mask: Tensor, x: Tensor) -> Tensor:
    kept = torch.as_tensor(mask)
    if kept.is_floating_point() or kept.is_complex():
        raise ArgumentTypeError("mask", mask, "bool, or integers 0 and 1", "use mask > 0.5")
    if kept.shape != x.shape[:2]:
        raise ArgumentError(
            "mask",
            f"a mask of shape {list(kept.shape)}",
            f"{list(x.shape[:2])}, the first two dimensions of x",
            "give one entry for each step of x, pads included",
        )
    if kept.dtype != torch.bool and bool(((kept != 0) & (kept != 1)).any()):
        raise ArgumentError("mask", mask, "bool, or integers 0 and 1", "use mask != 0")
    return kept.bool()


def _packed_positions(offsets: Tensor, sizes: Tensor, places: Tensor) -> Tensor:
    """Return where each token [T] lies in packed data, given each row's place in sorted order."""
    starts = offsets_of(sizes)[:-1]
    steps = ranges(torch.zeros_like(places), offsets)
    return starts[steps] + spread(places, offsets)
