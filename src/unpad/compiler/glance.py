"""A quick look at whether a cell's mode is what it was.

`mode` reads all that a trace depends on, a hundred microseconds for a cell of a few modules. Here
the very objects are kept that it read, where nothing but an assignment can change them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from unpad.compiler.mode import (
    GLOBAL_HOOKS,
    HOOKS,
    OWN,
    PLAIN,
    absent,
    is_ours,
    mode_of,
    names_of,
    tied,
    users,
)

Look = tuple[Callable[[], Any], Any]
"""How to get an object, and which one it was."""


class Glance:
    """Tells in microseconds that a cell's mode is what it was; where it cannot, `mode` must tell.

    Of modules that hold plain values alone, and whose code reads no others, the very objects are
    looked at; the others are read as `mode` reads them. `still` may be False where the mode would
    come out equal. No module of a glance that is still is parametrized.
    """

    def __init__(self, cell: nn.Module) -> None:
        modules = list(cell.modules())
        if tied(cell) or any(map(is_parametrized, modules)):
            modules = []
        # What is kept of others than plain modules may lead back to the cell and keep it alive.
        looks = [_looks(m) if all(map(_is_plain, m.modules())) else None for m in modules]
        pairs = list(zip(modules, looks, strict=True))
        self._parts = [_Part(m, look) for m, look in pairs if look is not None]
        others = [m for m, look in pairs if look is None]
        self._others = [(weakref.ref(module), mode_of(module)) for module in others]

    def still(self) -> bool:
        """Whether nothing has changed since this was made."""
        for part in self._parts:
            if not part.still():
                return False
        for other, before in self._others:
            module = other()
            if module is None or mode_of(module) != before:
                return False
        return bool(self._parts or self._others) and not any(GLOBAL_HOOKS)


class _Part:
    """One module of a glance."""

    def __init__(self, module: nn.Module, looks: list[Look]) -> None:
        self.module, self.kind = weakref.ref(module), type(module)
        self.looks = looks
        self.held = held = vars(module)
        self.values, self.buffers = list(held.values()), len(module._buffers)
        self.own = [(k, v) for k, v in held.items() if k not in OWN and not isinstance(v, Tensor)]
        self.names, self.children = list(module._modules), list(module._modules.values())
        self.none = absent(module)

    def still(self) -> bool:
        held, modules = self.held, self.held["_modules"]
        if len(held) != len(self.values) or len(held["_buffers"]) != self.buffers:
            return False
        if len(modules) != len(self.children) or type(self.module()) is not self.kind:
            return False
        # In most cases nothing at all was assigned, which takes no loop in Python to see.
        if not all(map(is_, held.values(), self.values)) and not self._equal():
            return False
        if not all(map(is_, modules.values(), self.children)) or list(modules) != self.names:
            return False
        if (self.none and self._filled()) or _hooked(held):
            return False
        return all(get() is value for get, value in self.looks)

    def _equal(self) -> bool:
        """Whether all that is not read anew at every run is the same: all but tensors."""
        return all(self.held.get(name, self) is value for name, value in self.own)

    def _filled(self) -> bool:
        """Whether a parameter or buffer that was None is a tensor now."""
        tensors = {**self.held["_parameters"], **self.held["_buffers"]}
        return any(tensors.get(name) is not None for name in self.none)


def _hooked(held: dict[str, Any]) -> bool:
    return any(map(held.__getitem__, HOOKS))


def _is_plain(module: nn.Module) -> bool:
    held = vars(module)
    own = [v for k, v in held.items() if k not in OWN and not isinstance(v, Tensor)]
    return all(isinstance(v, PLAIN) or _plain_tuple(v) for v in own) and not _hooked(held)


def _plain_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(v, PLAIN) or _plain_tuple(v) for v in cast("tuple[Any, ...]", value)
    )


# -- what a user's code reads ----------------------------------------------------------------------

# What changes only where another object takes its place; of a function, see `_of_function`. Neither
# property nor method is read by `mode`.
_FIXED = (*PLAIN, type, ModuleType, CodeType, FunctionType, property, classmethod, staticmethod)


def _looks(module: nn.Module) -> list[Look] | None:
    """All that `mode` reads of a user's classes; None where it may change inside of an object."""
    looks: list[Look] = []
    for kind in users(type(module)):
        held = vars(kind)
        looks.append((held.__len__, len(held)))
        looks += _entries(held, [name for name in held if not name.startswith("__")])
    for _, function in [*looks]:
        if isinstance(function, FunctionType):
            looks += _of_function(function)
            looks += _globals(function)
    fixed = all(isinstance(value, _FIXED) or _plain_tuple(value) for _, value in looks)
    return looks if fixed else None


def _entries(held: Mapping[str, Any], names: Iterable[str]) -> list[Look]:
    return [(partial(held.get, name), held.get(name)) for name in names]


def _of_function(function: FunctionType) -> list[Look]:
    parts = "__code__", "__defaults__", "__kwdefaults__"
    looks: list[Look] = [(partial(getattr, function, p), getattr(function, p)) for p in parts]
    for cell in function.__closure__ or ():
        get = partial(getattr, cell, "cell_contents", None)
        looks.append((get, get()))
    return looks


def _globals(function: FunctionType) -> list[Look]:
    """As `mode` reads them: of functions their code, of a user's modules and classes the names."""
    here, names = names_of(function.__code__)
    looks = _entries(function.__globals__, here)
    for _, value in [*looks]:
        if isinstance(value, FunctionType):
            looks += _of_function(value)
        elif isinstance(value, (type, ModuleType)) and not is_ours(value):
            kinds = value.__mro__ if isinstance(value, type) else (value,)
            taken = [look for kind in kinds for look in _entries(vars(kind), names)]
            looks += taken
            for _, inner in taken:
                looks += _of_function(inner) if isinstance(inner, FunctionType) else []
    return looks
