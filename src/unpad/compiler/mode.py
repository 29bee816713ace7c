"""What a trace depends on beside sizes: the modules of a cell and the Python values they hold.

A trace bakes Python values in: a scale, a flag, an activation, a list of rates. The mode of a cell
is all of them as one hashable value, so that a changed one is traced again and none is ever stale.
Tensors are no part of it: they are read anew at every run.
"""

from __future__ import annotations

import dis
import functools
import itertools
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from unpad.compiler.trace import content_of

OWN = frozenset(vars(nn.Module())) - {"training"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Hooks of every module there is.
GLOBAL_HOOKS: list[dict[int, Any]] = [
    vars(torch_module)[f"_global{name}"] for name in ("_forward_hooks", "_forward_pre_hooks")
]
PLAIN = (bool, int, float, str, type(None))
OURS = ("unpad.", "torch.", "builtins.", "typing.", "typing_extensions.", "abc.")
# How deep fields of fields are looked at, and how large an array.
_DEEPEST, _LARGEST = 4, 1 << 12


def mode(cell: nn.Module) -> tuple[Any, ...]:
    """The modules of a cell, by identity, each with the values of its attributes.

    >>> cell = nn.Linear(2, 3)
    >>> before = mode(cell)
    >>> cell.rates = (0.1, 0.2)
    >>> mode(cell) == before
    False
    """
    parts = [mode_of(module) for module in cell.modules()]
    everywhere = tuple(_numbered(hooks) for hooks in GLOBAL_HOOKS)
    return (*parts, (0, Tensor, ("tied", tied(cell)), ("global hooks", everywhere)))


def mode_of(module: nn.Module) -> tuple[Any, ...]:
    """The part of a mode that is of one module alone."""
    held = *_held(module), *_values(module), *_hooks(module), *_read(module)
    return id(module), type(module), *held


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


def _held(module: nn.Module) -> list[tuple[str, Any]]:
    """Which modules stand under which names, which tensors there are, and which are None."""
    children = tuple((name, id(child)) for name, child in module._modules.items())
    plain = [name for name, value in vars(module).items() if isinstance(value, Tensor)]
    tensors = (*module._parameters, *module._buffers, *plain)
    return [("modules", children), ("none", absent(module)), ("tensors", tensors)]


def absent(module: nn.Module) -> tuple[str, ...]:
    """Names of parameters and buffers that are None."""
    tensors = (*module._parameters.items(), *module._buffers.items())
    return tuple(name for name, tensor in tensors if tensor is None)


def tied(cell: nn.Module) -> tuple[int, ...]:
    """Which names stand for one tensor: a trace reads it by one of them. Empty where none do."""
    numbers: dict[int, int] = {}
    places = [
        numbers.setdefault(id(tensor), len(numbers))
        for module in cell.modules()
        for held in (module._parameters, module._buffers)
        for tensor in held.values()
        if tensor is not None
    ]
    return tuple(places) if len(numbers) < len(places) else ()


def users(kind: type) -> list[type]:
    """The classes of a module that a user wrote."""
    return [k for k in kind.__mro__ if not is_ours(k)]


def _hooks(module: nn.Module) -> list[tuple[str, Any]]:
    """Hooks that run within a step: added, removed or replaced, they are traced anew."""
    held: list[dict[int, Any]] = [vars(module)[name] for name in HOOKS]
    return [("hooks", _numbered(hooks)) for hooks in held if hooks]


def _numbered(hooks: dict[int, Any]) -> tuple[tuple[int, Any], ...]:
    return tuple((number, _frozen(hook)) for number, hook in hooks.items())


def _read(module: nn.Module) -> list[tuple[str, Any]]:
    """What a user's forward and methods read from globals, closures, defaults and classes."""
    written = users(type(module))
    if not written:
        return []
    forward: Any = getattr(module.forward, "__func__", module.forward)
    held = [(k, v) for kind in written for k, v in vars(kind).items() if not k.startswith("__")]
    # Tensors that forward's own variables hold are read anew; no others.
    found = [(name, _outside(value)) for name, value in held if value is not forward]
    found.append(("forward", id(forward)))
    found += [("default", _outside(getattr(forward, kind, None))) for kind in _DEFAULTS]
    found += _globals(forward, anew=True)
    for function in (f for _, value in held for f in functions_of(value) if f is not forward):
        found += _globals(function)
    return found + [("closure", _frozen(value, _depth(value))) for value in closed_over(forward)]


_DEFAULTS = ("__defaults__", "__kwdefaults__")


def functions_of(value: Any) -> list[FunctionType]:
    """The functions behind a method of any kind or a property."""
    kinds = "__func__", "fget", "func"
    behind = [value, *(getattr(value, kind, None) for kind in kinds)]
    return [function for function in behind if isinstance(function, FunctionType)]


def closed_over(function: Any) -> list[Any]:
    """What the variables hold that a function closes over."""
    return [content_of(variable) for variable in getattr(function, "__closure__", None) or ()]


def _outside(value: Any) -> Any:
    """A value that stands outside of the modules, where no tensor is read anew."""
    return _frozen(value, 1)


def _depth(value: Any) -> int:
    return 0 if isinstance(value, Tensor) else 1


def _globals(function: Any, *, anew: bool = False) -> list[tuple[str, Any]]:
    """What a function names of its globals; of a module or class among them, the names it takes.

    ``anew``: a tensor that a global holds is read at every run.
    """
    outside = getattr(function, "__globals__", {})
    here, names = names_of(getattr(function, "__code__", None))
    found: list[tuple[str, Any]] = []
    for name in here:
        value = outside.get(name)
        if isinstance(value, (type, ModuleType)):
            found += [(f"{name}.{k}", _outside(v)) for k, v in _taken(value, names)]
        elif value is not None:
            found.append((name, _frozen(value, _depth(value) if anew else 1)))
    return found


def names_of(code: CodeType | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of globals in a function's code, and all names: in lambdas and comprehensions too.

    An attribute may be called as a global that the function does not read.
    """
    if code is None:
        return (), ()
    # By identity: a code object's own hash and comparison go through all that it holds.
    known = _named.get(id(code))
    if known is None:
        inner = [names_of(c) for c in code.co_consts if isinstance(c, CodeType)]
        read = [i.argval for i in dis.get_instructions(code) if i.opname in _READS_A_GLOBAL]
        here = itertools.chain(read, *(names for names, _ in inner))
        all_names = itertools.chain(code.co_names, *(names for _, names in inner))
        known = code, (tuple(dict.fromkeys(here)), tuple(dict.fromkeys(all_names)))
        _named[id(code)] = known
    return known[1]


_READS_A_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


# With the code, so that no other is made at its address.
_named: dict[int, tuple[CodeType, tuple[tuple[str, ...], tuple[str, ...]]]] = {}


def is_ours(source: Any) -> bool:
    """Whether a module or class is this package's or torch's, of which no value changes."""
    home: str = source.__module__ if isinstance(source, type) else source.__name__
    return f"{home}.".startswith(OURS)


def _taken(source: Any, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Values of a user's module or class under these names; of torch's they do not change."""
    if is_ours(source):
        return []
    kinds = source.__mro__ if isinstance(source, type) else (source,)
    return [(name, vars(kind)[name]) for kind in kinds for name in names if name in vars(kind)]


def _values(module: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, _frozen(value))
        for name, value in vars(module).items()
        if name not in OWN and not isinstance(value, Tensor)
    ]


def _frozen(value: Any, depth: int = 0) -> Any:
    """A value that changes where the other does. No reference to an object is kept: one to the cell
    would keep it alive for ever.
    """
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):  # read anew at every run, but one in a field of an object
        return Tensor, id(value) if depth else 0
    if isinstance(value, (type, ModuleType)) or depth > _DEEPEST:
        return type(value), id(value)
    if isinstance(value, nn.Module):
        return type(value), id(value), *(_hidden(m, depth + 1) for m in value.modules())
    deeper = functools.partial(_frozen, depth=depth + 1)
    # The same depth for what is inside of containers: their tensors are read anew too.
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item, depth) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return tuple((_frozen(name, depth), _frozen(item, depth)) for name, item in pairs)
    if isinstance(value, (set, frozenset)):
        return frozenset(_frozen(item, depth) for item in cast("set[Any]", value))
    if isinstance(value, (np.generic, np.ndarray)):
        array = np.asarray(cast("Any", value))
        known = array.nbytes <= _LARGEST and not array.dtype.hasobject
        return type(value), array.shape, array.dtype.str, array.tobytes() if known else id(value)
    if isinstance(value, FunctionType):
        return _code(value, deeper)
    if isinstance(value, MethodType):
        return deeper(value.__func__), deeper(value.__self__)
    if isinstance(value, functools.partial):
        return functools.partial, *map(deeper, (value.func, value.args, value.keywords))
    return type(value), id(value), *map(deeper, _fields(value))


def _hidden(module: nn.Module, depth: int) -> tuple[Any, ...]:
    """A module that is no submodule (one in a list): its values, and which tensors it holds."""
    own = [(k, v) for k, v in vars(module).items() if k not in OWN and not isinstance(v, Tensor)]
    tensors = [t for held in (module._parameters, module._buffers) for t in held.values()]
    ids = tuple(None if t is None else (id(t), t.data_ptr()) for t in tensors)
    return ids, *((name, _frozen(value, depth)) for name, value in own)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Names and values of an object's own fields."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = [(name, getattr(value, name, None)) for name in slots if not name.startswith("__")]
    return found + list(getattr(value, "__dict__", {}).items())


def _code(function: FunctionType, deeper: Any) -> tuple[Any, ...]:
    """A function's code and what it closes over; ids of functions are used again."""
    closed = tuple(map(deeper, closed_over(function)))
    return function.__code__, closed, deeper(function.__defaults__), deeper(function.__kwdefaults__)
