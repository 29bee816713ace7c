"""The forms in which batches of sequences come, and the way back to each.

A layer opens its input into values and offsets, works on those, and closes the result into the form
that it was given: Ragged to Ragged, packed to packed, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from unpad.errors import ArgumentError, ArgumentTypeError, renamed
from unpad.jit import refuse_tracing
from unpad.ragged import Ragged, as_lengths

FORMS = (
    "a Ragged, a PackedSequence, a jagged nested tensor, a list of tensors [length, features], "
    "or a padded tensor with lengths"
)


@dataclass(slots=True)  # a frozen one takes four times as long to make
class Opened:
    """An input as values and offsets.

    Attributes:
        values: [T, ...], the tokens end to end.
        offsets: int64 [B + 1] on the CPU.
        close: makes new values [T, ...] into the form that the input had.
        batched: False for one sequence alone, whose states have no batch axis.
    """

    values: Tensor
    offsets: Tensor
    close: Callable[[Tensor], Any]
    batched: bool = True

    @property
    def batch_size(self) -> int:
        """Number of sequences, B."""
        return self.offsets.shape[0] - 1


def open_input(
    sequences: Any,
    lengths: Any,
    *,
    features: torch.Size,
    batch_first: bool,
    like: Callable[[], Tensor],
    argument: str = "input",
    lengths_argument: str = "lengths",
) -> Opened:
    """Open an input of any form.

    Args:
        sequences: what the caller gave.
        lengths: for a padded tensor alone; None: every sequence has all the steps.
        features: the shape of a token.
        batch_first: whether a padded tensor is [B, S, ...] or [S, B, ...].
        like: gives a tensor, of whose dtype and device a list of no sequences is.
        argument, lengths_argument: what an error calls the input and the lengths.

    Raises:
        ArgumentTypeError: none of the known forms.
        ArgumentError: wrong rank or features; lengths where they do not belong; bad lengths.
    """
    refuse_tracing(argument)
    if type(sequences) is Ragged and lengths is None and sequences.values.shape[1:] == features:
        return Opened(sequences.values, sequences.offsets, sequences.with_values)
    if isinstance(sequences, Tensor) and not sequences.is_nested:
        if sequences.layout != torch.strided:
            raise ArgumentTypeError(
                argument, f"a tensor of layout {sequences.layout}", FORMS, "use .to_dense()"
            )
        names = argument, lengths_argument
        opened = _open_tensor(sequences, lengths, len(features), batch_first, names)
    else:
        if lengths is not None:
            raise ArgumentError(
                lengths_argument,
                lengths,
                f"None: this {argument} knows its lengths",
                "leave it out",
            )
        opened = _open_ragged(sequences, features, like, argument)
    if opened.values.dim() == 1 and len(features) and isinstance(sequences, (list, tuple)):
        raise ArgumentError(
            argument,
            "a list whose items are rows of numbers",
            f"a list of sequences [length, {_plain(features)}]",
            "wrap one sequence in a list of its own, or give it as a tensor",
        )
    if opened.values.shape[1:] != features:
        raise ArgumentError(
            argument,
            f"tokens of {_shape(opened.values.shape[1:])}",
            f"tokens of {_shape(features)} (input_size)",
            "give the layer the input's width, or the input the layer's (check batch_first or "
            "time_major)",
        )
    return opened


def _shape(features: torch.Size) -> str:
    return f"{features[0]} features" if len(features) == 1 else f"shape {list(features)}"


def _plain(features: torch.Size) -> str:
    return ", ".join(map(str, features))


def _open_tensor(
    x: Tensor, lengths: Any, rank: int, batch_first: bool, names: tuple[str, str]
) -> Opened:
    if x.dim() == rank + 1:
        return _open_single(x, lengths, names)
    if x.dim() != rank + 2:
        padded = "[B, S, features]" if batch_first else "[S, B, features]"
        raise ArgumentError(
            names[0],
            f"a tensor of shape {list(x.shape)}",
            f"{padded}, or [S, features] for one sequence" if rank == 1 else f"rank {rank + 2}",
            "add or remove dimensions (check batch_first or time_major)",
        )
    batch, steps = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
    if lengths is None and batch_first:
        # Nothing to select: a view in, a view out.
        offsets = torch.arange(batch + 1, device="cpu") * steps
        shape = x.shape[:2]
        return Opened(x.flatten(0, 1), offsets, lambda values: values.unflatten(0, shape))
    if lengths is not None:
        lengths = as_lengths(lengths, batch_size=batch, max_length=steps, argument=names[1])
    ragged = Ragged.from_padded(x, lengths, batch_first=batch_first)
    return Opened(
        ragged.values,
        ragged.offsets,
        lambda values: ragged.with_values(values).to_padded(
            total_length=steps, batch_first=batch_first
        ),
    )


def _open_single(x: Tensor, lengths: Any, names: tuple[str, str]) -> Opened:
    if lengths is not None:
        raise ArgumentError(
            names[1],
            lengths,
            f"None where {names[0]} is one sequence",
            f"cut {names[0]} to its length, or add the batch dimension",
        )
    offsets = torch.tensor([0, len(x)], device="cpu")
    return Opened(x, offsets, lambda values: values, batched=False)


def _open_ragged(
    sequences: Any, features: torch.Size, like: Callable[[], Tensor], argument: str
) -> Opened:
    if isinstance(sequences, Ragged):
        return Opened(sequences.values, sequences.offsets, sequences.with_values)
    if isinstance(sequences, PackedSequence):
        return _open_packed(sequences)
    if isinstance(sequences, Tensor):
        return _open_nested(sequences)
    if isinstance(sequences, (list, tuple)):
        rows = cast("list[Any]", sequences)
        with renamed("sequences", argument):
            ragged = Ragged.from_list(rows, like=like().detach().new_empty((0, *features)))
        return Opened(
            ragged.values, ragged.offsets, lambda values: ragged.with_values(values).to_list()
        )
    remedy = "use torch.from_numpy" if isinstance(sequences, np.ndarray) else "use Ragged.from_list"
    raise ArgumentTypeError(argument, type(sequences).__name__, FORMS, remedy)


def _open_packed(packed: PackedSequence) -> Opened:
    places = Ragged.from_packed(packed._replace(data=torch.arange(len(packed.data), device="cpu")))
    tokens = torch.argsort(places.values).to(packed.data.device)
    values = packed.data.index_select(0, places.values.to(packed.data.device))
    return Opened(
        values,
        places.offsets,
        lambda values: packed._replace(data=values.index_select(0, tokens)),
    )


def _open_nested(nested: Tensor) -> Opened:
    ragged = Ragged.from_nested(nested)
    if nested.layout == torch.strided:
        return Opened(ragged.values, ragged.offsets, lambda v: _strided(ragged.with_values(v)))
    offsets = cast("Any", nested).offsets()
    if cast("Any", nested).lengths() is not None or not torch.equal(offsets.cpu(), ragged.offsets):
        return Opened(
            ragged.values, ragged.offsets, lambda values: ragged.with_values(values).to_nested()
        )

    def close(values: Tensor) -> Tensor:
        # The very offsets of the input: torch takes two nested tensors as alike by these alone.
        return torch.nested.nested_tensor_from_jagged(values, offsets)

    return Opened(ragged.values, ragged.offsets, close)


def _strided(ragged: Ragged) -> Tensor:
    return torch.nested.as_nested_tensor(ragged.to_list(), layout=torch.strided)
