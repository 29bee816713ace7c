"""How ATen's views and picks of columns lower: axes resolved, rows kept apart, rows left flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from unpad.compiler.aten import rule
from unpad.compiler.lower import Dim, Dims, Lowering, Row, Shared, features

# -- views: the flat row stays, dims change --------------------------------------------------------


@rule("view", "reshape", "_unsafe_view", "_reshape_alias", "flatten")
def _view(low: Lowering, a: Any, sizes: Sequence[int], *_: Any) -> Row:
    rows = low.trace.rows
    if isinstance(a, Shared):
        raise low.refuse("reshapes a captured tensor by the number of rows")
    total = math.prod(features(a.dims)) * rows
    known = -math.prod(sizes)
    new = low.dims(tuple(total // known if s == -1 and known else s for s in sizes))
    return _with_dims(low, a, new)


def _with_dims(low: Lowering, a: Row, new: Dims) -> Row:
    if _before_rows(a.dims) != _before_rows(new):
        raise low.refuse("merges rows with the features before them")
    return Row(a.node, new, a.kind, a.weight)


def _before_rows(dims: Dims) -> int:
    at = next(i for i, d in enumerate(dims) if d.rows)
    return math.prod(d.n for d in dims[:at])


def axis_of(dims: Dims, axis: int) -> int:
    """The axis counted from the first."""
    return axis + len(dims) if axis < 0 else axis


@rule("unsqueeze")
def _unsqueeze(low: Lowering, a: Row, axis: int) -> Row:
    axis = axis + len(a.dims) + 1 if axis < 0 else axis
    return Row(a.node, (*a.dims[:axis], Dim(1), *a.dims[axis:]), a.kind, a.weight)


@rule("squeeze")
def squeeze(low: Lowering, a: Row, axes: Any = None) -> Row:
    """Axes of one, which are no longer shown."""
    wanted = range(len(a.dims)) if axes is None else [axes] if isinstance(axes, int) else axes
    gone = {axis_of(a.dims, i) for i in wanted}
    dims = tuple(d for i, d in enumerate(a.dims) if i not in gone or d.rows or d.n != 1)
    return Row(a.node, dims, a.kind, a.weight)


@rule("permute")
def permute(low: Lowering, a: Row, order: Sequence[int]) -> Row:
    """Axes in another order; the row's numbers move where features change places."""
    order = [axis_of(a.dims, i) for i in order]
    shape, dims = features(a.dims), tuple(a.dims[i] for i in order)
    moved = [i for i in order if shape[i] != 1]
    if moved == sorted(moved):
        return Row(a.node, dims, a.kind, a.weight)
    table = torch.arange(math.prod(shape)).reshape(shape).permute(order).flatten().tolist()
    return Row(low.graph.take(a.node, tuple(table)), dims, a.kind)


@rule("transpose")
def _transpose(low: Lowering, a: Row, first: int, second: int) -> Row:
    order = list(range(len(a.dims)))
    first, second = axis_of(a.dims, first), axis_of(a.dims, second)
    order[first], order[second] = second, first
    return permute(low, a, order)


@rule("t")
def _t(low: Lowering, a: Row) -> Row:
    return _transpose(low, a, 0, 1) if len(a.dims) == 2 else a


@rule("expand")
def _expand(low: Lowering, a: Any, sizes: Sequence[int], **_: Any) -> Row:
    if isinstance(a, Shared):
        return _repeat_for_rows(low, a, low.dims(tuple(sizes)))
    padded = (Dim(1),) * (len(sizes) - len(a.dims)) + a.dims
    rows = low.trace.rows
    wanted = [
        d.n * (rows if d.rows else 1) if s == -1 else s for d, s in zip(padded, sizes, strict=True)
    ]
    dims = low.dims(tuple(wanted))
    return Row(low.widen(low.to_row(a, dims), math.prod(features(dims))), dims, a.kind)


def _repeat_for_rows(low: Lowering, a: Shared, dims: Dims) -> Row:
    """A captured tensor that the cell repeats for every row (as matmul does with a batch)."""
    target = features(dims)
    padded = (1,) * (len(dims) - len(a.shape)) + a.shape
    target = tuple(p if t == -1 else t for p, t in zip(padded, target, strict=True))
    dims = tuple(Dim(t, d.rows) for t, d in zip(target, dims, strict=True))
    weight = low.once.call(torch.broadcast_to, a.ref, target)
    node = low.widen(low.shared_vector(a, target), math.prod(target))
    return Row(node, dims, a.kind, weight)


@rule("repeat")
def _repeat(low: Lowering, a: Any, repeats: Sequence[int]) -> Row:
    if isinstance(a, Shared):  # repeated for every row, and perhaps along its features too
        copies = low.dims(tuple(repeats))
        inner = [1 if d.rows else d.n for d in copies]
        shape = (1,) * (len(inner) - len(a.shape)) + a.shape
        shape = tuple(n * r for n, r in zip(shape, inner, strict=True))
        dims = tuple(Dim(n, d.rows) for n, d in zip(shape, copies, strict=True))
        if any(d.rows and (n != 1 or d.n != 1) for n, d in zip(shape, copies, strict=True)):
            raise low.refuse("repeats rows")
        return _repeat_for_rows(low, low.once_op(torch.Tensor.repeat, a, shape, inner), dims)
    padded = (Dim(1),) * (len(repeats) - len(a.dims)) + a.dims
    node, dims = a.node, list(padded)
    for axis, times in enumerate(repeats):
        if times == 1:
            continue
        if dims[axis].rows:
            raise low.refuse("repeats rows")
        shape = features(tuple(dims))
        inner = math.prod(shape[axis:])
        node = low.graph.expand(node, math.prod(shape[:axis]), times, inner)
        dims[axis] = Dim(dims[axis].n * times)
    return Row(node, tuple(dims), a.kind)


# -- columns ---------------------------------------------------------------------------------------


def _columns(low: Lowering, a: Row, axis: int, columns: Sequence[int]) -> Row:
    """The given places along a feature axis."""
    axis = axis_of(a.dims, axis)
    if a.dims[axis].rows:
        if list(columns) == list(range(low.trace.rows * a.dims[axis].n)):
            return a
        raise low.refuse("picks rows")
    shape = features(a.dims)
    dims = (*a.dims[:axis], Dim(len(columns)), *a.dims[axis + 1 :])
    if list(columns) == list(range(shape[axis])):
        return a
    inner, n = math.prod(shape[axis + 1 :]), shape[axis]
    table = tuple(
        (o * n + c) * inner + i
        for o in range(math.prod(shape[:axis]))
        for c in columns
        for i in range(inner)
    )
    node = low.widen(a.node, math.prod(shape))
    return Row(low.graph.take(node, table), dims, a.kind)


def _size(low: Lowering, dim: Dim) -> int:
    return dim.n * (low.trace.rows if dim.rows else 1)


@rule("slice")
def _slice(
    low: Lowering, a: Row, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Row:
    size = _size(low, a.dims[axis_of(a.dims, axis)])
    return _columns(low, a, axis, range(size)[slice(start, end, step)])


@rule("narrow")
def narrow(low: Lowering, a: Row, axis: int, start: int, length: int) -> Row:
    """Neighbouring places of an axis."""
    return _slice(low, a, axis, start, start + length)


@rule("select")
def _select(low: Lowering, a: Row, axis: int, index: int) -> Row:
    axis = axis_of(a.dims, axis)
    size = _size(low, a.dims[axis])
    picked = _columns(low, a, axis, [index % size])
    return Row(picked.node, (*a.dims[:axis], *a.dims[axis + 1 :]), a.kind)


@rule("split_with_sizes", "unsafe_split_with_sizes")
def _split_with_sizes(low: Lowering, a: Row, sizes: Sequence[int], axis: int = 0) -> list[Row]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_columns(low, a, axis, range(e - s, e)) for s, e in zip(sizes, ends, strict=True)]


@rule("split", "unsafe_split")
def _split(low: Lowering, a: Row, size: int, axis: int = 0) -> list[Row]:
    total = _size(low, a.dims[axis_of(a.dims, axis)])
    return [
        _columns(low, a, axis, range(at, min(at + size, total))) for at in range(0, total, size)
    ]


@rule("unbind")
def _unbind(low: Lowering, a: Row, axis: int = 0) -> list[Row]:
    if a.dims[axis_of(a.dims, axis)].rows:
        raise low.refuse("picks rows")
    return [_select(low, a, axis, i) for i in range(a.dims[axis_of(a.dims, axis)].n)]


def _keeps_rows(low: Lowering, a: Row, axis: int) -> None:
    """A row by its number may be meant for each of them in turn; another order never is."""
    if a.dims[axis_of(a.dims, axis)].rows:
        raise low.refuse("mixes rows: it gives them another order")


@rule("flip")
def _flip(low: Lowering, a: Row, axes: Sequence[int]) -> Row:
    for axis in axes:
        _keeps_rows(low, a, axis)
        a = _columns(low, a, axis, range(a.dims[axis_of(a.dims, axis)].n - 1, -1, -1))
    return a


@rule("roll")
def _roll(low: Lowering, a: Row, shifts: Sequence[int], axes: Sequence[int] = ()) -> Row:
    if not axes:
        raise low.refuse("mixes rows: it rolls over the batch")
    for shift, axis in zip(shifts, axes, strict=True):
        _keeps_rows(low, a, axis)
        n = a.dims[axis_of(a.dims, axis)].n
        a = _columns(low, a, axis, [(i - shift) % n for i in range(n)])
    return a


@rule("cat")
def cat(low: Lowering, parts: Sequence[Any], axis: int = 0) -> Row:
    """Values end to end along an axis of features."""
    rows = next(p for p in parts if isinstance(p, Row))
    axis = axis_of(rows.dims, axis)
    if rows.dims[axis].rows:
        raise low.refuse("joins rows")
    nodes: list[int] = []
    counts: list[int] = []
    for part in parts:
        n = part.dims[axis].n if isinstance(part, Row) else part.shape[axis]
        dims = (*rows.dims[:axis], Dim(n), *rows.dims[axis + 1 :])
        nodes.append(low.widen(low.to_row(part, dims), math.prod(features(dims))))
        counts.append(n)
    dims = (*rows.dims[:axis], Dim(sum(counts)), *rows.dims[axis + 1 :])
    shape = features(dims)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if outer == 1:
        node = low.graph.concat(nodes)
    else:
        pieces = [
            low.graph.slice(p, o * n * inner, n * inner)
            for o in range(outer)
            for p, n in zip(nodes, counts, strict=True)
        ]
        node = low.graph.concat(pieces)
    return Row(node, dims, low.promoted(*parts))


@rule("stack")
def _stack(low: Lowering, parts: Sequence[Any], axis: int = 0) -> Row:
    rank = next(len(p.dims) for p in parts if isinstance(p, Row))
    axis = axis + rank + 1 if axis < 0 else axis

    def lifted(part: Any) -> Any:
        if isinstance(part, Row):
            return _unsqueeze(low, part, axis)
        shape = (*part.shape[:axis], 1, *part.shape[axis:])
        return low.once_op(torch.unsqueeze, part, shape, axis)

    return cat(low, [lifted(p) for p in parts], axis)
