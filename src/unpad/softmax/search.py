"""The exact search for the likeliest words: by classes, since no word is above its class."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unpad.softmax import reference
from unpad.softmax.reference import Head

Best = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""``(hidden [T, H], rows [P], classes [P], k)`` to the k likeliest words of each class, as log
probabilities within it and words [P, k], in any order; where it has fewer, some are -inf."""

_GROWTH = 4
_LARGE = 4  # so many times k words or more are in a class on average, or the search is no gain
_NUMBERS = 1 << 23  # of the words that are looked at together, at most


def topk(
    hidden: Tensor, k: int, head: Head, best_of: Callable[[Head], Best]
) -> tuple[Tensor, Tensor]:
    """Return the k largest log probabilities [T, k], sorted, and their words."""
    sizes = [] if head.grouping is None else head.grouping.sizes
    if _LARGE * k * len(sizes) > len(head.weight) or not sizes:
        return _of_all(hidden, k, head)
    each = min(k, max(sizes))
    best = best_of(head)
    blocks = hidden.split(max(1, _NUMBERS // (len(sizes) * each)))
    values, words = _joined([_search(rows, k, each, head, best) for rows in blocks])
    # Words that cannot be (a bias of -inf) are no more than places that no word has filled.
    rest = (values[:, -1] == -torch.inf).nonzero().flatten()
    if len(rest):
        values[rest], words[rest] = _of_all(hidden[rest], k, head)
    return values, words


def _search(hidden: Tensor, k: int, each: int, head: Head, best: Best) -> tuple[Tensor, Tensor]:
    """Visit the classes of each row, one and then more at a time, that may hold a better word."""
    classes = reference.class_logits(hidden, head).log_softmax(-1)
    bounds, order = classes.sort(-1, descending=True)
    values = classes.new_full((len(hidden), k), -torch.inf)
    words = torch.zeros_like(values, dtype=torch.int64)
    live = torch.arange(len(hidden), device=hidden.device)
    first, width = 0, 1
    while first < bounds.shape[1]:
        # Written so that NaN goes on to the end, and becomes the result.
        worth = ~(bounds[live, first : first + width] <= values[live, -1:])
        live, worth = live[worth[:, 0]], worth[worth[:, 0]]
        if len(live) == 0:
            break
        at, place = worth.nonzero(as_tuple=True)
        rows = live[at]
        which = order[rows, first + place]
        found, named = best(hidden, rows, which, each)
        met = found.new_full((*worth.shape, each), -torch.inf)
        met[at, place] = found + classes[rows, which, None]
        names = named.new_zeros(met.shape)
        names[at, place] = named
        both = torch.cat([values[live], met.flatten(1)], -1).topk(k)
        values[live] = both.values
        words[live] = torch.cat([words[live], names.flatten(1)], -1).gather(1, both.indices)
        first, width = first + width, _GROWTH * width
        left = bounds[live, first:] > values[live, -1:]
        if 2 * int(left.sum()) > left.numel():
            width = bounds.shape[1]  # little is gained by going on slowly
    return values, words


def _of_all(hidden: Tensor, k: int, head: Head) -> tuple[Tensor, Tensor]:
    """Take all words at once, some rows at a time."""
    blocks = hidden.split(max(1, _NUMBERS // len(head.weight)))
    parts = [reference.log_prob(rows, head).topk(k) for rows in blocks]
    return _joined([(part.values, part.indices) for part in parts])


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    values, words = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(words)
