"""What a trace depends on beside sizes: the modules of a cell and the Python values they hold.

A trace bakes Python values in: a scale, a flag, an activation, a list of rates. The mode of a cell
is all of them as one hashable value, so that a changed one is traced again and none is ever stale.
Tensors are no part of it: they are read anew at every run.
"""

from __future__ import annotations

from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from torch import Tensor, nn

_OWN = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = (bool, int, float, str, type(None))


def mode(cell: nn.Module) -> tuple[Any, ...]:
    """The modules of a cell, by identity, each with the values of its attributes.

    >>> cell = nn.Linear(2, 3)
    >>> before = mode(cell)
    >>> cell.rates = (0.1, 0.2)
    >>> mode(cell) == before
    False
    """
    return tuple(
        (id(module), type(module), *_values(module), *_hooks(module), *_read(module))
        for module in cell.modules()
    )


class Glance:
    """Tells in a microsecond that a cell's mode is what it was; where it cannot, `mode` must tell.

    For modules of this package and of torch that hold plain values alone, which nothing but an
    assignment changes: the very objects are looked at. `still` may be False where the mode would
    come out equal.
    """

    def __init__(self, cell: nn.Module) -> None:
        self._parts: list[tuple[dict[str, Any], int, list[tuple[str, Any]], list[Any]]] = []
        self._sure = all(map(self._add, cell.modules()))
        if not self._sure:
            self._parts.clear()  # they may lead back to the cell and keep it alive

    def _add(self, module: nn.Module) -> bool:
        held = vars(module)
        own = [(k, v) for k, v in held.items() if k not in _OWN and not isinstance(v, Tensor)]
        plain = all(isinstance(v, _PLAIN) or _plain_tuple(v) for _, v in own)
        self._parts.append((held, len(held), own, list(module._modules.items())))
        ours = type(module).__module__.startswith(("unpad.", "torch."))
        return ours and plain and not any(held[name] for name in _HOOKS)

    def still(self) -> bool:
        """Whether nothing has changed since this was made."""
        if not self._sure:
            return False
        for held, count, own, children in self._parts:
            if len(held) != count:
                return False
            for name, value in own:
                if held.get(name, self) is not value:
                    return False
            modules = held["_modules"]
            if len(modules) != len(children):
                return False
            for name in _HOOKS:
                if held[name]:
                    return False
            for name, child in children:
                if modules.get(name) is not child:
                    return False
        return True


def _plain_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(v, _PLAIN) or _plain_tuple(v) for v in cast("tuple[Any, ...]", value)
    )


def changed(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[str]:
    """Names of the attributes in which two modes of one cell differ.

    >>> cell = nn.Linear(2, 3)
    >>> before = mode(cell)
    >>> cell.scale = 2.0
    >>> changed(before, mode(cell))
    ['scale']
    """
    pairs = zip(before, after, strict=False)
    return sorted({name for a, b in pairs for name, _ in set(a[2:]) ^ set(b[2:])})


def _hooks(module: nn.Module) -> list[tuple[str, Any]]:
    """Hooks that run within a step: added or removed, they are traced anew."""
    held: list[dict[int, Any]] = [vars(module)[name] for name in _HOOKS]
    return [("hooks", tuple(id(hook) for hook in hooks.values())) for hooks in held if hooks]


def _read(module: nn.Module) -> list[tuple[str, Any]]:
    """Plain values that a user's forward reads from its globals, its closure and its class."""
    kind = type(module)
    if kind.__module__.startswith(("unpad.", "torch.")):
        return []
    found = [(name, value) for name, value in vars(kind).items() if isinstance(value, _PLAIN)]
    forward: Any = getattr(module.forward, "__func__", module.forward)
    found.append(("forward", id(forward)))
    code, outside = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
    for name in code.co_names if code is not None else ():
        value = outside.get(name)
        if value is not None and not isinstance(value, (type, ModuleType, FunctionType)):
            found.append((name, _frozen(value)))
    closed = [variable.cell_contents for variable in getattr(forward, "__closure__", None) or ()]
    return found + [("closure", value) for value in closed if isinstance(value, _PLAIN)]


def _values(module: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, _frozen(value))
        for name, value in vars(module).items()
        if name not in _OWN and not isinstance(value, Tensor)
    ]


def _frozen(value: Any) -> Any:
    """A value that changes where the other does. No reference to an object is kept: one to the cell
    would keep it alive for ever.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return tuple((_frozen(name), _frozen(item)) for name, item in pairs)
    if isinstance(value, FunctionType):
        return _code(value)
    if isinstance(value, Tensor):
        return Tensor
    if isinstance(value, (set, frozenset)):
        return frozenset(_frozen(item) for item in cast("set[Any]", value))
    fields = getattr(value, "__dict__", {}) if not isinstance(value, (nn.Module, type)) else {}
    plain = tuple((k, v) for k, v in dict(fields).items() if isinstance(v, _PLAIN))
    return type(value), id(value), plain


def _code(function: FunctionType) -> tuple[CodeType, Any, Any]:
    """A function's code and the plain values it closes over; ids of functions are used again."""
    cells = function.__closure__ or ()
    closed = tuple(c.cell_contents for c in cells)
    plain = tuple(v if isinstance(v, _PLAIN) else type(v) for v in closed)
    defaults = function.__defaults__ or ()
    return function.__code__, plain, tuple(_frozen(d) for d in defaults)
