"""k-means whose clusters have room for so many members and no more."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

_BLOCK = 4096  # vectors whose distances are held at once


def balanced_clusters(vectors: Tensor, count: int, iterations: int, seed: int) -> Tensor:
    """Return the cluster of each vector [V, E], int64 [V]; sizes differ by one at most.

    Lloyd's iterations; the members are chosen by `_assigned`.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = vectors[torch.randperm(len(vectors), generator=generator)[:count]].clone()
    found = torch.full((len(vectors),), -1, device="cpu")
    for _ in range(iterations):
        before, found = found, _assigned(vectors, centres)
        if torch.equal(before, found):
            break
        counts = torch.bincount(found, minlength=count)
        centres = torch.zeros_like(centres).index_add_(0, found, vectors) / counts[:, None]
    return found


def _assigned(vectors: Tensor, centres: Tensor) -> Tensor:
    """Give each vector to the nearest centre that has room; nearer ones go first.

    In rounds: all that are left ask for the nearest open centre, which takes the nearest of those
    that ask. The rooms add up to the vectors; the centres most asked for have one more.
    """
    count = len(centres)
    found = torch.full((len(vectors),), -1, device="cpu")
    left = torch.arange(len(vectors), device="cpu")
    rooms = torch.full((count,), len(vectors) // count, device="cpu")
    for turn in itertools.count():
        wanted, distance = _nearest(vectors[left], centres, rooms > 0)
        asked = torch.bincount(wanted, minlength=count)
        if turn == 0:
            rooms[asked.argsort(descending=True, stable=True)[: len(vectors) % count]] += 1
        order = distance.argsort(stable=True)
        order = order[wanted[order].argsort(stable=True)]
        rank = torch.arange(len(order), device="cpu") - (asked.cumsum(0) - asked)[wanted[order]]
        takes = order[rank < rooms[wanted[order]]]
        found[left[takes]] = wanted[takes]
        rooms -= torch.bincount(wanted[takes], minlength=count)
        left = (found < 0).nonzero().flatten()
        if len(left) == 0:
            break
    return found


def _nearest(vectors: Tensor, centres: Tensor, is_open: Tensor) -> tuple[Tensor, Tensor]:
    numbers = is_open.nonzero().flatten()
    some, norms = centres[numbers], (centres[numbers] ** 2).sum(1)
    wanted: list[Tensor] = []
    distance: list[Tensor] = []
    for block in vectors.split(_BLOCK):
        least = (norms - 2 * block @ some.t()).min(1)
        wanted.append(numbers[least.indices])
        distance.append(least.values + (block**2).sum(1))
    return torch.cat(wanted), torch.cat(distance)
