"""What a softmax accepts: hidden rows in a tensor or a Ragged, targets in the same form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unpad.cells.arguments import check_like, check_number, is_number
from unpad.errors import ArgumentError, ArgumentTypeError, quoted
from unpad.jit import refuse_tracing
from unpad.ragged import Ragged

REDUCTIONS = ("mean", "sum", "none")
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Rows:
    """Hidden rows end to end [T, H], and the way back: [T, ...] to the form of the input."""

    values: Tensor
    close: Callable[[Tensor], Any]
    shape: torch.Size | None
    """Of the tensor without its features; None for a Ragged."""
    ragged: Ragged | None = None


def open_hidden(hidden: Any, weight: Tensor) -> Rows:
    """Return hidden [..., H] or Ragged [tokens, H] as rows."""
    refuse_tracing("hidden")
    values = hidden.values if isinstance(hidden, Ragged) else hidden
    if not isinstance(values, Tensor):
        raise ArgumentTypeError(
            "hidden",
            type(hidden).__name__,
            "a tensor [..., hidden_size], or a Ragged of such tokens",
            "use Ragged.from_list for a list, Ragged.from_packed for a PackedSequence",
        )
    size = weight.shape[1]
    least = 2 if isinstance(hidden, Ragged) else 1
    if values.dim() < least or values.shape[-1] != size:
        raise ArgumentError(
            "hidden",
            f"a tensor of shape {list(values.shape)}",
            f"[..., {size}], hidden_size last",
            "give the softmax the hidden rows' width, or project them first",
        )
    check_like("hidden", values, weight)
    shape, rows = values.shape[:-1], values.reshape(-1, size)
    if isinstance(hidden, Ragged):
        return Rows(
            rows, lambda found: hidden.with_values(_reshaped(found, shape)), None, ragged=hidden
        )
    return Rows(rows, lambda found: _reshaped(found, shape), shape)


def _reshaped(found: Tensor, shape: torch.Size) -> Tensor:
    return found.reshape(*shape, *found.shape[1:])


def open_target(target: Any, rows: Rows, vocabulary: int, ignore_index: int) -> Tensor:
    """Return targets as int64 [T] on the rows' device, each a word or ``ignore_index``."""
    values = target.values if isinstance(target, Ragged) else target
    if not isinstance(values, Tensor) or values.dtype not in _INTEGERS:
        raise ArgumentTypeError(
            "target",
            values.dtype if isinstance(values, Tensor) else type(target).__name__,
            "integers, the numbers of words: a tensor, or a Ragged like hidden",
            "give the words themselves, not one-hot rows or probabilities",
        )
    _check_form(target, values, rows)
    found = values.reshape(-1).to(device=rows.values.device, dtype=torch.int64)
    if found.is_meta:
        return found
    wrong = (found < 0) | (found >= vocabulary)
    if bool(wrong.any()):
        wrong &= found != ignore_index
        at = wrong.nonzero()
        if len(at):
            token = int(at[0])
            raise ArgumentError(
                "target",
                f"{int(found[token])} at token {token}",
                f"0 to {vocabulary - 1}, or {ignore_index} (ignore_index)",
                "check the vocabulary's size",
            )
    return found


def _check_form(target: Any, values: Tensor, rows: Rows) -> None:
    features = rows.values.shape[1]
    if rows.ragged is None:
        if isinstance(target, Ragged) or values.shape != rows.shape:
            got = "a Ragged" if isinstance(target, Ragged) else f"shape {list(values.shape)}"
            wanted = list(rows.shape or ())
            raise ArgumentError(
                "target", got, f"shape {wanted}, that of hidden without its features", "reshape it"
            )
        return
    shape = rows.ragged.values.shape[:-1]
    if isinstance(target, Ragged) and not rows.ragged.same_lengths(target):
        raise ArgumentError(
            "target",
            f"lengths {target.lengths.tolist()}",
            f"those of hidden, {rows.ragged.lengths.tolist()}",
            "give each token of hidden its word",
        )
    if values.shape != shape:
        raise ArgumentError(
            "target",
            f"values of shape {list(values.shape)}",
            f"{list(shape)}: a word for each token of {features} features",
            "give each token of hidden its word",
        )


def check_importance(importance: Any, vocabulary: int, like: Tensor) -> Tensor | None:
    """Return what words' losses are multiplied by, [V] like the weight; None: nothing."""
    if importance is None:
        return None
    if not isinstance(importance, Tensor) or not importance.is_floating_point():
        raise ArgumentTypeError(
            "importance", importance, "a floating tensor [vocabulary]", "convert it to a tensor"
        )
    if importance.shape != (vocabulary,):
        raise ArgumentError(
            "importance",
            f"shape {list(importance.shape)}",
            f"[{vocabulary}], one number for each word",
            "weights by class are spread by weights[layer.classes]",
        )
    wrong = (importance < 0) | ~importance.isfinite()
    if not importance.is_meta and bool(wrong.any()):
        word = int(wrong.nonzero()[0])
        found = f"{float(importance[word])} of word {word}"
        raise ArgumentError("importance", found, "finite numbers, 0 or more", "0 leaves a word out")
    dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
    return importance.detach().to(device=like.device, dtype=dtype)


def check_temperature(value: Any, argument: str = "temperature") -> float:
    """Return what logits are divided by."""
    allowed = "a number above 0"
    return check_number(argument, value, allowed, lambda t: math.isfinite(t) and t > 0)


def check_smoothing(value: Any) -> float:
    """Return the share of a target that is spread over all words."""
    return check_number("label_smoothing", value, "0 to 1, 1 left out", lambda s: 0 <= s < 1)


def check_index(value: Any) -> int:
    """Return the target that stands for none."""
    if not is_number(value) or int(value) != value:
        raise ArgumentTypeError("ignore_index", quoted(value), "an integer", "give a whole number")
    return int(value)


def check_k(k: Any, vocabulary: int) -> int:
    """Return how many words are wanted."""
    if not is_number(k) or int(k) != k:
        raise ArgumentTypeError("k", quoted(k), "an integer", "give a whole number")
    if not 1 <= k <= vocabulary:
        raise ArgumentError("k", k, f"1 to {vocabulary}, the number of words", "ask for fewer")
    return int(k)
