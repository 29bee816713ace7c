"""What a reader gives: variables by name, as NumPy arrays, and what else the files say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from unpad.errors import ArgumentError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Variable:
    """One saved array.

    ``name`` is the file's own; ``value`` the array; ``dtype`` the type it was stored in: where
    NumPy has none (bfloat16, float8) the value is its exact float32. ``alias`` is the name that the
    model's code gave it, where the file says so.

    >>> Variable("dense/bias", np.zeros(3, np.float32), "float32").shape
    (3,)
    """

    name: str
    value: Array
    dtype: str
    alias: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.value.shape


@dataclass(frozen=True)
class Tensor:
    """What a signature takes or gives: the graph's name for it, its dtype and shape (-1: any)."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Signature:
    """A way to call a SavedModel: the tensors that it takes and gives, by their keys."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Artefact(Mapping[str, Variable]):
    """A saved model as it was read: a mapping from names to variables.

    ``kind`` says in words what it is. ``left_out`` names what could not be read as numbers, with
    the reason. ``layers`` holds Keras's settings of each layer by the layer's name; None: the files
    don't say. ``signatures`` are those of a SavedModel.

    >>> found = Artefact("a.index", "TF checkpoint", [Variable("b", np.ones(2), "float64")])
    >>> list(found), found["b"].value.tolist()
    (['b'], [1.0, 1.0])
    """

    path: str
    kind: str
    variables: list[Variable]
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    layers: dict[str, dict[str, Any]] | None = None
    signatures: dict[str, Signature] = field(default_factory=dict[str, Signature])

    def __repr__(self) -> str:
        """Say what it is, not every number in it."""
        return f"Artefact({self.path!r}: {self.kind}, {len(self.variables)} variables)"

    @cached_property
    def _named(self) -> dict[str, Variable]:
        aliases = {variable.alias: variable for variable in self.variables if variable.alias}
        return aliases | {variable.name: variable for variable in self.variables}

    def __getitem__(self, name: str) -> Variable:
        try:
            return self._named[name]
        except KeyError:
            allowed = f"a variable of {self.path}"
            raise ArgumentError("name", repr(name), allowed, "see list(artefact)") from None

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def __iter__(self) -> Iterator[str]:
        return iter([variable.name for variable in self.variables])

    def __len__(self) -> int:
        return len(self.variables)
