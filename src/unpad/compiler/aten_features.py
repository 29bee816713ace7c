"""How ATen's views, reductions and products over features lower: axes resolved, rows kept apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from unpad.compiler.aten import low_mul, rule
from unpad.compiler.lower import Dim, Dims, Lowering, Row, Shared, features
from unpad.compiler.step import Node

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


def _axis(dims: Dims, axis: int) -> int:
    return axis + len(dims) if axis < 0 else axis


@rule("unsqueeze")
def _unsqueeze(low: Lowering, a: Row, axis: int) -> Row:
    axis = axis + len(a.dims) + 1 if axis < 0 else axis
    return Row(a.node, (*a.dims[:axis], Dim(1), *a.dims[axis:]), a.kind, a.weight)


@rule("squeeze")
def squeeze(low: Lowering, a: Row, axes: Any = None) -> Row:
    """Axes of one, which are no longer shown."""
    wanted = range(len(a.dims)) if axes is None else [axes] if isinstance(axes, int) else axes
    gone = {_axis(a.dims, i) for i in wanted}
    dims = tuple(d for i, d in enumerate(a.dims) if i not in gone or d.rows or d.n != 1)
    return Row(a.node, dims, a.kind, a.weight)


@rule("permute")
def permute(low: Lowering, a: Row, order: Sequence[int]) -> Row:
    """Axes in another order; the row's numbers move where features change places."""
    order = [_axis(a.dims, i) for i in order]
    shape, dims = features(a.dims), tuple(a.dims[i] for i in order)
    moved = [i for i in order if shape[i] != 1]
    if moved == sorted(moved):
        return Row(a.node, dims, a.kind, a.weight)
    table = torch.arange(math.prod(shape)).reshape(shape).permute(order).flatten().tolist()
    return Row(low.graph.take(a.node, tuple(table)), dims, a.kind)


@rule("transpose")
def _transpose(low: Lowering, a: Row, first: int, second: int) -> Row:
    order = list(range(len(a.dims)))
    first, second = _axis(a.dims, first), _axis(a.dims, second)
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
    axis = _axis(a.dims, axis)
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
    size = _size(low, a.dims[_axis(a.dims, axis)])
    return _columns(low, a, axis, range(size)[slice(start, end, step)])


@rule("narrow")
def narrow(low: Lowering, a: Row, axis: int, start: int, length: int) -> Row:
    """Neighbouring places of an axis."""
    return _slice(low, a, axis, start, start + length)


@rule("select")
def _select(low: Lowering, a: Row, axis: int, index: int) -> Row:
    axis = _axis(a.dims, axis)
    size = _size(low, a.dims[axis])
    picked = _columns(low, a, axis, [index % size])
    return Row(picked.node, (*a.dims[:axis], *a.dims[axis + 1 :]), a.kind)


@rule("split_with_sizes", "unsafe_split_with_sizes")
def _split_with_sizes(low: Lowering, a: Row, sizes: Sequence[int], axis: int = 0) -> list[Row]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_columns(low, a, axis, range(e - s, e)) for s, e in zip(sizes, ends, strict=True)]


@rule("split", "unsafe_split")
def _split(low: Lowering, a: Row, size: int, axis: int = 0) -> list[Row]:
    total = _size(low, a.dims[_axis(a.dims, axis)])
    return [
        _columns(low, a, axis, range(at, min(at + size, total))) for at in range(0, total, size)
    ]


@rule("unbind")
def _unbind(low: Lowering, a: Row, axis: int = 0) -> list[Row]:
    if a.dims[_axis(a.dims, axis)].rows:
        raise low.refuse("picks rows")
    return [_select(low, a, axis, i) for i in range(a.dims[_axis(a.dims, axis)].n)]


@rule("flip")
def _flip(low: Lowering, a: Row, axes: Sequence[int]) -> Row:
    for axis in axes:
        a = _columns(low, a, axis, range(a.dims[_axis(a.dims, axis)].n - 1, -1, -1))
    return a


@rule("roll")
def _roll(low: Lowering, a: Row, shifts: Sequence[int], axes: Sequence[int] = ()) -> Row:
    if not axes:
        raise low.refuse("rolls over all axes, rows too")
    for shift, axis in zip(shifts, axes, strict=True):
        n = a.dims[_axis(a.dims, axis)].n
        a = _columns(low, a, axis, [(i - shift) % n for i in range(n)])
    return a


@rule("cat")
def cat(low: Lowering, parts: Sequence[Any], axis: int = 0) -> Row:
    """Values end to end along an axis of features."""
    rows = next(p for p in parts if isinstance(p, Row))
    axis = _axis(rows.dims, axis)
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


# -- reductions ------------------------------------------------------------------------------------


def _reduced_axes(low: Lowering, a: Row, axes: Any) -> list[int]:
    wanted = (
        range(len(a.dims))
        if axes is None or axes == []
        else [axes]
        if isinstance(axes, int)
        else axes
    )
    found = sorted(_axis(a.dims, i) for i in wanted)
    if any(a.dims[i].rows for i in found):
        raise low.refuse("mixes rows: it reduces over the batch")
    return found


def reduce(low: Lowering, name: str, a: Row, axes: Any, keepdim: bool) -> Row:
    """A sum or a maximum over axes of features."""
    found = _reduced_axes(low, a, axes)
    shape, node = list(features(a.dims)), low.widen(a.node, math.prod(features(a.dims)))
    for axis in reversed(found):
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        node = low.graph.reduce(name, node, outer, shape[axis], inner)
        shape[axis] = 1
    dims = tuple(Dim(s, d.rows) for s, d in zip(shape, a.dims, strict=True))
    if not keepdim:
        dims = tuple(d for i, d in enumerate(dims) if i not in found)
    return Row(node, dims, a.kind)


def _count(a: Row, axes: Any, low: Lowering) -> int:
    return math.prod(a.dims[i].n for i in _reduced_axes(low, a, axes))


@rule("sum")
def _sum(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False, **_: Any) -> Row:
    kind = "int" if a.kind == "bool" else a.kind
    total = reduce(low, "sum", a, axes, keepdim)
    return Row(total.node, total.dims, kind)


@rule("mean")
def _mean(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False, **_: Any) -> Row:
    return low.elementwise("mul", reduce(low, "sum", a, axes, keepdim), 1 / _count(a, axes, low))


@rule("amax")
def _amax(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False) -> Row:
    return reduce(low, "max", a, axes, keepdim)


@rule("amin")
def _amin(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False) -> Row:
    return low.elementwise("neg", _amax(low, low.elementwise("neg", a), axes, keepdim))


@rule("max")
def _max(low: Lowering, a: Row, axis: Any = None, keepdim: bool = False) -> Any:
    """Two tensors: the maximum (elementwise). An axis: its first maximum takes the gradient."""
    if isinstance(axis, (Row, Shared)):
        return low.elementwise("maximum", a, axis)
    return [_picked(low, a, a, axis, keepdim), None]


@rule("min")
def _min(low: Lowering, a: Row, axis: Any = None, keepdim: bool = False) -> Any:
    if isinstance(axis, (Row, Shared)):
        return low.elementwise("minimum", a, axis)
    return [_picked(low, a, low.elementwise("neg", a), axis, keepdim), None]


def _picked(low: Lowering, a: Row, key: Row, axis: Any, keepdim: bool) -> Row:
    """a where key has its first maximum along the axis."""
    (at,) = _reduced_axes(low, a, axis)
    dims = _around(a, at)
    node = low.graph.add(Node("onehot_max", (key.node,), low.graph[a.node].width, dims))
    kept = low.elementwise("where", Row(node, a.dims), a, 0.0)
    return reduce(low, "sum", kept, [at], keepdim)


def _around(a: Row, axis: int) -> tuple[int, int, int]:
    shape = features(a.dims)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@rule("var")
def _var(
    low: Lowering, a: Row, axes: Any = None, unbiased: Any = True, keepdim: bool = False, **kw: Any
) -> Row:
    if isinstance(axes, bool):
        axes, unbiased = None, axes
    correction = kw.get("correction", 1 if unbiased else 0)
    correction = 1 if correction is None else correction
    keepdim = kw.get("keepdim", keepdim)
    centred = low.elementwise("sub", a, _mean(low, a, axes, True))
    total = reduce(low, "sum", low.elementwise("square", centred), axes, keepdim)
    return low.elementwise("div", total, float(_count(a, axes, low) - correction))


@rule("std")
def _std(low: Lowering, a: Row, *args: Any, **kwargs: Any) -> Row:
    return root(low, _var(low, a, *args, **kwargs))


def root(low: Lowering, total: Row) -> Row:
    """The square root of a sum of squares: torch's gradient is 0 at 0, where sqrt's is infinite."""
    zero = low.elementwise("eq", total, 0.0, kind="bool")
    safe = low.elementwise("where", zero, 1.0, total, kind="float")
    return low.elementwise("where", zero, 0.0, low.elementwise("sqrt", safe), kind="float")


@rule("var_mean")
def _var_mean(low: Lowering, a: Row, axes: Any = None, *args: Any, **kw: Any) -> list[Row]:
    return [_var(low, a, axes, *args, **kw), _mean(low, a, axes, kw.get("keepdim", False))]


@rule("linalg_vector_norm", "norm")
def _norm(
    low: Lowering,
    a: Row,
    order: float | None = 2,
    axes: Any = None,
    keepdim: bool = False,
    **_: Any,
) -> Row:
    if order not in (1, 2, None, math.inf):
        raise low.refuse(f"of order {order} is not in the table of operations")
    if order in (1, math.inf):
        size = low.elementwise("abs", a)
        return reduce(low, "sum" if order == 1 else "max", size, axes, keepdim)
    return root(low, reduce(low, "sum", low.elementwise("square", a), axes, keepdim))


@rule("_softmax", "softmax")
def _softmax(low: Lowering, a: Row, axis: int, *_: Any) -> Row:
    (at,) = _reduced_axes(low, a, axis)
    node = low.widen(a.node, math.prod(features(a.dims)))
    return Row(low.graph.op("softmax", node, dims=_around(a, at)), a.dims)


@rule("_log_softmax", "log_softmax")
def _log_softmax(low: Lowering, a: Row, axis: int, *_: Any) -> Row:
    """a - m - log(sum exp(a - m)); m takes no gradient, it cancels."""
    peak = low.stop_gradient(_amax(low, a, axis, True))
    centred = low.elementwise("sub", a, peak)
    total = reduce(low, "sum", low.elementwise("exp", centred), axis, True)
    return low.elementwise("sub", centred, low.elementwise("log", total))


@rule("logsumexp")
def _logsumexp(low: Lowering, a: Row, axes: Any, keepdim: bool = False) -> Row:
    peak = low.stop_gradient(_amax(low, a, axes, True))
    infinite = low.elementwise("eq", low.elementwise("abs", peak), math.inf)
    peak = low.elementwise("where", infinite, 0.0, peak)  # -inf alone: the sum is 0, its log -inf
    exp = low.elementwise("exp", low.elementwise("sub", a, peak))
    total = low.elementwise("log", reduce(low, "sum", exp, axes, keepdim))
    flat = _with_same(low, peak, total)
    return low.elementwise("add", total, flat)


def _with_same(low: Lowering, value: Row, like: Row) -> Row:
    return Row(value.node, like.dims, value.kind)


def _normalized(low: Lowering, a: Row, outer: int, n: int, eps: float) -> Row:
    node = low.widen(a.node, outer * n)
    return Row(low.graph.op("normalize", node, low.graph.const(eps), dims=(outer, n)), a.dims)


def _affine(low: Lowering, a: Row, weight: Any, bias: Any) -> Row:
    if weight is not None:
        a = low.elementwise("mul", a, weight)
    return a if bias is None else low.elementwise("add", a, bias)


@rule("native_layer_norm")
def _layer_norm(
    low: Lowering, a: Row, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> list[Any]:
    n = math.prod(shape)
    outer = math.prod(features(a.dims)) // n
    if any(d.rows for d in a.dims[len(a.dims) - len(shape) :]):
        raise low.refuse("mixes rows: it normalises over the batch")
    return [_affine(low, _normalized(low, a, outer, n, eps), weight, bias), None, None]


@rule("native_group_norm")
def _group_norm(
    low: Lowering, a: Row, weight: Any, bias: Any, n: int, c: int, hw: int, groups: int, eps: float
) -> list[Any]:
    width = math.prod(features(a.dims))
    normal = _normalized(low, a, groups, width // groups, eps)
    lift = (c,) + (1,) * (len(a.dims) - 2)
    parts = [p if p is None else low.once_op(torch.reshape, p, lift, lift) for p in (weight, bias)]
    return [_affine(low, normal, *parts), None, None]


@rule("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_impl_index")
def _batch_norm(
    low: Lowering, a: Row, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any
) -> Any:
    """With running statistics alone, as in eval mode; a batch's own are refused in the trace."""
    training, _, eps = rest
    if training or mean is None or var is None or not a.dims[0].rows:
        raise low.refuse("mixes rows: batch norm takes its statistics over the batch")

    def lifted(value: Any) -> Any:
        shape = (value.shape[0],) + (1,) * (len(a.dims) - 2)
        return low.once_op(torch.reshape, value, shape, shape)

    std = low.once_op(_std_of, var, var.shape, eps)
    centred = low.elementwise("sub", a, lifted(mean))
    normal = low.elementwise("div", centred, lifted(std))
    parts = [p if p is None else lifted(p) for p in (weight, bias)]
    return [_affine(low, normal, *parts), None, None]


def _std_of(var: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.sqrt(var + eps)


# -- products --------------------------------------------------------------------------------------


def row_linear(low: Lowering, node: int, parts: int, weight: Shared) -> int:
    """[parts, K] · [K, N]: one product for each part of the row."""
    k, n = weight.shape
    matrix = low.matrix(weight)
    return low.graph.concat(
        [low.graph.linear(low.graph.slice(node, i * k, k), matrix, n) for i in range(parts)]
    )


@rule("mm")
def _mm(low: Lowering, a: Any, b: Any) -> Row:
    if isinstance(a, Row) and isinstance(b, Shared):
        if not a.dims[0].rows:
            raise low.refuse("mixes rows: it sums over them")
        parts, k = a.dims[0].n, a.dims[1].n
        node = row_linear(low, low.widen(a.node, parts * k), parts, b)
        return Row(node, (a.dims[0], Dim(b.shape[1])))
    if isinstance(a, Shared) and isinstance(b, Row):
        if not b.dims[1].rows or b.dims[1].n != 1:
            raise low.refuse("mixes rows: it sums over them")
        flipped = low.once_op(torch.t, a, (a.shape[1], a.shape[0]))
        return Row(row_linear(low, b.node, 1, flipped), (Dim(a.shape[0]), b.dims[1]))
    raise low.refuse("mixes rows: both arguments depend on them")


@rule("addmm")
def _addmm(low: Lowering, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Row:
    product = _mm(low, a, b)
    if alpha != 1:
        product = low.elementwise("mul", product, alpha)
    return low.elementwise("add", product, bias if beta == 1 else low_mul(low, bias, beta))


@rule("mv")
def _mv(low: Lowering, a: Row, b: Any) -> Row:
    column = low.once_op(torch.unsqueeze, b, (*b.shape, 1), 1) if isinstance(b, Shared) else b
    product = _mm(low, a, column)
    return Row(product.node, (a.dims[0],))


@rule("linear")
def _linear(low: Lowering, a: Row, weight: Shared, bias: Any = None) -> Row:
    parts = math.prod(features(a.dims[:-1]))
    flipped = low.once_op(torch.t, weight, (weight.shape[1], weight.shape[0]))
    k, n = flipped.shape
    out = Row(row_linear(low, low.widen(a.node, parts * k), parts, flipped), (*a.dims[:-1], Dim(n)))
    return out if bias is None else low.elementwise("add", out, bias)


@rule("bmm")
def _bmm(low: Lowering, a: Any, b: Any) -> Row:
    batch = a.dims[0] if isinstance(a, Row) else b.dims[0]
    if not batch.rows:
        return _head_products(low, a, b)
    if isinstance(a, Row) and isinstance(b, Row):
        if b.weight is not None and a.weight is None:
            return _weighted(low, a, b)
        return _row_products(low, a, b)
    raise low.refuse("pairs the rows with an axis of a captured tensor")


def _select_matrix(low: Lowering, weight: Shared, index: int) -> Shared:
    return low.once_op(torch.select, weight, weight.shape[1:], 0, index)


def _head_products(low: Lowering, a: Any, b: Any) -> Row:
    """[heads, rows, K] · [heads, K, N]: a block-diagonal product, one matrix a head."""
    if isinstance(a, Row) and isinstance(b, Shared) and a.dims[1].rows and a.dims[1].n == 1:
        heads, k, n = b.shape
        node = low.widen(a.node, heads * k)
        out = [
            row_linear(low, low.graph.slice(node, h * k, k), 1, _select_matrix(low, b, h))
            for h in range(heads)
        ]
        return Row(low.graph.concat(out), (a.dims[0], a.dims[1], Dim(n)))
    if isinstance(a, Shared) and isinstance(b, Row) and b.dims[2].rows and b.dims[2].n == 1:
        flipped = low.once_op(torch.transpose, a, (a.shape[0], a.shape[2], a.shape[1]), 1, 2)
        node = _head_products(low, Row(b.node, (b.dims[0], b.dims[2], b.dims[1])), flipped).node
        return Row(node, (b.dims[0], Dim(a.shape[1]), b.dims[2]))
    raise low.refuse("mixes rows: it sums over them")


def _weighted(low: Lowering, a: Row, b: Row) -> Row:
    """[rows x heads, M, K] · [heads, K, N] repeated for every row."""
    heads, m, k, n = a.dims[0].n, a.dims[1].n, a.dims[2].n, b.dims[2].n
    assert b.weight is not None
    stacked = low.once.call(torch.reshape, b.weight, (heads, k, n))
    weight = Shared(stacked, (heads, k, n))
    node = low.widen(a.node, heads * m * k)
    out = [
        row_linear(low, low.graph.slice(node, h * m * k, m * k), m, _select_matrix(low, weight, h))
        for h in range(heads)
    ]
    return Row(low.graph.concat(out), (a.dims[0], Dim(m), Dim(n)))


def _row_products(low: Lowering, a: Row, b: Row) -> Row:
    """Both factors belong to the row: sum over k of a[.., m, k, 1] b[.., 1, k, n]."""
    heads, m, k, n = a.dims[0].n, a.dims[1].n, a.dims[2].n, b.dims[2].n
    graph = low.graph
    left = graph.expand(low.widen(a.node, heads * m * k), heads * m * k, n, 1)
    right = graph.expand(low.widen(b.node, heads * k * n), heads, m, k * n)
    product = graph.op("mul", left, right, width=heads * m * k * n)
    return Row(graph.reduce("sum", product, heads * m, k, n), (a.dims[0], Dim(m), Dim(n)))


@rule("baddbmm")
def _baddbmm(low: Lowering, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Row:
    product = _bmm(low, a, b)
    if alpha != 1:
        product = low.elementwise("mul", product, alpha)
    return low.elementwise("add", product, bias if beta == 1 else low_mul(low, bias, beta))
