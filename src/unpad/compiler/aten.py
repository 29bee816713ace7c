"""How ATen's elementwise operations and constructors lower to the table's: one line each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from unpad.compiler.lower import Dim, Lowering, Row, Shared, features
from unpad.compiler.step import Noise

Rule = Callable[..., Any]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the lowering of ATen operations of these names (all overloads)."""

    def register(function: Rule) -> Rule:
        for name in names:
            Lowering.rules[name] = function
        return function

    return register


_SAME = [
    "neg",
    "abs",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "square",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "tanh",
    "sigmoid",
    "relu",
    "erf",
]
_STEPS = "sign floor ceil trunc"
_COMPARE = "eq ne lt le gt ge"
_PAIRS = "maximum minimum fmod remainder atan2"


def _simple(name: str, kind: str = "") -> Rule:
    return lambda low, *args, **kwargs: low.elementwise(name, *args, kind=kind)


for _name in _SAME:
    Lowering.rules[_name] = _simple(
        _name, "float" if _name not in ("neg", "abs", "square", "relu") else ""
    )
for _name in (_STEPS + " " + _PAIRS).split():
    Lowering.rules[_name] = _simple(_name)
for _name in _COMPARE.split():
    Lowering.rules[_name] = _simple(_name, "bool")
for _name in ("logical_and", "logical_or", "logical_not", "isnan"):
    Lowering.rules[_name] = _simple(_name, "bool")
Lowering.rules["sgn"] = _simple("sign")


@rule("mul")
def _mul(low: Lowering, a: Any, b: Any) -> Row:
    if low.promoted(a, b) == "int":
        # Integers are held as floats: sums stay exact for 2^24 steps, products may not.
        raise low.refuse("multiplies integers, which could outgrow what a float holds exactly")
    return low.elementwise("mul", a, b)


@rule("add")
def _add(low: Lowering, a: Any, b: Any, *, alpha: float = 1) -> Row:
    if low.promoted(a, b) == "bool":  # True + True is True
        return low.elementwise("logical_or", a, b, kind="bool")
    return low.elementwise("add", a, b if alpha == 1 else low_mul(low, b, alpha))


@rule("sub")
def _sub(low: Lowering, a: Any, b: Any, *, alpha: float = 1) -> Row:
    return low.elementwise("sub", a, b if alpha == 1 else low_mul(low, b, alpha))


def low_mul(low: Lowering, a: Any, b: Any) -> Any:
    """a · b where either may be shared or a number."""
    if isinstance(a, Shared) and not isinstance(b, Row):
        return low.once_op(torch.mul, a, a.shape, b.ref if isinstance(b, Shared) else b)
    return a * b if not isinstance(a, (Row, Shared)) else low.elementwise("mul", a, b)


@rule("rsub")
def _rsub(low: Lowering, a: Any, b: Any, alpha: float = 1) -> Row:
    return low.elementwise("sub", b, low_mul(low, a, alpha))


@rule("div")
def _div(low: Lowering, a: Any, b: Any, *, rounding_mode: str | None = None) -> Row:
    if isinstance(b, (int, float)) and b != 0 and rounding_mode is None and math.frexp(b)[0] == 0.5:
        return low.elementwise("mul", a, 1 / b, kind="float")
    quotient = low.elementwise("div", a, b, kind="float" if rounding_mode is None else "")
    if rounding_mode is None:
        return quotient
    if rounding_mode == "trunc":
        return low.elementwise("trunc", quotient)
    # The quotient's own floor is one too many where a / b was rounded up: Python's and torch's way.
    whole = low.elementwise("sub", a, low.elementwise("remainder", a, b))
    exact = low.elementwise("round", low.elementwise("div", whole, b))
    by_zero = low.elementwise("eq", low_mul(low, b, 1.0), 0.0) if isinstance(b, Row) else b == 0
    return low.elementwise("where", by_zero, quotient, exact, kind=quotient.kind)


@rule("floor_divide")
def _floor_divide(low: Lowering, a: Any, b: Any) -> Row:
    return _div(low, a, b, rounding_mode="floor")


@rule("pow")
def _pow(low: Lowering, a: Any, b: Any) -> Row:
    named = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal", 1: "copy"}
    if isinstance(b, (int, float)) and b in named and isinstance(a, Row):
        return low.elementwise(named[b], a)
    if isinstance(b, int) and b == 3:
        return low.elementwise("mul", a, low.elementwise("square", a))
    return low.elementwise("pow", a, b)


@rule("round")
def _round(low: Lowering, a: Row, *, decimals: int = 0) -> Row:
    if decimals == 0:
        return low.elementwise("round", a)
    scale = 10.0**decimals
    return low.elementwise("div", low.elementwise("round", low.elementwise("mul", a, scale)), scale)


@rule("bitwise_not")
def _bitwise_not(low: Lowering, a: Row) -> Row:
    _booleans(low, a)
    return low.elementwise("logical_not", a, kind="bool")


def _booleans(low: Lowering, *values: Any) -> None:
    if low.promoted(*values) != "bool":
        raise low.refuse("on integers is not in the table of operations")


@rule("bitwise_and", "__and__")
def _bitwise_and(low: Lowering, a: Any, b: Any) -> Row:
    _booleans(low, a, b)
    return low.elementwise("logical_and", a, b, kind="bool")


@rule("bitwise_or", "__or__")
def _bitwise_or(low: Lowering, a: Any, b: Any) -> Row:
    _booleans(low, a, b)
    return low.elementwise("logical_or", a, b, kind="bool")


@rule("bitwise_xor", "__xor__")
def _xor(low: Lowering, a: Any, b: Any) -> Row:
    _booleans(low, a, b)
    return low.elementwise("ne", a, b, kind="bool")


@rule("logical_xor")
def _logical_xor(low: Lowering, a: Row, b: Any) -> Row:
    """a's truth, turned round where b is true."""
    turned = low.elementwise("eq", a, 0.0)
    return low.elementwise("where", b, turned, low.elementwise("ne", a, 0.0), kind="bool")


@rule("where")
def _where(low: Lowering, condition: Any, a: Any, b: Any) -> Row:
    return low.elementwise("where", condition, a, b, kind=low.promoted(a, b))


@rule("masked_fill")
def _masked_fill(low: Lowering, a: Any, mask: Any, value: Any) -> Row:
    return low.elementwise("where", mask, value, a, kind=low.promoted(a))


@rule("clamp", "clip")
def _clamp(low: Lowering, a: Row, low_end: Any = None, high: Any = None, **kw: Any) -> Row:
    low_end, high = kw.get("min", low_end), kw.get("max", high)
    # x inside, borders included, keeps its gradient: torch's clamp, unlike maximum at a tie.
    for bound, passes in ((low_end, "lt"), (high, "gt")):
        if bound is not None:
            a = low.elementwise("where", low.elementwise(passes, a, bound), bound, a, kind=a.kind)
    return a


@rule("clamp_min")
def _clamp_min(low: Lowering, a: Row, bound: Any) -> Row:
    return _clamp(low, a, bound, None)


@rule("clamp_max")
def _clamp_max(low: Lowering, a: Row, bound: Any) -> Row:
    return _clamp(low, a, None, bound)


@rule("addcmul")
def _addcmul(low: Lowering, a: Any, b: Any, c: Any, *, value: float = 1) -> Row:
    return low.elementwise("add", a, low_mul(low, low.elementwise("mul", b, c), value))


@rule("addcdiv")
def _addcdiv(low: Lowering, a: Any, b: Any, c: Any, *, value: float = 1) -> Row:
    return low.elementwise("add", a, low_mul(low, low.elementwise("div", b, c), value))


@rule("lerp")
def _lerp(low: Lowering, a: Any, b: Any, weight: Any) -> Row:
    return low.elementwise("add", a, low_mul(low, low.elementwise("sub", b, a), weight))


@rule("log10")
def _log10(low: Lowering, a: Row) -> Row:
    return low.elementwise("mul", low.elementwise("log", a), 1 / math.log(10))


@rule("exp2")
def _exp2(low: Lowering, a: Row) -> Row:
    return low.elementwise("exp", low.elementwise("mul", a, math.log(2)))


@rule("erfc")
def _erfc(low: Lowering, a: Row) -> Row:
    return low.elementwise("sub", 1.0, low.elementwise("erf", a))


@rule("frac")
def _frac(low: Lowering, a: Row) -> Row:
    return low.elementwise("sub", a, low.elementwise("trunc", a))


@rule("silu")
def _silu(low: Lowering, a: Row) -> Row:
    return low.elementwise("mul", a, low.elementwise("sigmoid", a))


@rule("softplus")
def _softplus(low: Lowering, a: Row, beta: float = 1, threshold: float = 20) -> Row:
    scaled = low.elementwise("mul", a, beta)
    soft = low.elementwise("div", low.elementwise("softplus", scaled), beta)
    return low.elementwise("where", low.elementwise("gt", scaled, threshold), a, soft, kind="float")


@rule("log_sigmoid_forward")
def _log_sigmoid(low: Lowering, a: Row) -> list[Any]:
    y = low.elementwise("neg", low.elementwise("softplus", low.elementwise("neg", a)))
    return [y, None]


@rule("mish")
def _mish(low: Lowering, a: Row) -> Row:
    return low.elementwise("mul", a, low.elementwise("tanh", low.elementwise("softplus", a)))


@rule("gelu")
def _gelu(low: Lowering, a: Row, *, approximate: str = "none") -> Row:
    """x Phi(x), or its tanh form: Hendrycks & Gimpel 2016."""
    if approximate == "none":
        gate = low.elementwise("erf", low.elementwise("mul", a, math.sqrt(0.5)))
    else:
        cube = low.elementwise("mul", low.elementwise("square", a), a)
        inner = low.elementwise("add", a, low.elementwise("mul", cube, 0.044715))
        gate = low.elementwise("tanh", low.elementwise("mul", inner, math.sqrt(2 / math.pi)))
    half = low.elementwise("mul", a, 0.5)
    return low.elementwise("mul", half, low.elementwise("add", gate, 1.0))


@rule("elu")
def _elu(low: Lowering, a: Row, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Row:
    negative = low.elementwise("where", low.elementwise("gt", a, 0.0), 0.0, a, kind="float")
    exp = low.elementwise("expm1", low.elementwise("mul", negative, input_scale))
    low_part, high = low.elementwise("mul", exp, alpha * scale), low.elementwise("mul", a, scale)
    return low.elementwise("where", low.elementwise("gt", a, 0.0), high, low_part, kind="float")


@rule("celu")
def _celu(low: Lowering, a: Row, alpha: float = 1) -> Row:
    return _elu(low, a, alpha, 1, 1 / alpha)


@rule("leaky_relu")
def _leaky_relu(low: Lowering, a: Row, slope: float = 0.01) -> Row:
    positive = low.elementwise("gt", a, 0.0)
    return low.elementwise("where", positive, a, low.elementwise("mul", a, slope), kind="float")


@rule("_prelu_kernel")
def _prelu(low: Lowering, a: Row, weight: Any) -> Row:
    positive = low.elementwise("gt", a, 0.0)
    return low.elementwise("where", positive, a, low.elementwise("mul", a, weight), kind="float")


@rule("hardsigmoid")
def _hardsigmoid(low: Lowering, a: Row) -> Row:
    return low.elementwise("div", _open_clamp(low, low.elementwise("add", a, 3.0), 0.0, 6.0), 6.0)


def _open_clamp(low: Lowering, a: Row, start: float, end: float) -> Row:
    """A clamp whose gradient is 0 at the borders, as torch's hardtanh family has it."""
    for bound, passes in ((start, "le"), (end, "ge")):
        a = low.elementwise("where", low.elementwise(passes, a, bound), bound, a, kind="float")
    return a


@rule("hardtanh")
def _hardtanh(low: Lowering, a: Row, start: float = -1, end: float = 1) -> Row:
    return _open_clamp(low, a, start, end)


@rule("relu6")
def _relu6(low: Lowering, a: Row) -> Row:
    return _open_clamp(low, a, 0.0, 6.0)


@rule("hardswish")
def _hardswish(low: Lowering, a: Row) -> Row:
    """x relu6(x+3)/6; torch's gradient: 0 below -3, 1 from 3 on, x/3 + 1/2 between."""
    middle = low.elementwise("mul", a, low.elementwise("div", low.elementwise("add", a, 3.0), 6.0))
    below = low.elementwise("where", low.elementwise("lt", a, -3.0), 0.0, middle, kind="float")
    return low.elementwise("where", low.elementwise("ge", a, 3.0), a, below, kind="float")


@rule("threshold")
def _threshold(low: Lowering, a: Row, threshold: float, value: float) -> Row:
    return low.elementwise("where", low.elementwise("gt", a, threshold), a, value, kind="float")


@rule("logaddexp")
def _logaddexp(low: Lowering, a: Any, b: Any) -> Row:
    """max + log(1 + exp(-|a - b|)); at equal infinities, as log(0 + 0) has them, no difference."""
    same = low.elementwise("eq", a, b, kind="bool")
    difference = low.elementwise("where", same, 0.0, low.elementwise("sub", a, b), kind="float")
    decay = low.elementwise("neg", low.elementwise("abs", difference))
    peak = low.elementwise("maximum", a, b)
    return low.elementwise("add", peak, low.elementwise("softplus", decay))


# -- copies, casts, constructors -------------------------------------------------------------------


@rule("clone", "contiguous", "alias", "lift_fresh", "lift", "positive")
def _same(low: Lowering, a: Row, **_: Any) -> Row:
    return a


@rule("detach")
def _detach(low: Lowering, a: Row) -> Row:
    return low.stop_gradient(a)


@rule("_to_copy", "to")
def _to_copy(low: Lowering, a: Row, *, dtype: torch.dtype | None = None, **_: Any) -> Row:
    kind = a.kind if dtype is None else low.kind(dtype)
    if kind == "bool" and a.kind != "bool":
        return low.elementwise("ne", a, 0.0, kind="bool")
    node = low.graph.op("trunc", a.node) if kind == "int" and a.kind == "float" else a.node
    return Row(node, a.dims, kind)


def _filled(low: Lowering, value: float, dims: tuple[Dim, ...], kind: str) -> Row:
    value = float(value if kind == "float" else bool(value) if kind == "bool" else int(value))
    return Row(low.graph.fill(value, math.prod(features(dims))), dims, kind)


@rule(
    "full",
    "zeros",
    "ones",
    "empty",
    "new_full",
    "new_zeros",
    "new_ones",
    "new_empty",
)
def _full(low: Lowering, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Row:
    assert low.record is not None
    name = low.record.func.overloadpacket.__name__
    sizes, rest = (args[1], args[2:]) if name.startswith("new_") else (args[0], args[1:])
    value = rest[0] if "full" in name else 1.0 if "ones" in name else 0.0
    return _filled(low, value, low.dims(tuple(sizes)), low.kind(dtype or low.dtype))


@rule("full_like", "zeros_like", "ones_like", "empty_like")
def _full_like(
    low: Lowering, a: Row, value: float = 0, *, dtype: torch.dtype | None = None, **_: Any
) -> Row:
    assert low.record is not None
    if low.record.func.overloadpacket.__name__ == "ones_like":
        value = 1.0
    return _filled(low, value, a.dims, a.kind if dtype is None else low.kind(dtype))


@rule("fill", "zero")
def _fill(low: Lowering, a: Row, value: Any = 0.0) -> Row:
    return _filled(low, value, a.dims, a.kind)


# -- randomness: drawn before the loop -------------------------------------------------------------


def _noise(low: Lowering, noise: Noise, dims: tuple[Dim, ...]) -> Row:
    low.noises.append(noise)
    return Row(low.graph.leaf("noise", noise.width, len(low.noises) - 1), dims)


def _drawn(low: Lowering, kind: str, dims: tuple[Dim, ...], drop: float = 0.0) -> Row:
    return _noise(low, Noise(kind, math.prod(features(dims)), drop), dims)


@rule("keep_mask")
def _keep_mask(low: Lowering, a: Row, drop: float, per_sequence: bool) -> Row:
    width = math.prod(features(a.dims))
    return _noise(low, Noise("keep", width, drop, per_sequence), a.dims)


@rule("bernoulli")
def _bernoulli(low: Lowering, a: Row, p: Any = None, **_: Any) -> Row:
    if p is None and low.in_place:  # a default is not written down; bernoulli(a) has a for p
        p = 0.5
    if not isinstance(p, float):
        uniform = _drawn(low, "uniform", a.dims)
        return low.elementwise("lt", uniform, a if p is None else p, kind="float")
    return _drawn(low, "keep", a.dims, 1 - p)


@rule("native_dropout")
def _native_dropout(low: Lowering, a: Row, p: float, train: bool | None) -> list[Row]:
    if not train or p == 0:
        return [a, _filled(low, 1.0, a.dims, "bool")]
    mask = _drawn(low, "keep", a.dims, p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return [low.elementwise("mul", low.elementwise("mul", a, mask), scale), mask]


@rule("rand_like")
def _rand_like(low: Lowering, a: Row, **_: Any) -> Row:
    return _drawn(low, "uniform", a.dims)


@rule("randn_like")
def _randn_like(low: Lowering, a: Row, **_: Any) -> Row:
    return _drawn(low, "normal", a.dims)


@rule("rand")
def _rand(low: Lowering, sizes: Any, **_: Any) -> Row:
    return _drawn(low, "uniform", low.dims(tuple(sizes)))


@rule("randn")
def _randn(low: Lowering, sizes: Any, **_: Any) -> Row:
    return _drawn(low, "normal", low.dims(tuple(sizes)))


@rule("uniform")
def _uniform(low: Lowering, a: Row, start: float = 0, end: float = 1, **_: Any) -> Row:
    drawn = _drawn(low, "uniform", a.dims)
    return low.elementwise("add", low.elementwise("mul", drawn, end - start), start)


@rule("normal")
def _normal(low: Lowering, a: Row, mean: float = 0, std: float = 1, **_: Any) -> Row:
    if not low.in_place:
        raise low.refuse("draws by a mean or a deviation: write mean + std * torch.randn_like(x)")
    return low.elementwise("add", low.elementwise("mul", _drawn(low, "normal", a.dims), std), mean)
