"""Stage 1, trace: run the cell once on a few rows and write down every ATen operation.

A dispatch mode sees each operation below autograd, on real tensors, so tracing costs microseconds
an operation and needs neither fake tensors nor a symbolic-shape machinery (`make_fx` on fake
tensors: 40-80 ms a cell and 2.5 s at its first use, measured on torch 2.13). Tensors are known by
identity: what no operation of the cell made is a *leaf* (a parameter, a buffer, a captured tensor).

What cannot be written down faithfully is refused with `Refused`, and the cell then runs on the
torch engine: a value read back into Python, an in-place change that another tensor sees, a
user-written `autograd.Function` (its backward is Python).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CellType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from unpad import nest

_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_VALUE_READS = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "equal",
    "_unique2",
    "masked_select",
)


_ESCAPES = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "storage"})


class Refused(Exception):  # noqa: N818  (an answer, not a fault: the eager engine takes over)
    """The compiler cannot take this cell; the text names the operation, the line and the reason."""


class MixesRows(Refused):
    """A row's result would depend on the rows beside it, and so on who else is in the batch."""


@dataclass(frozen=True)
class Ref:
    """A tensor of the trace, by number: inputs first, then the operations' results."""

    number: int


@dataclass(frozen=True)
class LeafRef:
    """A tensor from outside, by its number in `Trace.leaves`."""

    number: int


@dataclass(frozen=True)
class Record:
    """One operation as it was called."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Ref, ...]
    grad: bool
    where: str


@dataclass
class Trace:
    """All operations of one call of a cell."""

    rows: int
    records: list[Record]
    leaves: list[Tensor]
    inputs: int
    output: Any
    states: list[Any]
    shapes: dict[int, tuple[int, ...]]
    dtypes: dict[int, torch.dtype]
    kept: list[tuple[str, Ref]] = field(default_factory=list)
    refused: Refused | None = None


class _NoEscape(TorchFunctionMode):
    """Refuses the ways out of a tensor that no operation shows: NumPy, lists, raw memory."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _ESCAPES:
            raise Refused(f"{name} at {_user_line()}: the cell reads a tensor's value into Python")
        return func(*args, **(kwargs or {}))


@dataclass
class _Recorder(TorchDispatchMode):
    known: dict[int, Ref] = field(default_factory=dict)
    keep: list[Tensor] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    leaf_numbers: dict[int, int] = field(default_factory=dict)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[int, torch.dtype] = field(default_factory=dict)
    stale: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch need not wrap this class, which would import Dynamo; `choose.run` does."""
        return False

    def name(self, tensor: Tensor) -> Ref:
        ref = self.known[id(tensor)] = Ref(len(self.shapes))
        self.shapes[ref.number], self.dtypes[ref.number] = tuple(tensor.shape), tensor.dtype
        self.keep.append(tensor)
        return ref

    def ref(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in self.stale:
            raise Refused(f"{self.stale[id(value)]} with one that is read later")
        if id(value) in self.known:
            return self.known[id(value)]
        number = self.leaf_numbers.setdefault(id(value), len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(value)
        return LeafRef(number)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        where = _user_line()
        name = func.overloadpacket.__name__
        if name in _VALUE_READS:
            raise Refused(f"{name} at {where}: the cell reads a tensor's value back into Python")
        refs, ref_kwargs = pytree.tree_map(self.ref, (args, kwargs))
        if "batch_norm" in name and any(flag is True for flag in args):
            raise MixesRows(f"{func} at {where} mixes rows: its statistics are the batch's")
        if func._schema.is_mutable and self._writes_outside(func, args, where):
            return args[0]
        out = func(*args, **kwargs)
        results = tuple(self.name(r) for r in pytree.tree_leaves(out) if isinstance(r, Tensor))
        self.records.append(Record(func, refs, ref_kwargs, results, torch.is_grad_enabled(), where))
        return out

    def _writes_outside(self, func: Any, args: tuple[Any, ...], where: str) -> bool:
        """Whether a tensor from outside is changed: `Trace.refused`, and not done meanwhile.

        What the cell does besides may mix rows, which is worse (batch norm counts its calls).
        """
        if not func.overloadpacket.__name__.endswith("_"):
            raise Refused(f"{func} at {where}: it writes into a tensor that it is given")
        target = args[0]
        text = f"{func} at {where}: an in-place change of a tensor from outside the cell"
        outside = self._from_outside(target)
        storage = target.untyped_storage().data_ptr()
        for other in [*self.keep, *self.leaves]:
            shares = other is not target and other.untyped_storage().data_ptr() == storage
            if not outside and shares and id(other) not in self.stale and _overlap(target, other):
                text = f"{func} at {where}: an in-place change of a tensor that shares memory"
                outside = self._from_outside(other)
                if not outside:
                    self.stale[id(other)] = text
        if outside:
            self.refused = self.refused or Refused(text)
        return outside

    def _from_outside(self, tensor: Tensor) -> bool:
        ref = self.ref(tensor)
        return isinstance(ref, LeafRef) or ref.number < self.inputs

    inputs: int = 0
    refused: Refused | None = None


_MODULE_FIELDS = frozenset(vars(nn.Module()))


def _user_line() -> str:
    """file:line of the innermost frame that is neither torch's nor the compiler's."""
    frame: Any = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return "unknown line" if frame is None else _line(frame, frame.f_lineno)


def line_of(error: BaseException) -> str:
    """file:line of the innermost frame of an error that is neither torch's nor the compiler's."""
    found, entry = "unknown line", error.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_OURS):
            found = _line(entry.tb_frame, entry.tb_lineno)
        entry = entry.tb_next
    return found


def _line(frame: FrameType, number: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{number}"


def _custom_functions(tensors: list[Tensor]) -> Iterator[str]:
    stack: list[Any] = [t.grad_fn for t in tensors]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield type(node).__name__
        stack.extend(parent for parent, _ in node.next_functions)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two views of one memory have a number in common: chunks of a row have not."""
    return not _places(a).isdisjoint(_places(b))


def _places(tensor: Tensor) -> set[int]:
    places = {int(tensor.storage_offset())}
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + i * int(stride) for place in places for i in range(size)}
    return places


def autocast_enabled(device: str) -> bool:
    """Whether autocast is at work on a kind of device; torch cannot be asked for "meta"."""
    return device != "meta" and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Programs have one dtype, that of their input: casts on the way would only be refused."""
    return torch.autocast(device, enabled=False) if autocast_enabled(device) else nullcontext()


def record(cell: nn.Module, x: Tensor, state: Any) -> Trace:
    """The operations of one call of the cell on example rows."""
    recorder = _Recorder()
    flat = nest.leaves(state)
    for module in cell.modules():
        for name in _parametrized(module):
            getattr(module, name)  # worked out once a run, outside of the step: a leaf
    for tensor in (x, *flat):
        recorder.name(tensor)
    recorder.inputs = 1 + len(flat)
    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        without_autocast(x.device.type),
        _NoEscape(),
        recorder,
    ):
        try:
            output, new_state = cell(x, state)
        except Exception as error:  # perhaps since it went on without the change
            if recorder.refused is None or isinstance(error, MixesRows):
                raise
            raise recorder.refused from None
    new_flat = nest.leaves(new_state)
    if not nest.same_form(state, new_state):
        raise Refused(
            f"the cell was given the state {nest.describe(state)} and returned "
            f"{nest.describe(new_state)}"
        )
    if not all(isinstance(t, Tensor) for t in (output, *new_flat)):
        raise Refused("the cell must return (output tensor, new state tensors)")
    for name in _custom_functions([output, *new_flat]):
        raise Refused(f"{name}: a user-written autograd.Function has its backward in Python")
    return Trace(
        rows=x.shape[0],
        records=recorder.records,
        leaves=recorder.leaves,
        inputs=recorder.inputs,
        output=recorder.ref(output),
        states=[recorder.ref(t) for t in new_flat],
        shapes=recorder.shapes,
        dtypes=recorder.dtypes,
        kept=list(_kept(cell, recorder)),
        refused=recorder.refused,
    )


def _kept(cell: nn.Module, recorder: _Recorder) -> Iterator[tuple[str, Ref]]:
    """Attributes that hold a tensor which this very call has made."""
    for module in cell.modules():
        for name, value in vars(module).items():
            if name not in _MODULE_FIELDS:
                for item in pytree.tree_leaves(value):
                    if isinstance(item, Tensor) and id(item) in recorder.known:
                        yield name, recorder.known[id(item)]


# -- leaves: how to get a captured tensor again at every call --------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A captured tensor: what holds it, or the tensor itself.

    ``holder`` is a module with the attribute, the globals of a forward function with the name, or
    the variable that it closes over; ``keys`` lead on where that is a list, a tuple or a dict.
    """

    holder: weakref.ref[nn.Module] | dict[str, Any] | CellType | None
    attribute: str
    tensor: Tensor | None
    keys: tuple[Any, ...] = ()

    def get(self) -> Tensor | None:
        """The tensor as it is now; None where its place is gone."""
        held: Any = self.tensor
        if isinstance(self.holder, weakref.ref):
            module = self.holder()
            held = None if module is None else module._parameters.get(self.attribute)
            if held is None:  # no parameter of its own: a buffer, or computed
                held = getattr(module, self.attribute, None)
        elif isinstance(self.holder, dict):
            held = self.holder.get(self.attribute)
        elif self.holder is not None:
            held = content_of(self.holder)
        try:
            for key in self.keys:
                held = held[key]
        except (LookupError, TypeError):
            return None
        return held if isinstance(held, Tensor) else None


def content_of(variable: CellType) -> Any:
    """What a variable holds that a function closes over; None where it holds nothing yet."""
    try:
        return variable.cell_contents
    except ValueError:
        return None


Place = tuple[nn.Module, str, tuple[Any, ...]]


def attributes(cell: nn.Module) -> dict[int, Place]:
    """id of every tensor that an attribute of a module holds → (module, attribute, keys)."""
    found: dict[int, Place] = {}
    for module in cell.modules():
        held = {
            **vars(module),
            **dict(module.named_parameters(recurse=False)),
            **dict(module.named_buffers(recurse=False)),
        }
        for name, value in held.items():
            if name not in _MODULE_FIELDS:
                for keys, item in _tensors(value):
                    found.setdefault(id(item), (module, name, keys))
        for name in _parametrized(module):
            found[id(getattr(module, name))] = (module, name, ())
    return found


def _tensors(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Tensors in a value, with the keys that lead to them through lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield keys, value
    elif isinstance(value, (list, tuple, dict)):
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _tensors(item, (*keys, key))


def _parametrized(module: nn.Module) -> list[str]:
    if not parametrize.is_parametrized(module):
        return []
    return list(module.parametrizations)  # type: ignore[arg-type]


def find_leaves(cell: nn.Module, tensors: list[Tensor]) -> list[Leaf]:
    """Where each captured tensor is to be found at later calls."""
    held = attributes(cell)
    leaves: list[Leaf] = []
    for tensor in tensors:
        owner = held.get(id(tensor))
        if owner is None:
            leaves.append(_variable(cell, tensor) or Leaf(None, "", tensor))
        else:
            leaves.append(Leaf(weakref.ref(owner[0]), owner[1], None, owner[2]))
    return leaves


def _variable(cell: nn.Module, tensor: Tensor) -> Leaf | None:
    """The global or closed-over variable of a forward function that holds a tensor."""
    functions: list[Any] = [module.forward for module in cell.modules()]
    for function in (getattr(f, "__func__", f) for f in functions):
        for variable in getattr(function, "__closure__", None) or ():
            if content_of(variable) is tensor:
                return Leaf(variable, "", None)
        code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        for name in code.co_names if code is not None else ():
            if names.get(name) is tensor:
                return Leaf(names, name, None)
    return None
