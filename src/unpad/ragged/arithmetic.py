"""Operators, and torch's functions, on a ragged batch.

What may be combined is said in `dispatch`; here it is only given its Python spelling.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from unpad.ragged import dispatch, functions
from unpad.ragged.select import Selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_METHODS = frozenset((*functions.ELEMENTWISE, *functions.ALONG_FEATURES, *functions.PER_TOKEN))

_MISSING = (
    "Ragged has no `{name}`: it acts like a tensor only where tokens stay by themselves (see "
    "docs/ragged.md); use ragged.map(fn), or ragged.values [T, ...], or for a recurrent layer "
    "unpad.nn in place of torch.nn"
)


class Arithmetic(Selection):
    """The part of `Ragged` that computes on values as if the batch were a tensor."""

    # NumPy leaves `array + ragged` to us, instead of adding element by element.
    __array_ufunc__ = None

    def __array__(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse to become an array: rows of unequal length are none."""
        raise dispatch.ArgumentTypeError(
            "ragged",
            "a NumPy array asked of a Ragged",
            "its values [T, ...], or a padded form",
            "use ragged.values.numpy(), ragged.to_padded().numpy() or "
            "[row.numpy() for row in ragged]",
        )

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer a call of a torch function with a batch among its arguments."""
        return dispatch.call(function, arguments, options or {})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Offer the supported functions as methods, `ragged.tanh()`, and name what is not."""
            if name.startswith("_") or not hasattr(Tensor, name):
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            function = getattr(Tensor, name)
            if name in _METHODS:
                return lambda *args, **options: dispatch.call(function, (self, *args), options)
            raise AttributeError(_MISSING.format(name=name))

    def _operate(self, function: Callable[..., Any], *arguments: Any) -> Self:
        return dispatch.elementwise(function, arguments, {})  # pyright: ignore[reportReturnType]

    def __add__(self, other: Any) -> Self:
        return self._operate(operator.add, self, other)

    def __radd__(self, other: Any) -> Self:
        return self._operate(operator.add, other, self)

    def __sub__(self, other: Any) -> Self:
        return self._operate(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._operate(operator.sub, other, self)

    def __mul__(self, other: Any) -> Self:
        return self._operate(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._operate(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._operate(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._operate(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Self:
        return self._operate(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._operate(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Self:
        return self._operate(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._operate(operator.mod, other, self)

    def __pow__(self, other: Any) -> Self:
        return self._operate(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._operate(operator.pow, other, self)

    def __and__(self, other: Any) -> Self:
        return self._operate(operator.and_, self, other)

    def __rand__(self, other: Any) -> Self:
        return self._operate(operator.and_, other, self)

    def __or__(self, other: Any) -> Self:
        return self._operate(operator.or_, self, other)

    def __ror__(self, other: Any) -> Self:
        return self._operate(operator.or_, other, self)

    def __xor__(self, other: Any) -> Self:
        return self._operate(operator.xor, self, other)

    def __rxor__(self, other: Any) -> Self:
        return self._operate(operator.xor, other, self)

    def __matmul__(self, weight: Tensor) -> Self:
        return torch.matmul(self, weight)  # pyright: ignore

    def __neg__(self) -> Self:
        return self._operate(operator.neg, self)

    def __abs__(self) -> Self:
        return self._operate(operator.abs, self)

    def __invert__(self) -> Self:
        return self._operate(operator.invert, self)

    def __eq__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._operate(operator.eq, self, other)

    def __ne__(self, other: object) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._operate(operator.ne, self, other)

    def __lt__(self, other: Any) -> Self:
        return self._operate(operator.lt, self, other)

    def __le__(self, other: Any) -> Self:
        return self._operate(operator.le, self, other)

    def __gt__(self, other: Any) -> Self:
        return self._operate(operator.gt, self, other)

    def __ge__(self, other: Any) -> Self:
        return self._operate(operator.ge, self, other)

    # A batch is hashed by identity, as a tensor is, though == compares element by element.
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise dispatch.ArgumentTypeError(
            "ragged",
            "bool(Ragged), which is ambiguous",
            "len(ragged) > 0, a.equal(b), ragged.values.any()",
            "say which of these is meant",
        )
