"""Stage 2, lower: from ATen on a batch of rows to operations on one row.

Each traced value is one of
- `Row`: it depends on the row; a node of the step graph and its dims, one of which counts rows;
- `Shared`: it depends on parameters and captured tensors only; it is computed once a run, by torch
  itself and under autograd, so any operation will do (weight norm, a parametrization, an exp);
- a Python number.
Views change dims, not nodes; a row's numbers stay flat in the order of its dims. An operation that
would mix rows is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from unpad.compiler.once import Once, OnceRef
from unpad.compiler.step import Graph, Node, Noise, Step
from unpad.compiler.trace import LeafRef, MixesRows, Record, Ref, Refused, Trace
from unpad.compiler.whole import is_whole


@dataclass(frozen=True)
class Dim:
    """An axis: of n features, or of the rows, each with n features that were merged into it."""

    n: int
    rows: bool = False


Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Row:
    """A value of a row, or of several rows merged with features."""

    node: int
    dims: Dims
    kind: str = "float"
    weight: OnceRef | None = None  # it is this shared tensor, repeated for every row


@dataclass(frozen=True)
class Shared:
    """A tensor that depends on no row."""

    ref: OnceRef
    shape: tuple[int, ...]
    kind: str = "float"


Value = Row | Shared


_OVER_THE_BATCH = ("mixes rows: it", "mixes rows: batch norm")


def features(dims: Dims) -> tuple[int, ...]:
    """Sizes of the row that these dims describe."""
    return tuple(d.n for d in dims)


def as_vector(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A shared tensor as the flat vector that a row of this shape would be."""
    return torch.broadcast_to(tensor, shape).reshape(-1).to(dtype)


class Lowering:
    """Walks a trace; `rules` maps an ATen name to the function that lowers it."""

    rules: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init__(self, trace: Trace, dtype: torch.dtype) -> None:
        self.trace, self.dtype = trace, dtype
        self.graph = Graph()
        self.once = Once(len(trace.leaves))
        self.values: dict[int, Any] = {}
        self.whole: dict[int, tuple[torch.dtype, str]] = {}
        self.noises: list[Noise] = []
        self.shared_nodes: dict[tuple[int, tuple[int, ...]], int] = {}
        self.matrix_numbers: dict[Any, int] = {}
        self.matrix_shapes: list[tuple[int, int]] = []
        self.record: Record | None = None

    # -- the walk --------------------------------------------------------------------------------

    def run(self) -> Step:
        """The step that the trace is."""
        widths: list[int] = []
        for number in range(self.trace.inputs):
            dims = (Dim(1, True), *(Dim(size) for size in self.trace.shapes[number][1:]))
            widths.append(math.prod(features(dims)))
            op = "x" if number == 0 else "state"
            node = self.graph.leaf(op, widths[-1], max(number - 1, 0))
            self.values[number] = Row(node, dims, self.kind(self.trace.dtypes[number]))
        for ref in (self.trace.output, *self.trace.states):
            if isinstance(ref, Ref) and self.trace.shapes[ref.number][:1] != (self.trace.rows,):
                raise Refused("what the cell returns has not the rows as its first axis")
        for record in self.needed():
            self.record = record
            self.graph.source = record.where
            self.lower(record)
        self.graph.source = ""
        for name, ref in self.trace.kept:
            if isinstance(self.values.get(ref.number), Row):
                raise Refused(
                    f"forward keeps a value of the row in the attribute `{name}`, which is set at "
                    "no step of a compiled loop; return it as output or state"
                )
        output = self.result(self.trace.output, "the output")
        states = [self.result(ref, "a new state") for ref in self.trace.states]
        for width, node in zip(widths[1:], states, strict=True):
            if self.graph[node].width != width:
                raise Refused("a new state has not the width of the state")
        return Step(
            graph=self.graph,
            output=output,
            states=states,
            state_widths=widths[1:],
            x_width=widths[0],
            noises=self.noises,
            matrices=self.matrix_shapes,
            shared_widths=[],
        )

    def needed(self) -> list[Record]:
        """The operations that the results depend on; others, such as a check, may be anything."""
        wanted = {r.number for r in (self.trace.output, *self.trace.states) if isinstance(r, Ref)}
        kept: list[Record] = []
        for record in reversed(self.trace.records):
            if any(result.number in wanted for result in record.results):
                kept.append(record)
                args = pytree.tree_leaves((record.args, record.kwargs))
                wanted |= {arg.number for arg in args if isinstance(arg, Ref)}
        return kept[::-1]

    def lower(self, record: Record) -> None:
        """One traced operation."""
        args, kwargs = pytree.tree_map(self.value, (record.args, record.kwargs))
        name = record.func.overloadpacket.__name__
        flat = pytree.tree_leaves((args, kwargs))
        if name == "scalar_tensor":  # the number of `where(mask, 0, count)`
            results = torch.scalar_tensor(*args, **{**kwargs, "device": "cpu"}).item()
        elif not any(isinstance(v, Row) for v in flat) and not self.makes_rows(name, flat):
            results = self.call_once(record, args, kwargs)
        else:
            in_place = name.endswith("_") and not name.endswith("__")
            rule = self.rules.get(name) or (self.rules.get(name[:-1]) if in_place else None)
            if rule is None:
                raise self.refuse("is not in the table of operations")
            results = self.apply(rule, args, kwargs)
        outs = results if isinstance(results, (list, tuple)) else (results,)
        for ref, value in zip(record.results, outs, strict=False):
            if isinstance(value, Row):
                self.check(ref, value)
                self.keep_whole(value, self.trace.dtypes[ref.number])
                if not record.grad:
                    value = self.without_gradient(record, value)
            self.values[ref.number] = value
        if record.func._schema.is_mutable and isinstance(record.args[0], Ref):
            self.values[record.args[0].number] = self.values[record.results[0].number]

    def without_gradient(self, record: Record, value: Row) -> Row:
        """A result under no_grad. A tensor changed in place there keeps its gradient's history:
        new = old + stop(new - old), which is what torch's cosine_similarity relies on.
        """
        if not record.func._schema.is_mutable or value.kind != "float":
            return self.stop_gradient(value)
        old = self.value(record.args[0])
        change = self.stop_gradient(self.elementwise("sub", value, old))
        return self.elementwise("add", old, change)

    def apply(self, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A rule's result; a form of the operation that it does not know is refused, no crash."""
        try:
            return rule(self, *args, **kwargs)
        except Refused:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise self.refuse(f"was called in a form that is not in the table ({said})") from error

    def makes_rows(self, name: str, flat: list[Any]) -> bool:
        """Whether a call without row arguments names the number of rows in a size."""
        return any(
            isinstance(v, int)
            and not isinstance(v, bool)
            and v >= self.trace.rows
            and v % self.trace.rows == 0
            for v in flat
        )

    def call_once(self, record: Record, args: Any, kwargs: Any) -> Any:
        """An operation on shared tensors alone: kept as it is, to be called once a run."""
        as_refs = pytree.tree_map(lambda v: v.ref if isinstance(v, Shared) else v, (args, kwargs))
        func = record.func
        name = func.overloadpacket.__name__
        if any(word in name for word in ("bernoulli", "rand", "normal_", "uniform_", "dropout")):
            raise self.refuse("draws random numbers for a parameter; use a parametrization")
        if func._schema.is_mutable:
            func = getattr(getattr(torch.ops.aten, name[:-1]), func._overloadname, None)
            if func is None:
                raise self.refuse("changes a tensor in place")
        numbers = tuple(range(self.once.count, self.once.count + len(record.results)))
        self.once.count += len(numbers)
        self.once.calls.append((_under(func, record.grad), *as_refs, numbers))
        return [
            Shared(OnceRef(n), self.trace.shapes[r.number], _kind(self.trace.dtypes[r.number]))
            for n, r in zip(numbers, record.results, strict=True)
        ]

    def value(self, arg: Any) -> Any:
        """What a traced argument stands for."""
        if isinstance(arg, Ref):
            return self.values[arg.number]
        if isinstance(arg, LeafRef):
            leaf = self.trace.leaves[arg.number]
            return Shared(OnceRef(arg.number), tuple(leaf.shape), _kind(leaf.dtype))
        return arg

    def result(self, ref: Any, what: str) -> int:
        """The node of what the cell returns."""
        value = self.value(ref)
        if not isinstance(value, Row):
            raise Refused(f"{what} does not depend on the row: it has no row axis")
        if not value.dims or not value.dims[0].rows or value.dims[0].n != 1:
            raise Refused(f"{what} has not the rows as its first axis")
        return self.widen(value.node, math.prod(features(value.dims)))

    def widen(self, node: int, width: int) -> int:
        """A node of width 1 spread over a width."""
        return node if self.graph[node].width == width else self.graph.expand(node, 1, width, 1)

    def check(self, ref: Ref, value: Row) -> None:
        """Torch's own shape and dtype of a result must be those of its lowering."""
        dtype = self.trace.dtypes[ref.number]
        try:
            self.kind(self.dtype if self.is_exact(value, dtype) else dtype)
        except Refused as refused:
            raise self.refuse(f"makes {refused}") from None
        shape = tuple(d.n * (self.trace.rows if d.rows else 1) for d in value.dims)
        if shape != self.trace.shapes[ref.number]:
            raise self.refuse(f"was lowered to {shape}, not to {self.trace.shapes[ref.number]}")

    def keep_whole(self, value: Row, dtype: torch.dtype) -> None:
        """Take down that a node is of an integer dtype, the narrowest that it is read as."""
        if is_whole(dtype):
            assert self.record is not None
            found = self.whole.get(value.node)
            if found is None or torch.iinfo(dtype).max < torch.iinfo(found[0]).max:
                where = f"{self.record.func} at {self.record.where}"
                self.whole[value.node] = (dtype, where)

    def is_exact(self, value: Row, dtype: torch.dtype) -> bool:
        """Whether a narrower dtype on the way rounds nothing.

        Torch's default float32 comes into a float64 cell by ``torch.ones(n, 1)``, by ``mask * 1.0``
        and by ``where(mask, 1.0, 0.0)``.
        """
        assert self.record is not None
        if not dtype.is_floating_point or torch.promote_types(dtype, self.dtype) != self.dtype:
            return False
        name = self.record.func.overloadpacket.__name__
        args = [self.value(arg) for arg in self.record.args]
        numbers = [arg for arg in args if isinstance(arg, float)]
        if name == "mul" and any(isinstance(a, (Row, Shared)) and a.kind == "bool" for a in args):
            return all(float(torch.tensor(n, dtype=dtype)) == n for n in numbers)
        return name in _MOVES or self.is_exact_constant(value, dtype)

    def is_exact_constant(self, value: Row, dtype: torch.dtype) -> bool:
        """One number that both dtypes have."""
        node = self.graph[value.node]
        while node.op in ("expand", "stop"):
            node = self.graph[node.args[0]]
        if node.op != "const":
            return False
        return float(torch.tensor(node.value, dtype=dtype)) == node.value

    def stop_gradient(self, value: Row) -> Row:
        """The same value, with no gradient through it."""
        return Row(
            self.graph.add(Node("stop", (value.node,), self.graph[value.node].width)),
            value.dims,
            value.kind,
        )

    @property
    def in_place(self) -> bool:
        """Whether this operation writes into its first argument."""
        return self.record is not None and self.record.func._schema.is_mutable

    def refuse(self, reason: str) -> Refused:
        """Why this operation cannot be taken, with its source line."""
        assert self.record is not None
        kind = MixesRows if reason.startswith(_OVER_THE_BATCH) else Refused
        return kind(f"{self.record.func} at {self.record.where} {reason}")

    # -- values ----------------------------------------------------------------------------------

    def kind(self, dtype: torch.dtype) -> str:
        """float, int or bool; another float than the program's is refused."""
        if dtype.is_floating_point and dtype != self.dtype:
            raise Refused(f"{dtype} in a cell of {self.dtype}; the program has one dtype")
        if dtype.is_complex:
            raise Refused("complex numbers are not in the table of operations")
        return _kind(dtype)

    def dims(self, sizes: tuple[int, ...]) -> Dims:
        """Which of these sizes counts rows."""
        rows = self.trace.rows
        found = [s >= rows and s % rows == 0 for s in sizes]
        if sum(found) > 1:
            raise self.refuse("has two row axes")
        return tuple(Dim(s // rows if f else s, f) for s, f in zip(sizes, found, strict=True))

    def shared_vector(self, value: Shared, shape: tuple[int, ...]) -> int:
        """The node of a shared tensor, broadcast to a row's shape."""
        size = math.prod(value.shape)
        if size in (1, math.prod(shape)):
            shape = (size,)
        key = (value.ref.number, shape)
        if key not in self.shared_nodes:
            ref = value.ref
            leaf = self.trace.leaves[ref.number] if ref.number < self.once.leaves else None
            if leaf is None or leaf.shape != shape or leaf.dtype is not self.dtype:
                ref = self.once.call(_vector, ref, shape, self.dtype)
            self.shared_nodes[key] = self.graph.leaf(
                "shared", math.prod(shape), len(self.once.shared)
            )
            self.once.shared.append(ref)
        return self.shared_nodes[key]

    def matrix(self, value: Shared) -> int:
        """The number of a [K, N] matrix of the program."""
        number = self.matrix_numbers.setdefault(value.ref, len(self.matrix_shapes))
        if number == len(self.matrix_shapes):
            self.matrix_shapes.append((value.shape[0], value.shape[1]))
            self.once.matrices.append(value.ref)
        return number

    def once_op(
        self, function: Callable[..., Tensor], value: Shared, shape: tuple[int, ...], *args: Any
    ) -> Shared:
        """A call on a shared tensor whose result has a known shape."""
        return Shared(self.once.call(function, value.ref, *args), shape)

    def to_row(self, value: Any, dims: Dims) -> int:
        """The node of any value, broadcast to a row's dims; a single number stays one number."""
        if isinstance(value, (int, float)):
            return self.graph.const(float(value))
        target = features(dims)
        if isinstance(value, Shared):
            padded = (1,) * (len(dims) - len(value.shape)) + value.shape
            for size, dim in zip(padded, dims, strict=True):
                if dim.rows and size not in (1, dim.n):
                    raise self.refuse("pairs the rows with an axis of a captured tensor")
                if dim.rows and size != 1:
                    raise self.refuse("pairs merged rows with an axis of a captured tensor")
            return self.shared_vector(value, target)
        padded_dims = (Dim(1),) * (len(dims) - len(value.dims)) + value.dims
        for mine, dim in zip(padded_dims, dims, strict=True):
            if mine.rows != dim.rows:
                raise self.refuse("mixes rows: the row axes of its arguments do not line up")
        return self.broadcast(value.node, features(padded_dims), target)

    def broadcast(self, node: int, shape: tuple[int, ...], target: tuple[int, ...]) -> int:
        """A node spread from one row shape to another."""
        if self.graph[node].width == 1 or shape == target:
            return node
        current = list(shape)
        for axis, n in enumerate(target):
            if current[axis] != n:
                outer, inner = math.prod(current[:axis]), math.prod(current[axis + 1 :])
                node = self.graph.expand(node, outer, n, inner)
                current[axis] = n
        return node

    def common(self, *values: Any) -> Dims:
        """The dims of an elementwise result, by torch's rules of broadcasting."""
        all_dims = [
            v.dims if isinstance(v, Row) else tuple(Dim(s) for s in v.shape)
            for v in values
            if isinstance(v, (Row, Shared))
        ]
        rank = max(len(d) for d in all_dims)
        columns = zip(*[(Dim(1),) * (rank - len(d)) + d for d in all_dims], strict=True)
        return tuple(self.common_dim(column) for column in columns)

    def common_dim(self, column: tuple[Dim, ...]) -> Dim:
        """One axis of a broadcast result."""
        rows = [d for d in column if d.rows]
        n = max(d.n for d in column) if min(d.n for d in column) > 0 else 0
        if rows and any(d.n != rows[0].n for d in rows):
            raise self.refuse("mixes rows")
        return Dim(rows[0].n if rows else n, bool(rows))

    def elementwise(self, name: str, *values: Any, kind: str = "") -> Row:
        """An operation of the table on broadcast values."""
        dims = self.common(*values)
        nodes = [self.to_row(v, dims) for v in values]
        node = self.graph.op(name, *nodes)
        width = math.prod(features(dims))
        if self.graph[node].width != width:
            node = self.graph.expand(node, 1, width, 1)
        return Row(node, dims, kind or self.promoted(*values))

    def promoted(self, *values: Any) -> str:
        """The kind of an arithmetic result."""
        kinds = [v.kind if isinstance(v, (Row, Shared)) else _kind_of(v) for v in values]
        return "float" if "float" in kinds else "int" if "int" in kinds else "bool"


# Operations that choose or move numbers and compute none.
_MOVES = frozenset(
    {
        "where", "masked_fill", "detach", "clone", "alias", "expand", "view", "unsqueeze",
        "squeeze", "permute", "transpose", "t", "cat", "stack", "slice", "select",
    }
)  # fmt: skip


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "float"


def _vector(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    if tensor.shape == shape:
        return tensor
    if tensor.numel() == math.prod(shape):
        return tensor.reshape(-1)
    return as_vector(tensor, shape, dtype)


def _under(func: Any, grad: bool) -> Any:
    if grad:
        return func

    def without_gradient(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return func(*args, **kwargs)

    return without_gradient
