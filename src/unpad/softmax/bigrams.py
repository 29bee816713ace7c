"""The exchange algorithm: words change class while a class bigram model gets better by it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Reals = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_SLACK = 2  # words in a class, as a multiple of the average


def exchanged(words: Tensor, starts: Tensor, vocabulary: int, count: int, rounds: int) -> Tensor:
    """Return the class of each word, int64 [V]; bigrams do not cross the ``starts`` of rows.

    Maximises ``Σ N(v, c) log N(v, c) - Σ N(c) log N(c)`` over words v before words of class c.
    """
    befores, times = _befores(words, starts, vocabulary)
    totals = np.bincount(words.numpy(), minlength=vocabulary)
    order = np.argsort(-totals, kind="stable")
    classes = np.empty(vocabulary, dtype=np.int64)
    classes[order] = np.arange(vocabulary) % count  # the frequent ones apart
    state = _State(vocabulary, count, classes, befores, times)
    most = max(-(-vocabulary // count) * _SLACK, 1)
    for _ in range(rounds):
        moved = sum(state.move(int(word), most) for word in order if len(befores[word]))
        if not moved:
            break
    return torch.from_numpy(state.classes)


def _befores(
    words: Tensor, starts: Tensor, vocabulary: int
) -> tuple[list[_Integers], list[_Integers]]:
    """For each word the words before it, and how often."""
    first, second = words[:-1], words[1:]
    inside = torch.ones(max(len(words) - 1, 0), dtype=torch.bool, device="cpu")
    cut = starts[(starts > 0) & (starts < len(words))] - 1
    inside[cut] = False
    pairs, times = torch.unique(second[inside] * vocabulary + first[inside], return_counts=True)
    owners, befores = pairs // vocabulary, pairs % vocabulary
    ends = torch.bincount(owners, minlength=vocabulary).cumsum(0)[:-1].numpy()
    return np.split(befores.numpy(), ends), np.split(times.numpy(), ends)


class _State:
    """The classes, and how often each class follows each word: N(v, c) [V, C], N(c) [C]."""

    def __init__(
        self,
        vocabulary: int,
        count: int,
        classes: _Integers,
        befores: list[_Integers],
        times: list[_Integers],
    ) -> None:
        self.classes, self.befores, self.times = classes, befores, times
        self.follows = np.zeros((vocabulary, count), dtype=np.int32)
        for word, before in enumerate(befores):
            self.follows[before, classes[word]] += times[word].astype(np.int32)
        self.totals = self.follows.sum(0, dtype=np.int64)
        self.sizes = np.bincount(classes, minlength=count)

    def move(self, word: int, most: int) -> bool:
        """Put a word where the objective is largest; tell whether it moved."""
        own = int(self.classes[word])
        if self.sizes[own] == 1:
            return False
        before, times = self.befores[word], self.times[word]
        n, whole = times[:, None], int(times.sum())
        without = self.follows[before].astype(np.int64)
        without[:, own] -= times
        totals = self.totals.copy()
        totals[own] -= whole
        gain = (_x_log_x(without + n) - _x_log_x(without)).sum(0)
        gain -= _x_log_x(totals + whole) - _x_log_x(totals)
        stay = float(gain[own])
        gain[self.sizes >= most] = -np.inf
        best = int(gain.argmax())
        if gain[best] <= stay + 1e-9 * abs(stay):  # what is no better must not move for ever
            return False
        self.follows[before, own] -= times.astype(np.int32)
        self.follows[before, best] += times.astype(np.int32)
        self.totals[own] -= whole
        self.totals[best] += whole
        self.sizes[own] -= 1
        self.sizes[best] += 1
        self.classes[word] = best
        return True


def _x_log_x(x: _Integers) -> _Reals:
    return np.multiply(x, np.log(np.maximum(x, 1)), dtype=np.float64)
