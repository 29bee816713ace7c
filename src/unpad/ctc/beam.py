"""Beam search over the labels, not the paths: a prefix's alignments are summed.

It is TensorFlow's search, step for step: where the beam is narrow, what is pruned and what comes
back within one step decides the numbers. A prefix that is pushed out can return in the same step
with only what reaches it from its parent; refused then, it no longer grows in that step. Where the
beam holds every prefix the sums are exact.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from unpad.cells.arguments import check_size
from unpad.ctc.arguments import check_blank, check_logits, refuse_nan
from unpad.errors import ArgumentError
from unpad.jit import opaque
from unpad.ragged import Ragged
from unpad.ragged.lengths import offsets_of

_Reals = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_ROOT = 0


@opaque
@torch.no_grad()
def ctc_beam_decode(
    logits: Any, *, beam_width: int = 100, top_paths: int = 1, blank: int = 0
) -> tuple[list[Ragged], Tensor]:
    """Decode by beam search: the likeliest rows of labels, each with all of its alignments.

    Args:
        logits: Ragged [T, C], or a list of tensors [length, C].
        beam_width: how many prefixes are kept after each step.
        top_paths: how many answers for each row; at most `beam_width`.
        blank: the class that stands for no label.

    Returns:
        A list of `top_paths` Raggeds of int64 on the logits' device, the likeliest first; and their
        log probabilities [B, top_paths], of the logits' dtype. Where fewer rows of labels are
        possible, as in a row of length 0, which has the empty answer alone, the rest is empty with
        log probability -inf.

    Raises:
        ArgumentError, ArgumentTypeError: as for `ctc_loss`; more `top_paths` than `beam_width`.

    With a beam that holds every prefix the log probability is exact: minus the `ctc_loss` of the
    answer. A narrower beam may undercount it. There is no gradient.

    Source: Graves, "Supervised sequence labelling with recurrent neural networks" (2012), section
    7.5.3; the order of pruning is that of TensorFlow's ``ctc_beam_search_decoder``.

    >>> logits = Ragged.from_list([torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()])
    >>> (best, second), log_probability = ctc_beam_decode(logits, top_paths=2)
    >>> best.to_list(), log_probability.exp()  # 0.4 * 0.4 + 2 * 0.4 * 0.6
    ([tensor([1])], tensor([[0.6400, 0.3600]]))
    """
    ragged = check_logits(logits)
    blank = check_blank(blank, ragged.feature_shape[0])
    check_size("beam_width", beam_width)
    check_size("top_paths", top_paths)
    if top_paths > beam_width:
        raise ArgumentError(
            "top_paths", top_paths, f"1 to beam_width, {beam_width}", "widen the beam"
        )
    log_probabilities = F.log_softmax(ragged.values.double().cpu(), -1)
    refuse_nan(log_probabilities, ragged)
    rows = ragged.with_values(log_probabilities).to_list()
    found = [_search(row.numpy(), blank, beam_width)[:top_paths] for row in rows]
    for answers in found:
        answers.extend([([], -np.inf)] * (top_paths - len(answers)))
    paths = [_as_ragged([answers[n][0] for answers in found], ragged) for n in range(top_paths)]
    scores = [[score for _, score in answers] for answers in found]
    return paths, ragged.values.new_tensor(scores).reshape(len(rows), top_paths)


def _as_ragged(rows: list[list[int]], like: Ragged) -> Ragged:
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64, device="cpu")
    labels = [label for row in rows for label in row]
    values = torch.tensor(labels, dtype=torch.int64, device=like.device)
    return Ragged._trusted(values, offsets_of(lengths))


def _search(row: _Reals, blank: int, width: int) -> list[tuple[list[int], float]]:
    """Return the prefixes in the beam after the last step, the likeliest first."""
    tree, beam = _Tree(), _Beam.start()
    classes = np.delete(np.arange(row.shape[1]), blank)
    for step in row:
        beam = _step(tree, beam, step, blank, classes, width)
    totals = beam.total.tolist()
    return [(tree.labels(node), totals[n]) for n, node in enumerate(beam.nodes)]


class _Tree:
    """Every prefix that was ever in the beam: its last label and the prefix before it."""

    def __init__(self) -> None:
        self.parent = [-1]
        self.label = [-1]
        self._children: dict[tuple[int, int], int] = {}

    def child(self, node: int, label: int) -> int:
        found = self._children.setdefault((node, label), len(self.parent))
        if found == len(self.parent):
            self.parent.append(node)
            self.label.append(label)
        return found

    def find(self, node: int, label: int) -> int | None:
        return self._children.get((node, label))

    def labels(self, node: int) -> list[int]:
        found: list[int] = []
        while node != _ROOT:
            found.append(self.label[node])
            node = self.parent[node]
        return found[::-1]


class _Beam:
    """The prefixes kept, the likeliest first: nodes, and log probabilities by the last step."""

    def __init__(self, nodes: list[int], blank: _Reals, label: _Reals) -> None:
        order = np.argsort(-np.logaddexp(blank, label), kind="stable")
        self.nodes = [nodes[n] for n in order]
        self.blank, self.label = blank[order], label[order]
        self.total = np.logaddexp(self.blank, self.label)

    @classmethod
    def start(cls) -> _Beam:
        return cls([_ROOT], np.zeros(1), np.full(1, -np.inf))


def _step(
    tree: _Tree, beam: _Beam, step: _Reals, blank: int, classes: _Integers, width: int
) -> _Beam:
    """Take the prefixes one step on, then let those that can grow push the least likely out."""
    last = np.array([tree.label[node] for node in beam.nodes])
    slots = {node: slot for slot, node in enumerate(beam.nodes)}
    parents = np.array([slots.get(tree.parent[node], -1) for node in beam.nodes])
    ends_blank, ends_label = _go_on(beam, step, last, parents, blank)
    kept = _Kept(beam.nodes, ends_blank, ends_label, width)
    # A repeat of the last label needs a blank between.
    before = np.where(classes == last[:, None], beam.blank[:, None], beam.total[:, None])
    grown = before + step[classes]
    offered = grown > kept.bar()
    here = parents >= 0  # those in the beam are offered whatever their score: see `_Kept.offer`
    offered[parents[here], np.searchsorted(classes, last[here])] = True
    for n, column in zip(*np.nonzero(offered), strict=True):
        if beam.nodes[n] not in kept.silent:
            kept.offer(tree, beam.nodes[n], int(classes[column]), float(grown[n, column]))
    return kept.beam()


def _go_on(
    beam: _Beam, step: _Reals, last: _Integers, parents: _Integers, blank: int
) -> tuple[_Reals, _Reals]:
    """Return the log probabilities of the same prefixes a step later, by what they end in."""
    from_parent = np.where(last == last[parents], beam.blank[parents], beam.total[parents])
    from_parent[parents < 0] = -np.inf
    ends_label = np.logaddexp(beam.label, from_parent) + step[last]
    ends_label[last < 0] = -np.inf  # the empty prefix ends in no label
    return beam.total + step[blank], ends_label


class _Kept:
    """The next beam while it fills: a heap whose first entry is the one to be pushed out."""

    def __init__(self, nodes: list[int], blank: _Reals, label: _Reals, width: int) -> None:
        total = np.logaddexp(blank, label)
        possible = np.flatnonzero(total > -np.inf)
        self._ends = {nodes[n]: (blank[n], label[n]) for n in possible}
        # Of equals the one that came last goes first.
        self._heap = [(total[n], -place, nodes[n]) for place, n in enumerate(possible)]
        heapq.heapify(self._heap)
        self._places = len(self._heap)
        self._width = width
        self._pushed_out: set[int] = set()
        self.silent: set[int] = set()
        """Prefixes that do not grow any more: pushed out, offered again, and refused."""

    def bar(self) -> float:
        """What a prefix must exceed to get in."""
        return self._heap[0][0] if len(self._heap) == self._width else -np.inf

    def offer(self, tree: _Tree, node: int, label: int, score: float) -> None:
        """Take in a prefix that grew by a label, unless it is there or less likely than all."""
        fits = score > self.bar()
        child = tree.child(node, label) if fits else tree.find(node, label)
        if child is None or child in self._ends:
            return
        if not fits:
            self.silent |= self._pushed_out & {child}
            return
        entry = (score, -self._places, child)
        self._places += 1
        if len(self._heap) == self._width:
            out = heapq.heapreplace(self._heap, entry)[2]
            del self._ends[out]
            self._pushed_out.add(out)
        else:
            heapq.heappush(self._heap, entry)
        self._ends[child] = (-np.inf, score)

    def beam(self) -> _Beam:
        ends = np.array(list(self._ends.values()), dtype=np.float64).reshape(-1, 2)
        return _Beam(list(self._ends), ends[:, 0], ends[:, 1])
