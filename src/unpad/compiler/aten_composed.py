"""ATen operations made of several of the table's: columns picked, running sums, rarer maths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unpad.compiler.aten import low_mul, rule
from unpad.compiler.aten_features import cat, narrow, permute, squeeze
from unpad.compiler.aten_products import row_linear
from unpad.compiler.aten_reduce import reduce, root
from unpad.compiler.lower import Dim, Lowering, Row, Shared, features

_LONGEST_CHAIN = 64

# -- elementwise -----------------------------------------------------------------------------------


@rule("hypot")
def _hypot(low: Lowering, a: Any, b: Any) -> Row:
    squares = [low_mul(low, v, v) for v in (a, b)]
    return low.elementwise("sqrt", low.elementwise("add", *squares))


@rule("logit")
def _logit(low: Lowering, a: Row, eps: float | None = None) -> Row:
    if eps is not None:
        a = Lowering.rules["clamp"](low, a, eps, 1 - eps)
    return low.elementwise("log", low.elementwise("div", a, low.elementwise("sub", 1.0, a)))


@rule("nan_to_num")
def _nan_to_num(low: Lowering, a: Row, nan: Any = None, high: Any = None, below: Any = None) -> Row:
    limits = torch.finfo(low.dtype)
    a = low.elementwise("where", low.elementwise("isnan", a), nan or 0.0, a, kind=a.kind)
    for edge, value, most in ((math.inf, high, limits.max), (-math.inf, below, limits.min)):
        hit = low.elementwise("eq", a, edge, kind="bool")
        a = low.elementwise("where", hit, most if value is None else value, a, kind=a.kind)
    return a


@rule("isinf")
def _isinf(low: Lowering, a: Row) -> Row:
    return low.elementwise("eq", low.elementwise("abs", a), math.inf, kind="bool")


@rule("hardshrink")
def _hardshrink(low: Lowering, a: Row, limit: float = 0.5) -> Row:
    inside = low.elementwise("le", low.elementwise("abs", a), limit, kind="bool")
    return low.elementwise("where", inside, 0.0, a)


@rule("softshrink")
def _softshrink(low: Lowering, a: Row, limit: float = 0.5) -> Row:
    zero = low.elementwise("mul", a, 0.0)
    below = low.elementwise("lt", a, -limit, kind="bool")
    negative = low.elementwise("where", below, low.elementwise("add", a, limit), zero)
    above = low.elementwise("gt", a, limit, kind="bool")
    return low.elementwise("where", above, low.elementwise("sub", a, limit), negative)


@rule("xlogy")
def _xlogy(low: Lowering, a: Any, b: Any) -> Row:
    """a log(b), 0 where a = 0; there the gradient of a is log(b) where that is finite."""
    is_zero, no_log = low.elementwise("eq", a, 0.0), low.elementwise("le", b, 0.0)
    silent = low.elementwise("logical_and", is_zero, no_log, kind="bool")
    safe = low.elementwise("where", silent, 1.0, b, kind="float")
    return low.elementwise("mul", a, low.elementwise("log", safe), kind="float")


@rule("mse_loss")
def _mse_loss(low: Lowering, a: Any, b: Any, reduction: int = 1) -> Row:
    if reduction != 0:
        raise low.refuse("mixes rows: it reduces over the batch")
    return low.elementwise("square", low.elementwise("sub", a, b))


@rule("deg2rad")
def _deg2rad(low: Lowering, a: Row) -> Row:
    return low.elementwise("mul", a, math.pi / 180, kind="float")


@rule("rad2deg")
def _rad2deg(low: Lowering, a: Row) -> Row:
    return low.elementwise("mul", a, 180 / math.pi, kind="float")


# -- columns ---------------------------------------------------------------------------------------


@rule("glu")
def _glu(low: Lowering, a: Row, axis: int = -1) -> Row:
    half = a.dims[axis].n // 2
    first, second = narrow(low, a, axis, 0, half), narrow(low, a, axis, half, half)
    return low.elementwise("mul", first, low.elementwise("sigmoid", second))


@rule("constant_pad_nd")
def _pad(low: Lowering, a: Row, pads: Sequence[int], value: float = 0.0) -> Row:
    """Columns of a number before and behind; negative: columns cut off."""
    for place in range(0, len(pads), 2):
        axis = len(a.dims) - 1 - place // 2
        before, behind = pads[place], pads[place + 1]
        if before == behind == 0:
            continue
        if a.dims[axis].rows:
            raise low.refuse("pads rows")
        start, cut = max(0, -before), max(0, -before) + max(0, -behind)
        middle = narrow(low, a, axis, start, a.dims[axis].n - cut)
        parts = [_filled(low, middle, axis, before, value), middle]
        parts.append(_filled(low, middle, axis, behind, value))
        a = cat(low, [p for p in parts if p.dims[axis].n], axis)
    return a


def _filled(low: Lowering, like: Row, axis: int, n: int, value: float) -> Row:
    dims = (*like.dims[:axis], Dim(max(0, n)), *like.dims[axis + 1 :])
    return Row(low.graph.fill(value, max(1, math.prod(features(dims)))), dims, like.kind)


@rule("index_select")
def _index_select(low: Lowering, a: Row, axis: int, index: Any) -> Row:
    """A product with columns of the identity: the index is read at every run, as any tensor."""
    if not isinstance(index, Shared):
        raise low.refuse("picks columns by a value of the row")
    axis = axis % len(a.dims)
    if a.dims[axis].rows:
        raise low.refuse("picks rows")
    order = [*(i for i in range(len(a.dims)) if i != axis), axis]
    moved = permute(low, a, order)
    n, count = a.dims[axis].n, math.prod(index.shape)
    columns = low.once_op(_identity_columns, index, (n, count), n, low.dtype)
    parts = math.prod(features(moved.dims[:-1]))
    node = row_linear(low, low.widen(moved.node, parts * n), parts, columns)
    picked = Row(node, (*moved.dims[:-1], Dim(count)), a.kind)
    back = [order.index(i) for i in range(len(order))]
    return permute(low, picked, back)


def _identity_columns(index: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    eye = torch.eye(n, dtype=dtype, device=index.device)
    return eye[:, index.reshape(-1)]


@rule("index")
def _index(low: Lowering, a: Row, indices: Sequence[Any]) -> Row:
    named = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    ((axis, index),) = named
    if not isinstance(index, Shared) or index.kind != "int" or len(index.shape) != 1:
        raise low.refuse("picks by a value of the row, or by a mask")
    return _index_select(low, a, axis, index)


def _chain(low: Lowering, a: Row, axis: int) -> list[Row]:
    axis = axis % len(a.dims)
    if a.dims[axis].rows:
        raise low.refuse("mixes rows: it runs over the batch")
    if a.dims[axis].n > _LONGEST_CHAIN:
        raise low.refuse(f"over more than {_LONGEST_CHAIN} columns is not in the table")
    return [narrow(low, a, axis, i, 1) for i in range(a.dims[axis].n)]


@rule("cumsum")
def _cumsum(low: Lowering, a: Row, axis: int, **_: Any) -> Row:
    return _running(low, a, axis, "add")


@rule("cumprod")
def _cumprod(low: Lowering, a: Row, axis: int, **_: Any) -> Row:
    return _running(low, a, axis, "mul")


def _running(low: Lowering, a: Row, axis: int, name: str) -> Row:
    parts = _chain(low, a, axis)
    for i in range(1, len(parts)):
        parts[i] = low.elementwise(name, parts[i - 1], parts[i])
    return cat(low, parts, axis)


# -- reductions ------------------------------------------------------------------------------------


@rule("prod")
def _prod(low: Lowering, a: Row, axis: Any = None, keepdim: bool = False, **_: Any) -> Row:
    if axis is None:
        raise low.refuse("mixes rows: it reduces over the batch")
    parts = _chain(low, a, axis)
    total = parts[0]
    for part in parts[1:]:
        total = low.elementwise("mul", total, part)
    return total if keepdim else squeeze(low, total, axis)


@rule("any")
def _any(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False) -> Row:
    hit = low.elementwise("ne", a, 0.0, kind="bool")
    return reduce(low, "max", hit, axes, keepdim)


@rule("all")
def _all(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False) -> Row:
    miss = low.elementwise("eq", a, 0.0, kind="bool")
    found = reduce(low, "max", miss, axes, keepdim)
    return low.elementwise("logical_not", found, kind="bool")


@rule("count_nonzero")
def _count_nonzero(low: Lowering, a: Row, axes: Any = None) -> Row:
    counted = reduce(low, "sum", low.elementwise("ne", a, 0.0), axes, False)
    return Row(counted.node, counted.dims, "int")


@rule("nansum")
def _nansum(low: Lowering, a: Row, axes: Any = None, keepdim: bool = False, **_: Any) -> Row:
    known = low.elementwise("where", low.elementwise("isnan", a), 0.0, a)
    return reduce(low, "sum", known, axes, keepdim)


@rule("std_mean")
def _std_mean(low: Lowering, a: Row, axes: Any = None, *args: Any, **kw: Any) -> list[Row]:
    var, mean = Lowering.rules["var_mean"](low, a, axes, *args, **kw)
    return [root(low, var), mean]


@rule("aminmax")
def _aminmax(low: Lowering, a: Row, *, dim: int | None = None, keepdim: bool = False) -> list[Row]:
    return [Lowering.rules[name](low, a, dim, keepdim) for name in ("amin", "amax")]


@rule("_safe_softmax")
def _safe_softmax(low: Lowering, a: Row, axis: int, *_: Any) -> Row:
    """Softmax, and 0 where all are -inf."""
    nothing = low.elementwise("eq", Lowering.rules["amax"](low, a, axis, True), -math.inf)
    safe = Lowering.rules["softmax"](low, low.elementwise("where", nothing, 0.0, a), axis)
    return low.elementwise("where", nothing, 0.0, safe)


@rule("addmv")
def _addmv(
    low: Lowering, a: Any, matrix: Any, vector: Any, *, beta: Any = 1, alpha: Any = 1
) -> Row:
    product = low_mul(low, Lowering.rules["mv"](low, matrix, vector), alpha)
    return low.elementwise("add", product, low_mul(low, a, beta))


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
    if weight is not None:
        normal = low.elementwise("mul", normal, lifted(weight))
    if bias is not None:
        normal = low.elementwise("add", normal, lifted(bias))
    return [normal, None, None]


def _std_of(var: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.sqrt(var + eps)
