"""Other sequences over the same tokens: windows in time, episode borders, levels, repeats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged.core import Core
from unpad.ragged.lengths import Integers, as_integers, as_lengths, offsets_of, ranges, spread
from unpad.ragged.select import Selection

if TYPE_CHECKING:
    from typing_extensions import Self


class Regrouping(Selection):
    """The part of `Ragged` that draws the borders of sequences anew."""

    def chunks(self, steps: int) -> Iterator[Self]:
        """Walk over the batch in windows of time, for truncated back-propagation.

        Every window has all B rows, in the same order; a row that has ended has length 0 in it, so
        its state is carried through unchanged.

        Args:
            steps: the window's length k; window i holds the steps i*k to (i+1)*k - 1 of each row.

        Returns:
            an iterator of ceil(max_length / k) batches; none when there is no token.

        Raises:
            ArgumentError: fewer than one step.

        Gradients flow to the values. `Ragged.cat(windows, dim=1)` puts the windows back together.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.tensor([1, 2, 3, 4]), [0, 3, 4])
        >>> [window.to_list() for window in ragged.chunks(2)]
        [[tensor([1, 2]), tensor([4])], [tensor([3]), tensor([], dtype=torch.int64)]]
        """
        if isinstance(steps, bool) or not isinstance(steps, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError("steps", steps, "an integer", "pass a whole number of steps")
        if steps < 1:
            raise ArgumentError("steps", steps, "at least 1", "pass the window's length in steps")
        longest = self.max_length
        width = min(steps, longest)  # "all of it" may be any number, and torch's have 64 bits
        return (self._window(begin, width) for begin in range(0, longest, max(1, width)))

    def _window(self, begin: int, steps: int) -> Self:
        offsets = offsets_of((self.lengths - begin).clamp(0, steps))
        return self._gather(ranges(self.offsets[:-1] + begin, offsets), offsets)

    def split_at(self, resets: Core | Integers | list[bool]) -> Self:
        """Start a new sequence wherever an episode ends: a reset is one more offset. No copy.

        Args:
            resets: where new sequences start: a bool batch of the same lengths, bool values [T],
                or integers: positions 0 to T - 1 of tokens in `values`.

        Returns:
            a batch over the same values with the old borders and the new ones. A reset at a
            sequence's first token changes nothing; empty sequences stay.
            `pieces.with_offsets_of(ragged)` undoes it.

        Raises:
            ArgumentTypeError: floats. ArgumentError: other lengths, a position outside.

        Gradients flow through the values.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.tensor([1, 2, 3, 4]), [0, 3, 4])
        >>> ragged.split_at(torch.tensor([False, True, False, True])).lengths
        tensor([1, 2, 1])
        >>> ragged.split_at([2]).lengths
        tensor([2, 1, 1])
        """
        positions = self._reset_positions(resets)
        fresh = positions[~torch.isin(positions, self.offsets)].unique()
        return self._trusted(self.values, torch.cat([self.offsets, fresh]).sort().values)

    def _reset_positions(self, resets: Any) -> Tensor:
        if isinstance(resets, list) and resets:
            entries = cast("list[Any]", resets)
            if all(isinstance(entry, bool) for entry in entries):
                resets = torch.tensor(entries, device="cpu")
        if isinstance(resets, Core) or (isinstance(resets, Tensor) and resets.dtype == torch.bool):
            return self._token_flags(resets, "resets").nonzero().flatten()
        positions = as_integers(resets, argument="resets")
        if bool(((positions < 0) | (positions >= self.num_tokens)).any()):
            raise ArgumentError(
                "resets",
                resets,
                f"positions from 0 to {self.num_tokens - 1}, counted over all tokens",
                "for one flag a token pass bools: resets != 0",
            )
        return positions

    def with_offsets_of(self, other: Core) -> Self:
        """Group these tokens as another batch of as many tokens does; no copy. Gradients flow.

        Raises:
            ArgumentError: another number of tokens.

        >>> from unpad.ragged import Ragged
        >>> ragged = Ragged(torch.tensor([1, 2, 3]), [0, 2, 3])
        >>> ragged.split_at([1]).with_offsets_of(ragged).equal(ragged)
        True
        """
        if other.num_tokens != self.num_tokens:
            raise ArgumentError(
                "other",
                f"a batch of {other.num_tokens} tokens",
                f"a batch of {self.num_tokens} tokens",
                "pass the batch that these tokens came from",
            )
        return self._trusted(self.values, other.offsets)

    def regroup(self, lengths: Core | Integers) -> Self:
        """Join neighbouring rows: characters in words become characters in sentences. No copy.

        Args:
            lengths: how many rows make each new row, adding up to B; or a batch with one token for
                each row here (the sentences whose tokens are these words).

        Returns:
            a batch of len(lengths) rows over the same values. 0 rows make an empty sequence.

        Raises:
            ArgumentError: the lengths do not add up to B.

        To go up a level instead, one vector a word, use `from_lengths(words.last(), lengths)`.
        Gradients flow through the values.

        >>> from unpad.ragged import Ragged
        >>> characters = Ragged.from_list([torch.tensor([1, 2]), torch.tensor([3]), []])
        >>> characters.regroup([2, 0, 1]).lengths
        tensor([3, 0, 0])
        """
        groups = lengths.lengths if isinstance(lengths, Core) else as_lengths(lengths)
        if int(groups.sum()) != self.batch_size:
            raise ArgumentError(
                "lengths",
                f"lengths that add up to {int(groups.sum())}",
                f"lengths that add up to {self.batch_size}, the number of rows",
                "count the rows, not their tokens",
            )
        return self._trusted(self.values, self.offsets[offsets_of(groups)])

    @classmethod
    def repeat_like(cls, rows: Tensor, lengths: Core | Integers) -> Self:
        """Repeat a vector a sequence at every step of its sequence.

        Args:
            rows: [B, *features], one a sequence (a code to decode from, say).
            lengths: [B], or a batch whose lengths to take.

        Returns:
            a batch of these lengths whose tokens are copies of their row.

        Raises:
            ArgumentError, ArgumentTypeError: see `as_lengths`; or rows has no batch dimension.

        The gradient of a row is the sum over its tokens; 0 for an empty sequence.

        >>> from unpad.ragged import Ragged
        >>> Ragged.repeat_like(torch.tensor([[1.], [2.]]), [2, 0]).to_list()
        [tensor([[1.],
                [1.]]), tensor([], size=(0, 1))]
        """
        if not isinstance(rows, Tensor) or rows.dim() == 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError("rows", rows, "a tensor [B, *features]", "one row a sequence")
        counts = lengths.lengths if isinstance(lengths, Core) else lengths
        offsets = offsets_of(as_lengths(counts, batch_size=len(rows)))
        tokens = spread(torch.arange(len(rows), device="cpu"), offsets)
        return cls._trusted(rows.index_select(0, tokens.to(rows.device)), offsets)
