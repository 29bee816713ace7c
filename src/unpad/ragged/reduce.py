"""One vector a sequence: last, sum, mean, max; and the sequences read backwards.

No Python loop over rows and no padding: each is a gather or a scatter over the tokens, and the
gradients are dense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unpad.errors import ArgumentTypeError
from unpad.ragged.lengths import rows_of, spread
from unpad.ragged.select import Selection

if TYPE_CHECKING:
    from typing_extensions import Self


class Reduction(Selection):
    """The part of `Ragged` that reduces over time."""

    def last(self, *, fill: float = 0.0) -> Tensor:
        """Return the last token of each sequence: [B, *features].

        Args:
            fill: what an empty sequence gives.

        The gradient goes to the last tokens and is dense; an empty sequence has none.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1., 2., 3.]), [0, 2, 2, 3]).last()
        tensor([2., 0., 3.])
        """
        rows = self.lengths.nonzero().flatten().to(self.device)
        ends = (self.offsets[1:] - 1).to(self.device)
        return self._filled(fill).index_copy(0, rows, self.values.index_select(0, ends[rows]))

    def first(self, *, fill: float = 0.0) -> Tensor:
        """Return the first token of each sequence: [B, *features]; `fill` for an empty one.

        The gradient goes to the first tokens and is dense.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1., 2., 3.]), [0, 2, 2, 3]).first()
        tensor([1., 0., 3.])
        """
        rows = self.lengths.nonzero().flatten().to(self.device)
        starts = self.offsets[:-1].to(self.device)
        return self._filled(fill).index_copy(0, rows, self.values.index_select(0, starts[rows]))

    def sum(self) -> Tensor:
        """Return the sum over time of each sequence: [B, *features]; 0 for an empty one.

        Half precision is summed in float32; integers and bools in int64. The gradient of a sum
        reaches each of its tokens.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1., 2., 3.]), [0, 2, 2, 3]).sum()
        tensor([3., 0., 3.])
        """
        return self._wide_sum().to(self._sum_dtype())

    def mean(self) -> Tensor:
        """Return the mean over time of each sequence: [B, *features]; 0 for an empty one.

        Only real tokens count. Half precision is summed in float32. The gradient of a mean reaches
        each of its tokens, divided by their number.

        Raises:
            ArgumentTypeError: integers or bools.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1., 2., 3.]), [0, 2, 2, 3]).mean()
        tensor([1.5000, 0.0000, 3.0000])
        """
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise ArgumentTypeError(
                "ragged", f"dtype {self.dtype}", "floating point values", "use ragged.float()"
            )
        totals = self._wide_sum()
        counts = self.lengths.clamp(min=1).to(totals.device, totals.dtype)
        counts = counts.reshape(-1, *[1] * len(self.feature_shape))
        return (totals / counts).to(self.dtype)

    def max(self, *, fill: float = 0.0) -> Tensor:
        """Return the largest value over time, feature by feature: [B, *features].

        Args:
            fill: what an empty sequence gives.

        A NaN wins. The gradient goes to the first token that holds the maximum, as in `torch.max`.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1., 2., 3.]), [0, 2, 2, 3]).max()
        tensor([2., 0., 3.])
        """
        largest = self._largest(fill)
        if not (self.requires_grad and torch.is_grad_enabled()):
            return largest
        rows = self.lengths.nonzero().flatten().to(self.device)
        tokens = self._first_equal(largest).index_select(0, rows)
        return self._filled(fill).index_copy(0, rows, self.values.gather(0, tokens))

    @torch.no_grad()
    def _largest(self, fill: float) -> Tensor:
        # torch's scatter has no "amax" for bools.
        values = self.values.to(torch.uint8) if self.dtype == torch.bool else self.values
        totals = values.new_full((self.batch_size, *self.feature_shape), fill)
        rows = self._per_feature(rows_of(self.offsets).to(self.device))
        largest = totals.scatter_reduce(0, rows, values, "amax", include_self=False)
        return largest.to(self.dtype)

    @torch.no_grad()
    def _first_equal(self, largest: Tensor) -> Tensor:
        """Return the first token [B, *features] that holds its row's maximum; T if none does."""
        rows = rows_of(self.offsets).to(self.device)
        found = (self.values == largest.index_select(0, rows)) | self.values.isnan()
        # Token numbers as float64, exact to 2**53: torch scatters int64 twelve times as slowly.
        tokens = torch.arange(self.num_tokens, dtype=torch.float64, device=self.device)
        candidates = torch.where(found, self._per_feature(tokens), float(self.num_tokens))
        first = torch.full_like(largest, self.num_tokens, dtype=torch.float64)
        return first.scatter_reduce(0, self._per_feature(rows), candidates, "amin").long()

    def _per_feature(self, per_token: Tensor) -> Tensor:
        """View one entry a token [T] as one for each of its features [T, *features]."""
        return per_token.reshape(-1, *[1] * len(self.feature_shape)).expand_as(self.values)

    def reverse(self) -> Self:
        """Turn each sequence around: row i's last token comes first. Twice gives the batch back.

        Each row is turned at its own end, so nothing of another row, and no pad, moves into it. An
        empty sequence stays empty. Gradients flow back to their tokens.

        >>> from unpad.ragged import Ragged
        >>> Ragged(torch.tensor([1, 2, 3]), [0, 2, 3]).reverse().to_list()
        [tensor([2, 1]), tensor([3])]
        """
        mirrored = self.offsets[:-1] + self.offsets[1:] - 1
        tokens = spread(mirrored, self.offsets) - torch.arange(self.num_tokens, device="cpu")
        return self._gather(tokens, self.offsets)

    def _filled(self, fill: float) -> Tensor:
        return self.values.new_full((self.batch_size, *self.feature_shape), fill)

    def _sum_dtype(self) -> torch.dtype:
        exact = self.dtype.is_floating_point or self.dtype.is_complex
        return self.dtype if exact else torch.int64

    def _wide_sum(self) -> Tensor:
        """Sum over time in a dtype that holds the sum of many tokens."""
        short = self.dtype in (torch.float16, torch.bfloat16)
        values = self.values.to(torch.float32 if short else self._sum_dtype())
        totals = values.new_zeros(self.batch_size, *self.feature_shape)
        # One token after the other: a row's sum does not depend on the rows around it.
        return totals.index_add(0, rows_of(self.offsets).to(self.device), values)
