"""The one table of operations: name, meaning in torch, derivative rule; opcodes by the same names.

*Meaning*: a function of row tensors [..., width] (and the node's ``dims``), in differentiable torch
operations: the specification that the native kernels are tested against.
*Derivative*: a rule that, for ``y = op(args)`` and the gradient of y, adds the gradients of the
arguments to the graph, in operations of this very table. ``None``: a step function.
How to add an operation: CONTRIBUTING.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unpad.compiler.step import Graph

Grads = tuple["int | None", ...]
Rule = Callable[[Graph, int, int], Grads]


@dataclass(frozen=True)
class Operation:
    """``dear`` results are saved for the backward pass; the others are computed again."""

    name: str
    arity: int
    torch: Callable[..., Tensor]
    derivative: Rule | None
    dear: bool = False
    elementwise: bool = True


def _unary(local: Callable[[Graph, int, int], int]) -> Rule:
    """y = f(a): ``local(graph, a, y)`` is f'(a), the gradient is multiplied by it."""

    def rule(graph: Graph, y: int, grad: int) -> Grads:
        return (graph.op("mul", grad, local(graph, graph[y].args[0], y)),)

    return rule


def _one_minus_square(graph: Graph, a: int) -> int:
    return graph.op("sub", graph.const(1), graph.op("square", a))


def _one_plus_square(graph: Graph, a: int) -> int:
    return graph.op("mul_add", a, a, graph.const(1))


def _reciprocal(graph: Graph, a: int) -> int:
    return graph.op("reciprocal", a)


def _masked(graph: Graph, condition: int, grad: int) -> int:
    return graph.op("where", condition, grad, graph.const(0), width=graph[grad].width)


def _add(graph: Graph, y: int, grad: int) -> Grads:
    return grad, grad


def _sub(graph: Graph, y: int, grad: int) -> Grads:
    return grad, graph.op("neg", grad)


def _mul(graph: Graph, y: int, grad: int) -> Grads:
    a, b = graph[y].args
    return graph.op("mul", grad, b), graph.op("mul", grad, a)


def _div(graph: Graph, y: int, grad: int) -> Grads:
    _, b = graph[y].args
    over = graph.op("div", grad, b)
    return over, graph.op("neg", graph.op("mul", over, y))


def _pow(graph: Graph, y: int, grad: int) -> Grads:
    """d a = g b a^(b-1) (0 where b = 0); d b = g y log(a) (0 where a = 0 and b >= 0)."""
    a, b = graph[y].args
    zero = graph.const(0)
    power = graph.op("mul", b, graph.op("pow", a, graph.op("sub", b, graph.const(1))))
    d_a = graph.op("where", graph.op("eq", b, zero), zero, graph.op("mul", grad, power))
    silent = graph.op("logical_and", graph.op("eq", a, zero), graph.op("ge", b, zero))
    slope = graph.op("mul", grad, graph.op("mul", y, graph.op("log", a)))
    return d_a, graph.op("where", silent, zero, slope)


def _extremum(wins: str) -> Rule:
    """maximum and minimum: ties share the gradient, as in torch."""

    def rule(graph: Graph, y: int, grad: int) -> Grads:
        a, b = graph[y].args
        half = graph.op("mul", grad, graph.const(0.5))
        shared = graph.op("where", graph.op("eq", a, b), half, grad)
        loses = "lt" if wins == "gt" else "gt"
        return (
            _masked(graph, graph.op("logical_not", graph.op(loses, a, b)), shared),
            _masked(graph, graph.op("logical_not", graph.op(wins, a, b)), shared),
        )

    return rule


def _atan2(graph: Graph, y: int, grad: int) -> Grads:
    a, b = graph[y].args
    norm = graph.op("add", graph.op("square", a), graph.op("square", b))
    # torch's gradient at (0, 0) is 0
    norm = graph.op("where", graph.op("eq", norm, graph.const(0)), graph.const(1), norm)
    scaled = graph.op("div", grad, norm)
    return graph.op("mul", scaled, b), graph.op("neg", graph.op("mul", scaled, a))


def _modulo(rounding: str) -> Rule:
    def rule(graph: Graph, y: int, grad: int) -> Grads:
        a, b = graph[y].args
        quotient = graph.op(rounding, graph.op("div", a, b))
        return grad, graph.op("neg", graph.op("mul", grad, quotient))

    return rule


def _where(graph: Graph, y: int, grad: int) -> Grads:
    condition = graph[y].args[0]
    zero, width = graph.const(0), graph[y].width
    return (
        None,
        graph.op("where", condition, grad, zero, width=width),
        graph.op("where", condition, zero, grad, width=width),
    )


def _mul_add(graph: Graph, y: int, grad: int) -> Grads:
    a, b, _ = graph[y].args
    return graph.op("mul", grad, b), graph.op("mul", grad, a), grad


def _sum(graph: Graph, y: int, grad: int) -> Grads:
    return (graph.expand(grad, *graph[y].dims),)


def _expand(graph: Graph, y: int, grad: int) -> Grads:
    return (graph.reduce("sum", grad, *graph[y].dims),)


def _max(graph: Graph, y: int, grad: int) -> Grads:
    """amax: equal maxima share the gradient."""
    node = graph[y]
    wins = graph.op("eq", node.args[0], graph.expand(y, *node.dims))
    shared = graph.op("div", grad, graph.reduce("sum", wins, *node.dims))
    return (graph.op("mul", graph.expand(shared, *node.dims), wins),)


def _spread(graph: Graph, arg: int, outer: int, n: int, inner: int) -> int:
    """An operand for every column; one number for all of them is neither copied nor saved so."""
    return arg if outer * inner == 1 else graph.expand(arg, outer, n, inner)


def _softmax(graph: Graph, y: int, grad: int) -> Grads:
    """y (g - sum(g y))"""
    dims = graph[y].dims
    mean = _spread(graph, graph.reduce("sum", graph.op("mul", grad, y), *dims), *dims)
    return (graph.op("mul", y, graph.op("sub", grad, mean)),)


def _normalize(graph: Graph, y: int, grad: int) -> Grads:
    """r (g - mean(g) - y mean(g y)) with r = 1/sqrt(var + eps): Ba et al. 2016, appendix."""
    node = graph[y]
    r = graph.op("inv_std", *node.args, width=node.dims[0], dims=node.dims)
    return graph.op("normalize_grad", grad, y, r, width=node.width, dims=node.dims), None


def _scatter_back(graph: Graph, y: int, grad: int) -> Grads:
    node = graph[y]
    source = graph[node.args[0]]
    from unpad.compiler.step import Node

    return (graph.add(Node("scatter", (grad,), source.width, table=node.table)),)


def _view(a: Tensor, dims: tuple[int, ...]) -> Tensor:
    return a.reshape(*a.shape[:-1], *dims)


def _onehot_max(a: Tensor, dims: tuple[int, ...]) -> Tensor:
    view = _view(a, dims)
    first = view.argmax(-2, keepdim=True)
    return torch.zeros_like(view).scatter_(-2, first, 1.0).flatten(-3)


def _normalized(a: Tensor, eps: Tensor, dims: tuple[int, ...]) -> Tensor:
    view = _view(a, dims)
    centred = view - view.mean(-1, keepdim=True)
    return (
        centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps[..., None])
    ).flatten(-2)


def _inv_std(a: Tensor, eps: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.rsqrt(_view(a, dims).var(-1, correction=0) + eps)


def _normalize_grad(g: Tensor, y: Tensor, r: Tensor, dims: tuple[int, ...]) -> Tensor:
    g, y = _view(g, dims), _view(y, dims)
    pulled = y * (g * y).mean(-1, keepdim=True)
    return (r[..., None] * (g - g.mean(-1, keepdim=True) - pulled)).flatten(-2)


def _scaled_normalize_grad(
    g: Tensor, y: Tensor, r: Tensor, gain: Tensor, dims: tuple[int, ...]
) -> Tensor:
    return _normalize_grad(g * gain, y, r, dims)


def _bool(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*args).to(args[0].dtype)


def _expanded(a: Tensor, dims: tuple[int, ...]) -> Tensor:
    outer, _, inner = dims
    return a.reshape(*a.shape[:-1], outer, 1, inner).expand(*a.shape[:-1], *dims).flatten(-3)


def _e(
    name: str, arity: int, meaning: Any, derivative: Rule | None, *, dear: bool = False
) -> Operation:
    return Operation(name, arity, meaning, derivative, dear)


def _f(
    name: str, arity: int, meaning: Any, derivative: Rule | None, *, dear: bool = True
) -> Operation:
    return Operation(name, arity, meaning, derivative, dear, elementwise=False)


_c: Callable[[Graph, float], int] = Graph.const
_TABLE = [
    _e("copy", 1, torch.clone, lambda g, y, d: (d,)),
    _e("neg", 1, torch.neg, lambda g, y, d: (g.op("neg", d),)),
    _e("abs", 1, torch.abs, _unary(lambda g, a, y: g.op("sign", a))),
    _e("sign", 1, torch.sign, None),
    _e("exp", 1, torch.exp, _unary(lambda g, a, y: y), dear=True),
    _e("expm1", 1, torch.expm1, _unary(lambda g, a, y: g.op("add", y, _c(g, 1))), dear=True),
    _e("log", 1, torch.log, _unary(lambda g, a, y: _reciprocal(g, a)), dear=True),
    _e(
        "log1p",
        1,
        torch.log1p,
        _unary(lambda g, a, y: _reciprocal(g, g.op("add", a, _c(g, 1)))),
        dear=True,
    ),
    _e(
        "log2",
        1,
        torch.log2,
        _unary(lambda g, a, y: g.op("div", _c(g, 1 / math.log(2)), a)),
        dear=True,
    ),
    _e("sqrt", 1, torch.sqrt, _unary(lambda g, a, y: g.op("div", _c(g, 0.5), y)), dear=True),
    _e(
        "rsqrt",
        1,
        torch.rsqrt,
        _unary(lambda g, a, y: g.op("mul", g.op("mul", _c(g, -0.5), y), g.op("square", y))),
        dear=True,
    ),
    _e(
        "reciprocal",
        1,
        torch.reciprocal,
        _unary(lambda g, a, y: g.op("neg", g.op("square", y))),
        dear=True,
    ),
    _e("square", 1, torch.square, _unary(lambda g, a, y: g.op("mul", _c(g, 2), a))),
    _e("sin", 1, torch.sin, _unary(lambda g, a, y: g.op("cos", a)), dear=True),
    _e("cos", 1, torch.cos, _unary(lambda g, a, y: g.op("neg", g.op("sin", a))), dear=True),
    _e("tan", 1, torch.tan, _unary(lambda g, a, y: _one_plus_square(g, y)), dear=True),
    _e(
        "asin",
        1,
        torch.asin,
        _unary(lambda g, a, y: g.op("rsqrt", _one_minus_square(g, a))),
        dear=True,
    ),
    _e(
        "acos",
        1,
        torch.acos,
        _unary(lambda g, a, y: g.op("neg", g.op("rsqrt", _one_minus_square(g, a)))),
        dear=True,
    ),
    _e(
        "atan",
        1,
        torch.atan,
        _unary(lambda g, a, y: _reciprocal(g, _one_plus_square(g, a))),
        dear=True,
    ),
    _e("sinh", 1, torch.sinh, _unary(lambda g, a, y: g.op("cosh", a)), dear=True),
    _e("cosh", 1, torch.cosh, _unary(lambda g, a, y: g.op("sinh", a)), dear=True),
    _e(
        "asinh",
        1,
        torch.asinh,
        _unary(lambda g, a, y: g.op("rsqrt", _one_plus_square(g, a))),
        dear=True,
    ),
    _e(
        "acosh",
        1,
        torch.acosh,
        _unary(lambda g, a, y: g.op("rsqrt", g.op("sub", g.op("square", a), _c(g, 1)))),
        dear=True,
    ),
    _e(
        "atanh",
        1,
        torch.atanh,
        _unary(lambda g, a, y: _reciprocal(g, _one_minus_square(g, a))),
        dear=True,
    ),
    _e("tanh", 1, torch.tanh, lambda g, y, d: (g.op("tanh_grad", d, y),), dear=True),
    _e("sigmoid", 1, torch.sigmoid, lambda g, y, d: (g.op("sigmoid_grad", d, y),), dear=True),
    _e("relu", 1, torch.relu, lambda g, y, d: (_masked(g, g.op("gt", y, _c(g, 0)), d),)),
    _e(
        "softplus",
        1,
        lambda a: torch.logaddexp(a, torch.zeros_like(a)),
        _unary(lambda g, a, y: g.op("sigmoid", a)),
        dear=True,
    ),
    _e(
        "erf",
        1,
        torch.erf,
        _unary(
            lambda g, a, y: g.op(
                "mul", _c(g, 2 / math.sqrt(math.pi)), g.op("exp", g.op("neg", g.op("square", a)))
            )
        ),
        dear=True,
    ),
    _e("floor", 1, torch.floor, None),
    _e("ceil", 1, torch.ceil, None),
    _e("round", 1, torch.round, None),
    _e("trunc", 1, torch.trunc, None),
    _e("logical_not", 1, _bool(torch.logical_not), None),
    _e("isnan", 1, _bool(torch.isnan), None),
    _e("add", 2, torch.add, _add),
    _e("sub", 2, torch.sub, _sub),
    _e("mul", 2, torch.mul, _mul),
    _e("div", 2, torch.div, _div),
    _e("pow", 2, torch.pow, _pow, dear=True),
    _e("maximum", 2, torch.maximum, _extremum("gt")),
    _e("minimum", 2, torch.minimum, _extremum("lt")),
    _e("atan2", 2, torch.atan2, _atan2, dear=True),
    _e("fmod", 2, torch.fmod, _modulo("trunc"), dear=True),
    _e("remainder", 2, torch.remainder, _modulo("floor"), dear=True),
    _e("eq", 2, _bool(torch.eq), None),
    _e("ne", 2, _bool(torch.ne), None),
    _e("lt", 2, _bool(torch.lt), None),
    _e("le", 2, _bool(torch.le), None),
    _e("gt", 2, _bool(torch.gt), None),
    _e("ge", 2, _bool(torch.ge), None),
    _e("logical_and", 2, _bool(torch.logical_and), None),
    _e("logical_or", 2, _bool(torch.logical_or), None),
    _e("sigmoid_grad", 2, lambda d, s: d * s * (1 - s), None),
    _e("tanh_grad", 2, lambda d, t: d * (1 - t * t), None),
    _e("where", 3, lambda c, a, b: torch.where(c != 0, a, b), _where),
    _e("mul_add", 3, lambda a, b, c: a * b + c, _mul_add),
    _f("sum", 1, lambda a, dims: _view(a, dims).sum(-2).flatten(-2), _sum),
    _f("max", 1, lambda a, dims: _view(a, dims).amax(-2).flatten(-2), _max),
    _f("onehot_max", 1, _onehot_max, None),
    _f("expand", 1, _expanded, _expand, dear=False),
    _f("softmax", 1, lambda a, dims: _view(a, dims).softmax(-2).flatten(-3), _softmax),
    _f("normalize", 2, _normalized, _normalize),
    _f("inv_std", 2, _inv_std, None),
    _f("normalize_grad", 3, _normalize_grad, None),
    _f("scaled_normalize_grad", 4, _scaled_normalize_grad, None),
    _f("take", 1, lambda a, table: a[..., list(table)], _scatter_back, dear=False),
    _f(
        "scatter",
        1,
        lambda a, table, width: a.new_zeros(*a.shape[:-1], width).index_add(
            -1, torch.tensor(table, device=a.device), a
        ),
        None,
        dear=False,
    ),
]
OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _TABLE}

# What a program does beside the table: products, and the sums over time that end in a parameter.
PRODUCTS: dict[str, int] = {"linear": 1, "outer": 2, "sum_rows": 1}
