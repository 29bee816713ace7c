"""Which torch functions act on a ragged batch: the one table.

docs/ragged.md publishes it and the tests try every entry.

A function is let in only where it treats each token by itself, so that it cannot mix sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_UNARY = """
abs absolute acos acosh arccos arcsin arctan asin asinh atan atanh bitwise_not ceil clone cos cosh
deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf
lgamma log log10 log1p log2 logical_not logit nan_to_num neg negative positive rad2deg reciprocal
round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc
"""
_BINARY = """
add arctan2 atan2 bitwise_and bitwise_or bitwise_xor clamp clamp_max clamp_min clip copysign div
divide eq floor_divide fmax fmin fmod ge greater greater_equal gt hypot isclose ldexp le less
less_equal logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul multiply
ne nextafter not_equal pow remainder rsub sub subtract true_divide xlogy
"""
_TERNARY = "addcdiv addcmul lerp where"
_ACTIVATIONS = """
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu
silu softplus softshrink softsign tanhshrink threshold
"""
_ALONG = """
all amax amin any argmax argmin argsort count_nonzero cumprod cumsum glu log_softmax logsumexp mean
nanmean nansum norm normalize prod softmax softmin sum
"""
_LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits cross_entropy huber_loss l1_loss mse_loss
nll_loss smooth_l1_loss
"""
_LIKE = "empty_like full_like ones_like rand_like randn_like zeros_like"

#: Elementwise: batches of equal lengths, numbers, and tensors that broadcast over the features.
ELEMENTWISE = tuple(" ".join((_UNARY, _BINARY, _TERNARY, _ACTIVATIONS, _LIKE)).split())

#: One batch and tensors that are the same for every token, with the least features it needs.
PER_TOKEN = {
    "alpha_dropout": 0,
    "dropout": 0,
    "embedding": 0,
    "layer_norm": 1,
    "linear": 1,
    "matmul": 1,
    "one_hot": 0,
    "rms_norm": 1,
}

#: Along features, with a negative `dim`, counted from the last feature; the default where it is.
ALONG_FEATURES = tuple(_ALONG.split())

#: Losses: input and target are batches of equal lengths; a mean is over real tokens only.
LOSSES = tuple(_LOSSES.split())

#: Functions of whole batches, with the meaning of the method of the same name.
WHOLE_BATCH = ("allclose", "cat", "chunk", "equal", "index_select")

# Where torch keeps a function of a name; a call may arrive by any of these objects. Tensor's
# operators dispatch under names of their own.
_HOMES: tuple[Any, ...] = (torch, torch.nn.functional, Tensor)
_OPERATORS = {
    "floor_divide": "__floordiv__",
    "matmul": "__matmul__",
    "pow": "__pow__",
    "remainder": "__mod__",
}


def objects_named(name: str) -> list[Callable[..., Any]]:
    """Return every torch function of this name.

    >>> objects_named("mse_loss")[0] is torch.nn.functional.mse_loss
    True
    """
    names = [name, _OPERATORS[name]] if name in _OPERATORS else [name]
    found = [getattr(home, spelled, None) for home in _HOMES for spelled in names]
    return [function for function in found if function is not None]


def supported_functions() -> dict[str, tuple[str, ...]]:
    """Return the names of all torch functions that act on a batch, by group.

    >>> "relu" in supported_functions()["elementwise"]
    True
    """
    return {
        "elementwise": ELEMENTWISE,
        "per token": tuple(PER_TOKEN),
        "along features": ALONG_FEATURES,
        "losses": LOSSES,
        "whole batch": WHOLE_BATCH,
    }
