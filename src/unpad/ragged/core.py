"""What a ragged batch is: values and offsets, and what describes and compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged.lengths import Integers, as_lengths, as_offsets, offsets_of

if TYPE_CHECKING:
    from typing_extensions import Self


class Core:
    """Values [T, ...] and offsets [B+1]; the base of the parts that make up `Ragged`."""

    values: Tensor
    offsets: Tensor

    def __init__(self, values: Tensor, offsets: Integers) -> None:
        _check_values(values)
        checked = as_offsets(offsets, len(values))
        self.values = values
        # The caller may go on changing a tensor of its own; what was converted is a copy already.
        self.offsets = checked.clone() if _needs_no_conversion(offsets) else checked

    @classmethod
    def _trusted(cls, values: Tensor, offsets: Tensor) -> Self:
        """Build from offsets that are known to fit the values, without checking them again."""
        ragged = cls.__new__(cls)
        ragged.values = values
        ragged.offsets = offsets
        return ragged

    @classmethod
    def from_lengths(cls, values: Tensor, lengths: Integers) -> Self:
        """Group the tokens of `values` [T, ...] into sequences of these lengths; no copy.

        This is the way up a level: the vectors of T words become the tokens of B sentences.

        Args:
            values: [T, ...], the sequences end to end.
            lengths: [B], adding up to T; a length of 0 is an empty sequence.

        Raises:
            ArgumentError: the lengths do not add up to T, or one is negative.

        Gradients flow through `values`.

        >>> from unpad.ragged import Ragged
        >>> Ragged.from_lengths(torch.tensor([1., 2., 3.]), [2, 0, 1]).to_list()
        [tensor([1., 2.]), tensor([]), tensor([3.])]
        """
        checked = as_lengths(lengths)
        total = sum(checked.tolist())  # a tensor's sum of huge ones would wrap around
        if isinstance(values, Tensor) and values.dim() > 0 and total != len(values):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                "lengths",
                f"lengths that add up to {total}",
                f"lengths that add up to {len(values)}, the number of tokens in `values`",
                "leave out pads, or use Ragged.from_padded for a padded tensor",
            )
        _check_values(values)
        return cls._trusted(values, offsets_of(checked))

    # What it is --------------------------------------------------------------------------------

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each sequence, int64 CPU [B].

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).lengths
        tensor([2, 0, 1])
        """
        return self.offsets.diff()

    @property
    def batch_size(self) -> int:
        """The number of sequences, B; `len(ragged)` is the same.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).batch_size
        3
        """
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sequences, T.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).num_tokens
        3
        """
        return self.values.shape[0]

    @property
    def max_length(self) -> int:
        """The length of the longest sequence; 0 for an empty batch.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).max_length
        2
        """
        return int(self.lengths.max()) if self.batch_size else 0

    @property
    def feature_shape(self) -> torch.Size:
        """The shape of one token's features, without the token dimension.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).feature_shape
        torch.Size([4])
        """
        return self.values.shape[1:]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """(B, None, *features): the time dimension has no single size.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).shape
        (3, None, 4)
        """
        return (self.batch_size, None, *self.feature_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).dtype
        torch.float32
        """
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device of the values; the offsets stay on the CPU.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).device
        device(type='cpu')
        """
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        """Whether the values require a gradient.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3, 4), [0, 2, 2, 3]).requires_grad
        False
        """
        return self.values.requires_grad

    def __len__(self) -> int:
        return self.batch_size

    def __repr__(self) -> str:
        shown = self.lengths[:8].tolist()
        lengths = str(shown) if self.batch_size <= 8 else str(shown)[:-1] + ", ...]"
        dtype = str(self.dtype).removeprefix("torch.")
        where = "" if self.device.type == "cpu" else f", device={self.device}"
        grad = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"{type(self).__name__}({self.batch_size} sequences, {self.num_tokens} tokens, "
            f"features={list(self.feature_shape)}, {dtype}{where}, lengths={lengths}{grad})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        values = self.values
        # torch pickles a view with all of its storage; a few rows must not carry the whole batch.
        if not values.requires_grad and values.nbytes < values.untyped_storage().nbytes():
            values = values.clone()
        return type(self), (values, self.offsets)

    # The same sequences with other values ------------------------------------------------------

    def with_values(self, values: Tensor) -> Self:
        """Return a batch of the same lengths with other values [T, ...].

        Raises ArgumentError when the number of tokens differs. No copy; gradients flow.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3), [0, 2, 3]).with_values(torch.tensor([1, 2, 3])).to_list()
        [tensor([1, 2]), tensor([3])]
        """
        if not isinstance(values, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(
                "values", values, "a tensor [T, ...]", "return a tensor from the function"
            )
        if values.dim() == 0 or values.shape[0] != self.values.shape[0]:
            raise ArgumentError(
                "values",
                f"a tensor of shape {list(values.shape)}",
                f"[{self.num_tokens}, ...]: one row for each token of the batch",
                "keep the token dimension first and whole",
            )
        return self._trusted(values, self.offsets)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to the values [T, ...]; it must keep the token dimension.

        The function sees the tokens of all sequences end to end, so it must treat each token by
        itself; Unpad cannot check that. An empty batch calls it with T = 0. Gradients flow.

        Raises:
            ArgumentError: the result does not have T rows.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([[1., 2.], [3., 4.]]), [0, 2]).map(lambda v: v.sum(-1)).values
        tensor([3., 7.])
        """
        return self.with_values(function(self.values))

    # Comparing ---------------------------------------------------------------------------------

    def same_lengths(self, other: Core) -> bool:
        """Say whether two batches have the same lengths, row by row.

        >>> from unpad.ragged import Ragged
        >>> a, b = Ragged(torch.zeros(3), [0, 2, 3]), Ragged(torch.zeros(3), [0, 1, 3])
        >>> a.same_lengths(b)
        False
        """
        return self.offsets is other.offsets or torch.equal(self.offsets, other.offsets)

    def equal(self, other: Core) -> bool:
        """Say whether lengths and values are the same, bit for bit (a NaN equals nothing).

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.zeros(3), [0, 2, 3]).equal(Ragged(torch.zeros(3), [0, 1, 3]))
        False
        """
        return self.same_lengths(other) and torch.equal(self.values, other.values)

    def allclose(
        self, other: Core, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Say whether lengths are the same and values agree within tolerances.

        >>> from unpad.ragged import Ragged
        >>> a = Ragged(torch.ones(3), [0, 2, 3])
        >>> a.allclose(a.with_values(a.values + 1e-9))
        True
        """
        if not self.same_lengths(other) or self.values.shape != other.values.shape:
            return False
        return torch.allclose(self.values, other.values, rtol, atol, equal_nan)


def _needs_no_conversion(offsets: Integers) -> bool:
    """Whether `as_offsets` gave back the memory it was given (inside torch.func none is told)."""
    if not isinstance(offsets, Tensor):
        return False
    return offsets.dtype is torch.int64 and offsets.device.type == "cpu"


def _check_values(values: object) -> None:
    if not isinstance(values, Tensor):
        raise ArgumentTypeError(
            "values", values, "a tensor [T, ...]", "use Ragged.from_list for a list of rows"
        )
    if values.dim() == 0:
        raise ArgumentError(
            "values", values, "a tensor [T, ...], tokens first", "use values.reshape(1)"
        )
