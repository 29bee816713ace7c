"""Which words stand in which class: the structure of a two-level softmax, checked.

Words keep their own order everywhere: a weight's row, a bias, a column of log probabilities is a
word's. What follows the classes is an index, so that a weight can be an embedding's too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged
from unpad.ragged.lengths import as_integers

if TYPE_CHECKING:
    from collections.abc import Sequence

_FEW = 8


@dataclass(frozen=True, eq=False)
class Grouping:
    """The words of V, class by class.

    ``class_of`` [V]: a word's class. ``words`` [V]: the words, class by class. ``place_of`` [V]: a
    word's place within its class. All int64, on one device; ``starts`` [C+1], on the CPU: where
    classes begin in ``words``.
    """

    class_of: Tensor
    words: Tensor
    place_of: Tensor
    starts: Tensor

    @classmethod
    def of(cls, class_of: Tensor) -> Grouping:
        """Work out the rest; every class from 0 to the largest must have a word."""
        counts = torch.bincount(class_of)
        check_no_empty(counts)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        words = class_of.argsort(stable=True)
        place_of = torch.empty_like(words)
        place_of[words] = torch.arange(len(words), device=words.device) - starts[class_of[words]]
        return cls(class_of, words, place_of, starts.cpu())

    @cached_property
    def sizes(self) -> list[int]:
        """How many words each class has."""
        return cast("list[int]", self.starts.diff().tolist())

    @cached_property
    def in_order(self) -> bool:
        """Whether the classes follow one another in the order of words."""
        return bool((self.words[1:] > self.words[:-1]).all())


def default_count(vocabulary: int) -> int:
    """About the square root: with it the two levels cost the same."""
    return max(1, round(math.sqrt(vocabulary)))


def as_class_of(classes: Any, vocabulary: int) -> Tensor:
    """Return int64 [V], the class of each word; None: balanced groups in the order of words.

    Raises ArgumentError, ArgumentTypeError that name what is empty, missing, twice there or out of
    range.
    """
    if classes is None:
        count = default_count(vocabulary)
        return torch.arange(vocabulary, device="cpu") * count // vocabulary
    if isinstance(classes, Ragged):
        classes = classes.to_list()
    if isinstance(classes, (list, tuple)) and _is_nested(cast("Sequence[Any]", classes)):
        return _from_members(cast("Sequence[Any]", classes), vocabulary)
    found = as_integers(classes, argument="classes").clone()
    if len(found) != vocabulary:
        raise ArgumentError(
            "classes",
            f"{len(found)} numbers",
            f"{vocabulary}, the class of each word, or a list of words for each class",
            "give every word of the vocabulary its class",
        )
    wrong = (found < 0).nonzero()
    if len(wrong):
        word = int(wrong[0])
        raise ArgumentError(
            "classes", f"class {int(found[word])} of word {word}", "0 or more", "number them from 0"
        )
    if len(found) and int(found.max()) >= vocabulary:
        word = int(found.argmax())
        raise ArgumentError(
            "classes",
            f"class {int(found[word])} of word {word}",
            f"at most {vocabulary - 1}: as many classes as words",
            "number the classes from 0 without gaps",
        )
    check_no_empty(torch.bincount(found))
    return found


def check_no_empty(counts: Tensor) -> None:
    """Refuse a class without words."""
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        raise ArgumentError(
            "classes",
            f"{_named('class', empty)} without a word",
            "a word or more in each class",
            "number the classes from 0 without gaps",
        )


def _is_nested(classes: Sequence[Any]) -> bool:
    """Whether some entry is a row of words (NumPy's and torch's single numbers are none)."""
    kinds = (list, tuple, range, set, frozenset, np.ndarray, Tensor)
    return any(isinstance(row, kinds) and getattr(row, "ndim", 1) != 0 for row in classes)


def _from_members(classes: Sequence[Any], vocabulary: int) -> Tensor:
    rows = [_members(row, number) for number, row in enumerate(classes)]
    check_no_empty(torch.tensor([len(row) for row in rows], device="cpu"))
    words = torch.cat(rows)
    owners = torch.repeat_interleave(
        torch.arange(len(rows), device="cpu"), torch.tensor([len(r) for r in rows], device="cpu")
    )
    wrong = ((words < 0) | (words >= vocabulary)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise ArgumentError(
            "classes",
            f"word {int(words[at])} in class {int(owners[at])}",
            f"0 to {vocabulary - 1}, words of the vocabulary",
            "check the vocabulary's size",
        )
    _check_no_duplicate(words, owners)
    class_of = torch.full((vocabulary,), -1, device="cpu")
    class_of[words] = owners
    missing = (class_of < 0).nonzero().flatten().tolist()
    if missing:
        raise ArgumentError(
            "classes",
            f"no class for {_named('word', missing)}",
            f"each of the {vocabulary} words in one class",
            "add the missing words to a class",
        )
    return class_of


def _members(row: Any, number: int) -> Tensor:
    if not isinstance(row, (list, tuple, range, set, frozenset, np.ndarray, Tensor)):
        raise ArgumentTypeError(
            f"classes[{number}]",
            row,
            "a list of words, as the other classes are",
            "give all classes as lists, or one number for each word",
        )
    plain = sorted(cast("Any", row)) if isinstance(row, (set, frozenset)) else row
    return as_integers(cast("Any", plain), argument=f"classes[{number}]")


def _check_no_duplicate(words: Tensor, owners: Tensor) -> None:
    order = words.argsort(stable=True)
    again = (words[order][1:] == words[order][:-1]).nonzero()
    if len(again) == 0:
        return
    first, second = order[int(again[0]) : int(again[0]) + 2].tolist()
    a, b = int(owners[first]), int(owners[second])
    where = f"twice in class {a}" if a == b else f"in the classes {a} and {b}"
    raise ArgumentError(
        "classes", f"word {int(words[first])} {where}", "each word once", "leave one out"
    )


def _named(what: str, numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_FEW]))
    more = f" and {len(numbers) - _FEW} more" if len(numbers) > _FEW else ""
    plural = {"class": "classes", "word": "words"}[what]
    return f"{what if len(numbers) == 1 else plural} {shown}{more}"
