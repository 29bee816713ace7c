"""What the loss and the decoders accept: ragged logits, ragged labels, the blank's class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unpad.cells.arguments import check_size
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.jit import refuse_tracing
from unpad.ragged import Ragged
from unpad.ragged.lengths import as_integers, offsets_of, rows_of


def check_logits(logits: Any, argument: str = "logits") -> Ragged:
    """Return logits as a Ragged [T, C] of float32 or float64; half precision is widened."""
    refuse_tracing(argument)
    if isinstance(logits, (list, tuple)):
        logits = Ragged.from_list(cast("Sequence[Any]", logits))
    if not isinstance(logits, Ragged):
        raise ArgumentTypeError(
            argument,
            logits,
            "a Ragged, or a list of tensors [length, C]",
            "use Ragged.from_padded(logits, lengths) for a padded tensor",
        )
    if len(logits.feature_shape) != 1 or logits.feature_shape[0] == 0:
        raise ArgumentError(
            argument,
            f"tokens of shape {list(logits.feature_shape)}",
            "tokens of shape [C], one number for each class, at least the blank",
            "give the output of a Linear with C classes",
        )
    if not logits.dtype.is_floating_point:
        raise ArgumentTypeError(
            argument, f"dtype {logits.dtype}", "floating point logits", "use logits.float()"
        )
    return logits.float() if logits.dtype.itemsize < 4 else logits


def check_blank(blank: Any, classes: int, argument: str = "blank") -> int:
    """Return the class of the blank, 0 to C - 1."""
    checked = check_size(argument, blank, least=0)
    if checked >= classes:
        raise ArgumentError(
            argument,
            blank,
            f"0 to {classes - 1}, a class of the logits",
            "name the class that stands for no label",
        )
    return checked


def check_labels(labels: Any, logits: Ragged, blank: int, argument: str = "labels") -> Ragged:
    """Return labels as a Ragged of int64 on the CPU, one row for each row of the logits."""
    ragged = as_labels(labels, argument)
    if len(ragged) != len(logits):
        raise ArgumentError(
            argument,
            f"{len(ragged)} rows",
            f"{len(logits)} rows, as many as the logits have",
            "give each sequence its row of labels; an empty row is []",
        )
    classes = logits.feature_shape[0]
    values = ragged.values
    wrong = ((values < 0) | (values >= classes) | (values == blank)).nonzero()
    if len(wrong):
        token = int(wrong[0])
        label, row = int(values[token]), int(rows_of(ragged.offsets)[token])
        is_blank = ", which is the blank" if label == blank else ""
        raise ArgumentError(
            argument,
            f"{label} in row {row}{is_blank}",
            f"0 to {classes - 1}, without the blank {blank}",
            "leave pads and blanks out of the labels, and check the number of classes",
        )
    return ragged


def as_labels(labels: Any, argument: str) -> Ragged:
    """Return a Ragged of integers, or a list of rows of integers, as int64 on the CPU."""
    if isinstance(labels, Ragged):
        values = as_integers(labels.values, argument=argument)
        return Ragged._trusted(values, labels.offsets)
    if not isinstance(labels, (list, tuple)):
        raise ArgumentTypeError(
            argument,
            labels,
            "a Ragged of integers, or a list with a row of integers for each sequence",
            "use Ragged.from_padded(labels, lengths) for a padded tensor",
        )
    rows = [
        _as_row(row, f"{argument}[{number}]")
        for number, row in enumerate(cast("Sequence[Any]", labels))
    ]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64, device="cpu")
    nothing = torch.zeros(0, dtype=torch.int64, device="cpu")
    return Ragged._trusted(torch.cat([nothing, *rows]), offsets_of(lengths))


def _as_row(row: Any, argument: str) -> Tensor:
    if not isinstance(row, (list, tuple, range, np.ndarray, Tensor)):
        raise ArgumentTypeError(
            argument, row, "a row of integers", "wrap one sequence's labels in a list of their own"
        )
    return as_integers(cast("Any", row), argument=argument)


def refuse_nan(log_probabilities: Tensor, logits: Ragged, argument: str = "logits") -> None:
    """Refuse logits that have no softmax: a NaN or +inf in a token, or nothing but -inf."""
    if log_probabilities.numel() == 0:
        return
    wrong = log_probabilities[:, 0].isnan()  # log softmax spreads it to every class
    if not bool(wrong.any()):
        return
    token = int(wrong.nonzero()[0])
    row = int(rows_of(logits.offsets)[token])
    raise ArgumentError(
        argument,
        f"NaN or inf at step {token - int(logits.offsets[row])} of row {row}",
        "logits that have a softmax",
        "look for the first operation that gives NaN: torch.autograd.set_detect_anomaly(True)",
    )
