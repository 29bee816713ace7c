"""Which rows have too few steps for their labels."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from unpad.ctc.arguments import as_labels
from unpad.errors import ArgumentError
from unpad.ragged import Ragged, as_lengths
from unpad.ragged.lengths import rows_of

CHOICES = ("error", "warn", "skip")
_MOST_ROWS = 16


def ctc_unalignable(lengths: Any, labels: Any) -> Tensor:
    """Return the rows whose labels do not fit into their steps, int64 [N], in ascending order.

    A row of n labels needs n steps, and one more for each label that equals the one before it: a
    blank must stand between them.

    Args:
        lengths: [B], the number of steps of each row; or the Ragged logits themselves.
        labels: a Ragged of integers, or a list with a row of integers for each sequence.

    Raises:
        ArgumentError, ArgumentTypeError: lengths or labels that are none, or not as many.

    A row without labels fits into any length, 0 included. No gradient.

    >>> ctc_unalignable([3, 3, 0], [[1, 1, 2], [1, 2, 3], []])
    tensor([0])
    """
    ragged = as_labels(labels, "labels")
    given = lengths.lengths if isinstance(lengths, Ragged) else lengths
    steps = as_lengths(given, batch_size=len(ragged))
    return (required_steps(ragged) > steps).nonzero().flatten()


def required_steps(labels: Ragged, *, merge_repeated: bool = True) -> Tensor:
    """Return the fewest steps [B] that each row of labels can be aligned with."""
    if not merge_repeated:
        return labels.lengths
    rows = rows_of(labels.offsets)
    repeats = (labels.values[1:] == labels.values[:-1]) & (rows[1:] == rows[:-1])
    return labels.lengths + torch.bincount(rows[1:][repeats], minlength=len(labels))


def report(rows: Tensor, why: str, unalignable: str) -> None:
    """Report rows that cannot be aligned, as the caller chose: an error, a warning, nothing."""
    if len(rows) == 0 or unalignable == "skip":
        return
    listed = ", ".join(map(str, rows[:_MOST_ROWS].tolist()))
    more = f" and {len(rows) - _MOST_ROWS} more" if len(rows) > _MOST_ROWS else ""
    found = f"row{'s' * (len(rows) > 1)} {listed}{more} that cannot be aligned: {why}"
    if unalignable == "warn":
        # The caller: past this, the rows' losses, ctc_loss and its wrapper for torch.compile.
        warnings.warn(f"ctc_loss skips {found}", RuntimeWarning, stacklevel=5)
        return
    raise ArgumentError(
        "labels",
        found,
        "labels that some path through the logits spells",
        'drop these rows, or skip them (unalignable="skip"; in unpad.tf1.ctc_loss '
        "ignore_longer_outputs_than_inputs=True): loss 0, no gradient",
    )


def too_few_steps(row: int, required: Tensor, lengths: Tensor) -> str:
    """Say by how much the first of the reported rows is too short."""
    return f"row {row} has {int(lengths[row])} steps and needs {int(required[row])}"
