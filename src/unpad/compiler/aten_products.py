"""How ATen's products lower: a row times a matrix, a head times its own, a row times itself."""

from __future__ import annotations

import math
from typing import Any

import torch

from unpad.compiler.aten import low_mul, rule
from unpad.compiler.lower import Dim, Lowering, Row, Shared, features


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
            raise low.refuse("mixes rows, or sums over them")
        parts, k = a.dims[0].n, a.dims[1].n
        node = row_linear(low, low.widen(a.node, parts * k), parts, b)
        return Row(node, (a.dims[0], Dim(b.shape[1])))
    if isinstance(a, Shared) and isinstance(b, Row):
        if not b.dims[1].rows or b.dims[1].n != 1:
            raise low.refuse("mixes rows, or sums over them")
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
    raise low.refuse("mixes rows, or sums over them")


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
