"""TensorFlow's beam search, told slowly: no heap, no arrays, the beam searched through each time.

What is particular to it, where the beam is full: a prefix is pushed out in the middle of a step; it
may be offered again by its parent, with what the parent gives and nothing else; and if that is too
little, it loses its old probability too, so that it does not grow in this step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

NEVER = -math.inf


@dataclass
class Prefix:
    """One prefix: log probability in all, ending in a blank and in its label, before and now."""

    total: float = NEVER
    blank: float = NEVER
    label: float = NEVER
    old_total: float = NEVER
    old_blank: float = NEVER

    def now(self, blank: float, label: float) -> None:
        self.blank, self.label, self.total = blank, label, float(np.logaddexp(blank, label))


def plain_beam(logits: Tensor, blank: int, width: int) -> list[tuple[tuple, float]]:
    """The prefixes in the beam at the end with their log probabilities, the likeliest first."""
    known: dict[tuple, Prefix] = {(): Prefix()}
    known[()].now(0.0, NEVER)
    beam = [()]
    for step in logits.double().log_softmax(-1).tolist():
        beam = sorted(beam, key=lambda labels: -known[labels].total)
        before = list(beam)
        for prefix in (known[labels] for labels in before):
            prefix.old_total, prefix.old_blank = prefix.total, prefix.blank
        for labels in before:
            prefix, ends = known[labels], NEVER
            if labels:
                ends = prefix.label
                if labels[:-1] in before:
                    ends = np.logaddexp(ends, grow(known, labels[:-1], labels[-1]))
                ends += step[labels[-1]]
            prefix.now(prefix.old_total + step[blank], ends)
        for labels in before:
            if known[labels].old_total == NEVER:
                continue
            for label in [c for c in range(len(step)) if c != blank]:
                child = (*labels, label)
                if child not in beam:
                    score = grow(known, labels, label) + step[label]
                    offer(known, beam, child, score, width)
    return sorted([(n, known[n].total) for n in beam], key=lambda pair: -pair[1])


def grow(known: dict[tuple, Prefix], labels: tuple, label: int) -> float:
    prefix = known[labels]
    return prefix.old_blank if labels[-1:] == (label,) else prefix.old_total


def offer(
    known: dict[tuple, Prefix], beam: list[tuple], child: tuple, score: float, width: int
) -> None:
    prefix = known.setdefault(child, Prefix())
    lowest = min(beam, key=lambda labels: known[labels].total)
    if score == NEVER or (len(beam) == width and score <= known[lowest].total):
        prefix.old_total = prefix.old_blank = NEVER
        return
    if len(beam) == width:
        beam.remove(lowest)
    beam.append(child)
    prefix.now(NEVER, score)
