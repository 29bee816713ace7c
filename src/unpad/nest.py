"""Nests: a tensor, or tuples, lists and dicts of nests. The form of every cell's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

# Any: a recursive alias would make every user annotate states in the same words.
Nest: TypeAlias = Any
"""A tensor, or a (named) tuple, list or dict of nests; leaves may have any shape and dtype."""


def leaves(nest: Nest) -> list[Any]:
    """The leaves in order.

    >>> leaves((1, [2, (3,)], {"a": 4}))
    [1, 2, 3, 4]
    """
    if isinstance(nest, dict):
        return [leaf for part in cast(dict[Any, Any], nest).values() for leaf in leaves(part)]
    if isinstance(nest, (tuple, list)):
        return [leaf for part in cast(list[Any], nest) for leaf in leaves(part)]
    return [nest]


def rebuild(like: Nest, values: list[Any]) -> Nest:
    """A nest formed like ``like`` with ``values`` as its leaves.

    >>> rebuild((1, [2, 3]), ["a", "b", "c"])
    ('a', ['b', 'c'])
    """
    return _fill(like, iter(values))


def _fill(like: Nest, values: Iterator[Any]) -> Nest:
    if isinstance(like, dict):
        return {key: _fill(part, values) for key, part in cast(dict[Any, Any], like).items()}
    if isinstance(like, list):
        return [_fill(part, values) for part in cast(list[Any], like)]
    if isinstance(like, tuple):
        parts = [_fill(part, values) for part in cast(tuple[Any, ...], like)]
        named = hasattr(cast(Any, like), "_fields")
        return type(cast(Any, like))(*parts) if named else tuple(parts)
    return next(values)


def map_leaves(function: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """Apply a function leaf by leaf; the result is formed like the first nest.

    >>> map_leaves(lambda a, b: a + b, (1, (2, 3)), (10, (20, 30)))
    (11, (22, 33))
    """
    columns = [leaves(part) for part in (nest, *others)]
    return rebuild(nest, [function(*row) for row in zip(*columns, strict=True)])


def same_form(a: Nest, b: Nest) -> bool:
    """Whether both nests have the same tuples and lists at the same places.

    A tuple and a list of equal length count as the same form.

    >>> same_form((1, (2, 3)), ("a", ["b", "c"])), same_form((1, 2), 1)
    (True, False)
    """
    if isinstance(a, dict) or isinstance(b, dict):
        if not (isinstance(a, dict) and isinstance(b, dict)):
            return False
        left, right = cast(dict[Any, Any], a), cast(dict[Any, Any], b)
        return list(left) == list(right) and all(same_form(left[k], right[k]) for k in left)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        first, second = cast(list[Any], a), cast(list[Any], b)
        return len(first) == len(second) and all(map(same_form, first, second))
    return not isinstance(a, (tuple, list)) and not isinstance(b, (tuple, list))


def describe(nest: Nest) -> str:
    """Shapes in words, for error messages.

    >>> describe((torch.zeros(2, 3), torch.zeros(2)))
    '([2, 3], [2])'
    """
    texts = [
        str(list(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf).__name__
        for leaf in leaves(nest)
    ]
    return str(rebuild(nest, texts)).replace("'", "")


@dataclass(slots=True)
class Zeros:
    """A leaf of a state that stands for zeros of this shape, which are made where they are read."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device | str | None

    def tensor(self) -> Tensor:
        """The zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def made(state: Nest) -> Nest:
    """A state in which `Zeros` are tensors.

    >>> made((torch.ones(1), Zeros(torch.Size([1]), torch.float32, torch.device("cpu"))))
    (tensor([1.]), tensor([0.]))
    """
    return map_leaves(lambda leaf: leaf.tensor() if isinstance(leaf, Zeros) else leaf, state)
