"""CTC by its definition: every path is spelled out. It shares no line and no idea with the library.

Sizes must be small: C ** T paths.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import torch
from torch import Tensor


def spell(path: tuple[int, ...], blank: int, merge_repeated: bool = True) -> tuple[int, ...]:
    """The labels of a path: repeats merged, then blanks left out."""
    kept = [c for n, c in enumerate(path) if not merge_repeated or n == 0 or c != path[n - 1]]
    return tuple(c for c in kept if c != blank)


def spellings(logits: Tensor, blank: int, merge_repeated: bool = True) -> dict[tuple, Tensor]:
    """The probability of every row of labels that [length, C] logits can spell, by autograd."""
    steps, classes = logits.shape
    paths = list(itertools.product(range(classes), repeat=steps))
    picked = torch.tensor(paths, dtype=torch.int64).reshape(len(paths), steps)
    of_path = logits.double().softmax(-1)[torch.arange(steps), picked].prod(1)
    numbers: dict[tuple, list[int]] = defaultdict(list)
    for number, path in enumerate(paths):
        numbers[spell(path, blank, merge_repeated)].append(number)
    return {labels: of_path[of_labels].sum() for labels, of_labels in numbers.items()}


def best_paths(logits: Tensor, blank: int) -> list[tuple[tuple, float]]:
    """All rows of labels, the likeliest first, with their log probabilities."""
    found = [(labels, float(p.log())) for labels, p in spellings(logits, blank).items()]
    return sorted(found, key=lambda pair: -pair[1])


def loss(logits: Tensor, labels: list[int], blank: int, merge_repeated: bool = True) -> Tensor:
    """Minus the log probability of a row of labels; inf where no path spells it."""
    found = spellings(logits, blank, merge_repeated)
    return -found.get(tuple(labels), torch.zeros((), dtype=torch.float64)).log()
