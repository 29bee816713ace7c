"""What depends on nothing of a step: calls of torch once a run, and what joins what they give.

The calls run under autograd, so any operation will do. What is only added up or laid end to end is
left to the run itself, which is quicker: see `Once.pieces`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class OnceRef:
    """A tensor that is computed once a run: leaves first, then results of `Once.calls`."""

    number: int


Pieces = tuple[tuple[OnceRef, ...], ...]
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[int, ...]]


@dataclass
class Once:
    """What depends on nothing of a step: plain torch calls, run under autograd before the loop."""

    leaves: int
    calls: list[Call] = field(default_factory=list)
    count: int = 0
    matrices: list[OnceRef] = field(default_factory=list)
    shared: list[OnceRef] = field(default_factory=list)
    # What is made of others by adding and joining alone: pieces end to end, each the sum of its
    # terms. `engine.autograd` makes it and gives each term its piece of the gradient, for less than
    # autograd's own nodes would cost.
    pieces: dict[OnceRef, Pieces] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = self.leaves

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> OnceRef:
        """Add a call; its result is named by the reference."""
        self.calls.append((function, args, kwargs, (self.count,)))
        self.count += 1
        return OnceRef(self.count - 1)

    def sum(self, *terms: OnceRef) -> OnceRef:
        """Add vectors of one width."""
        ref = functools.reduce(functools.partial(self.call, torch.add), terms)
        pieces = [self.pieces_of(term) for term in terms]
        if all(len(found) == 1 for found in pieces):
            self.pieces[ref] = (tuple(term for (found,) in pieces for term in found),)
        return ref

    def join(self, *parts: OnceRef) -> OnceRef:
        """Lay vectors end to end, or matrices of one width below each other."""
        ref = self.call(torch.cat, list(parts))
        self.pieces[ref] = tuple(piece for part in parts for piece in self.pieces_of(part))
        return ref

    def pieces_of(self, ref: OnceRef) -> Pieces:
        """What a tensor is made of; itself alone where it is neither a sum nor joined."""
        return self.pieces.get(ref, ((ref,),))

    def terms(self) -> list[OnceRef]:
        """Every term of every piece of the matrices, then of the shared vectors."""
        refs = (*self.matrices, *self.shared)
        return [term for ref in refs for piece in self.pieces_of(ref) for term in piece]

    @cached_property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of terms of the pieces of each matrix, then of each shared vector."""
        refs = (*self.matrices, *self.shared)
        return tuple(tuple(len(piece) for piece in self.pieces_of(ref)) for ref in refs)

    def run(self, leaves: list[Tensor]) -> list[Tensor]:
        """The parts: every term of the matrices and shared vectors, from the current leaves."""
        values: Any = dict(enumerate(leaves)) if self.calls else leaves
        for function, args, kwargs, results in self.calls:
            given = {k: _filled(v, values) for k, v in kwargs.items()} if kwargs else {}
            out = function(*[_filled(a, values) for a in args], **given)
            if isinstance(out, Tensor):
                values[results[0]] = out
            else:
                values.update(zip(results, out, strict=True))
        return [values[number] for number in self._numbers]

    @cached_property
    def _numbers(self) -> list[int]:
        return [term.number for term in self.terms()]

    def joined(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The matrices and vectors that have more than one part; without a gradient."""
        found: list[Tensor] = []
        at = 0
        for pieces in self.counts:
            terms = list(parts[at : at + sum(pieces)])
            at += len(terms)
            if len(pieces) == 1:
                sums = terms
            elif len({*pieces}) == 1:  # a column of first terms, one of second ones, and so on
                sums = [torch.cat(terms[i :: pieces[0]]) for i in range(pieces[0])]
            else:
                ends = list(accumulate(pieces, initial=0))
                each = [functools.reduce(torch.add, terms[a:b]) for a, b in pairwise(ends)]
                sums = [torch.cat(each)]
            if len(terms) > 1:
                found.append(functools.reduce(torch.add, sums))
        return found

    def weights(
        self, parts: Sequence[Tensor], joined: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(matrices [K, N] or, flipped, [N, K], contiguous vectors [n])"""
        found: list[Tensor] = []
        at, made = 0, iter(joined)
        for pieces in self.counts:
            found.append(parts[at] if pieces == _ALONE else next(made))
            at += sum(pieces)
        matrices = len(self.matrices)
        return found[:matrices], [vector.contiguous() for vector in found[matrices:]]

    def spread(
        self, parts: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradient of every part from those of the matrices and vectors."""
        found: list[Tensor | None] = []
        for total, pieces in zip(gradients, self.counts, strict=True):
            if total is None or len(pieces) == 1:
                found += [total] * sum(pieces)
                continue
            starts = list(accumulate(pieces, initial=len(found)))
            rows = total.split([parts[start].shape[0] for start in starts[:-1]])
            for piece, count in zip(rows, pieces, strict=True):
                found += [piece] * count
        return found


_ALONE = (1,)


def _filled(arg: Any, values: dict[int, Any]) -> Any:
    """An argument with its references replaced. (A function within `run` that calls itself would be
    a cycle, and keep every run's tensors until the garbage collector comes.)
    """
    if isinstance(arg, OnceRef):
        return values[arg.number]
    return [_filled(a, values) for a in arg] if isinstance(arg, list) else arg


def once_refs(args: Any) -> list[OnceRef]:
    """Every tensor that a call's arguments name."""
    if isinstance(args, OnceRef):
        return [args]
    items: Any = args.values() if isinstance(args, dict) else args
    return [r for a in items for r in once_refs(a)] if isinstance(args, (tuple, list, dict)) else []
