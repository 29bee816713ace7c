"""How ATen's reductions and normalisations over features lower; over rows they are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from unpad.compiler.aten import rule
from unpad.compiler.aten_features import axis_of
from unpad.compiler.lower import Dim, Lowering, Row, Shared, features
from unpad.compiler.step import Node


def _reduced_axes(low: Lowering, a: Row, axes: Any) -> list[int]:
    wanted = (
        range(len(a.dims))
        if axes is None or axes == []
        else [axes]
        if isinstance(axes, int)
        else axes
    )
    found = sorted(axis_of(a.dims, i) for i in wanted)
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
