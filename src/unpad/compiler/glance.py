"""A quick look at whether a cell's mode is what it was.

`mode` reads all that a trace depends on, a hundred microseconds for a cell of a few modules. Here
the very objects are kept that it read, where nothing but an assignment can change them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import is_, itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from unpad.compiler.mode import (
    GLOBAL_HOOKS,
    HOOKS,
    OWN,
    PLAIN,
    absent,
    functions_of,
    is_ours,
    mode_of,
    names_of,
    tied,
    users,
)
from unpad.compiler.trace import content_of

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
    """One module of a glance. It keeps no module alive, nor a tensor, whose hooks may lead back."""

    def __init__(self, module: nn.Module, looks: list[Look]) -> None:
        held = vars(module)
        self.module, self.kind, self.looks = weakref.ref(module), type(module), looks
        self.held = _held(held)
        own = [k for k, v in held.items() if k not in OWN and not isinstance(v, Tensor)]
        self.tensors = [k for k, v in held.items() if isinstance(v, Tensor)]
        self.get = itemgetter("training", "training", *own)  # of one name it would give no tuple
        self.values = self.get(held)
        # Each child is a part of the glance itself, which sees where it is gone.
        self.names, self.children = [*module._modules], [*map(id, module._modules.values())]
        self.none = absent(module)

    def still(self) -> bool:
        module = self.module()
        if module is None or type(module) is not self.kind:
            return False
        held = vars(module)
        if _held(held) != self.held or not self._equal(held):
            return False
        modules = held["_modules"]
        if [*map(id, modules.values())] != self.children or [*modules] != self.names:
            return False
        if (self.none and self._filled(held)) or _hooked(held):
            return False
        return all(get() is value for get, value in self.looks)

    def _equal(self, held: dict[str, Any]) -> bool:
        """Whether all that is not read anew at every run is the same: all but tensors."""
        try:
            if not all(map(is_, self.get(held), self.values)):
                return False
        except KeyError:
            return False
        return all(isinstance(held.get(name), Tensor) for name in self.tensors)

    def _filled(self, held: dict[str, Any]) -> bool:
        """Whether a parameter or buffer that was None is a tensor now."""
        tensors = {**held["_parameters"], **held["_buffers"]}
        return any(tensors.get(name) is not None for name in self.none)


def _held(held: dict[str, Any]) -> tuple[Any, ...]:
    """How many attributes there are, and the names of parameters and buffers."""
    return len(held), [*held["_parameters"]], [*held["_buffers"]]


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

# What changes only where another object takes its place; of functions, see `_of_function`.
_FUNCTIONS = (CodeType, FunctionType, BuiltinFunctionType, property, classmethod, staticmethod)
_FIXED = (*PLAIN, type, ModuleType, *_FUNCTIONS)


def _looks(module: nn.Module) -> list[Look] | None:
    """All that `mode` reads of a user's classes; None where it may change inside of an object."""
    looks: list[Look] = []
    methods: list[FunctionType] = []
    for kind in users(type(module)):
        held = vars(kind)
        looks.append((held.__len__, len(held)))
        for name, value in held.items():
            if not name.startswith("__"):
                looks.append((partial(held.get, name), value))
                methods += functions_of(value)
    for function in methods:
        looks += _globals(function)
    known = set[int]()
    waiting = [*methods, *(value for _, value in looks if isinstance(value, FunctionType))]
    while waiting:
        function = waiting.pop()
        if id(function) not in known:
            known.add(id(function))
            own = _of_function(function)
            waiting += [value for _, value in own if isinstance(value, FunctionType)]
            looks += own
    fixed = all(isinstance(v, _FIXED) or _plain_tuple(v) for _, v in looks)
    return looks if fixed else None


def _entries(held: Mapping[str, Any], names: Iterable[str]) -> list[Look]:
    return [(partial(held.get, name), held.get(name)) for name in names]


def _of_function(function: FunctionType) -> list[Look]:
    parts = "__code__", "__defaults__", "__kwdefaults__"
    looks: list[Look] = [(partial(getattr, function, p), getattr(function, p)) for p in parts]
    variables = function.__closure__ or ()
    return looks + [(partial(content_of, v), content_of(v)) for v in variables]


def _globals(function: FunctionType) -> list[Look]:
    """As `mode` reads them: of a user's modules and classes the names that are taken."""
    here, names = names_of(function.__code__)
    looks = _entries(function.__globals__, here)
    for _, value in [*looks]:
        if isinstance(value, (type, ModuleType)) and not is_ours(value):
            kinds = value.__mro__ if isinstance(value, type) else (value,)
            looks += [look for kind in kinds for look in _entries(vars(kind), names)]
    return looks
