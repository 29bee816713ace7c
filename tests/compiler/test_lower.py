"""Each lowering rule: a cell of one line agrees with the eager loop, in value and in gradient.

Inputs lie on a grid of halves as often as not, so that ties, borders and zeros occur. A warning is
an error here, so every cell below is compiled.
"""

# ruff: noqa: E501 - a table: one line for each rule

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracle
import unpad
from unpad import Cell
from unpad.compiler import aten_composed
from unpad.compiler.build import compile_cell
from unpad.compiler.lower import Lowering
from unpad.engine import choose, eager

assert aten_composed  # it registers its rules


class OneLine(Cell):
    """Output y = line(cell, x, h), flat; the state is driven by it."""

    input_size = state_size = 6

    def __init__(self, line: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.line = line
        self.w = nn.Parameter(torch.randn(6))
        self.q = nn.Parameter(torch.randn(6, 6))
        self.m = nn.Parameter(torch.randn(6, 4))
        self.b = nn.Parameter(torch.randn(4))
        self.k = nn.Parameter(torch.randn(2, 3, 3))
        self.memory = nn.Parameter(torch.randn(5, 6))
        self.s = nn.Parameter(torch.randn(()))
        self.index = torch.tensor([3, 0, 0, 5])
        self.mask = torch.tensor([1, 0, 1, 1, 0, 0]).bool()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(6, 3), nn.GRUCell(6, 6), nn.RNNCell(6, 6)
        self.double()
        one = torch.ones(1, 6, dtype=torch.float64)
        self.output_size = line(self, one, one).flatten(1).shape[1]

    def forward(self, x, h):
        y = self.line(self, x, h).flatten(1).to(x.dtype)
        return y, torch.tanh(0.5 * h + y.mean(1, keepdim=True))


def heads(v: Tensor) -> Tensor:
    return v.view(-1, 2, 3)


def in_place(c: Any, x: Tensor, h: Tensor) -> Tensor:
    y = x * 2
    y += h
    y.mul_(c.w).tanh_()
    return y.sub(h).clamp_(-0.5, 0.5)


def filled(c: Any, x: Tensor, h: Tensor) -> Tensor:
    return torch.empty_like(h).fill_(0.5).zero_() + x


def no_gradient(c: Any, x: Tensor, h: Tensor) -> Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(x * c.w)
    return gate * h + x.detach() * c.q[0]


def changed_without_gradient(c: Any, x: Tensor, h: Tensor) -> Tensor:
    """A tensor changed in place under no_grad keeps the gradient of what it was."""
    y = x * c.w
    with torch.no_grad():
        y.clamp_(-0.25, 0.25)
    return y * h


def positive(v: Tensor) -> Tensor:
    return v.abs() + 0.75


def inside(v: Tensor) -> Tensor:
    return 0.9 * torch.tanh(v)


def each(names: str, line: Callable[..., Tensor], of: Any = torch) -> dict[str, Any]:
    """A line for each of torch's functions."""
    return {n: lambda c, x, h, f=getattr(of, n): line(f, c, x, h) for n in names.split()}  # noqa: B008


ELEMENTWISE = {
    **each(
        "neg abs exp expm1 square sin cos sinh cosh atan asinh tanh sigmoid relu erf erfc exp2 sign "
        "floor ceil trunc round frac logical_not isnan isinf isfinite sgn positive deg2rad rad2deg",
        lambda f, c, x, h: f(x) * h,
    ),
    **each("log log1p log2 log10 sqrt rsqrt reciprocal", lambda f, c, x, h: f(positive(x)) * h),
    **each("asin acos atanh tan", lambda f, c, x, h: f(inside(x)) * h),
    **each(
        "silu mish elu celu selu leaky_relu relu6 hardtanh hardsigmoid hardswish softsign tanhshrink "
        "hardshrink softshrink logsigmoid gelu softplus",
        lambda f, c, x, h: f(x) * h,
        F,
    ),
}
PAIRS = {
    **each(
        "maximum minimum add sub mul logical_and logical_or logical_xor eq ne lt le gt ge",
        lambda f, c, x, h: f(x, h).double() + f(x, c.w),
    ),
    "acosh": lambda c, x, h: torch.acosh(1 + positive(x)),
    "atan2": lambda c, x, h: torch.atan2(x, positive(h)),
    "hypot": lambda c, x, h: torch.hypot(positive(x), h),
    "fmod": lambda c, x, h: torch.fmod(x, positive(h)) + torch.fmod(x, 0.75),
    "remainder": lambda c, x, h: torch.remainder(x, positive(h)) + x % 0.75,
    "max of two": lambda c, x, h: torch.max(x, h) - torch.min(x, c.w),
    "add alpha": lambda c, x, h: torch.add(x, h, alpha=0.5) + torch.add(x, c.w, alpha=2),
    "sub alpha": lambda c, x, h: torch.sub(x, h, alpha=0.5) - torch.rsub(x, h, alpha=3),
    "numbers": lambda c, x, h: 2 - x + 1 - (3 * h) / 7 + x / 4 + c.s,
    "div": lambda c, x, h: x / positive(h) + 1 / positive(x),
    "div rounded": lambda c, x, h: (
        torch.div(x, 0.3, rounding_mode="floor") * h
        + torch.div(x, positive(h), rounding_mode="trunc")
        * torch.div(h, c.w, rounding_mode="floor")
    ),
    "floor_divide": lambda c, x, h: (x.detach() // 0.3) * h + x.detach() // positive(h.detach()),
    "pow": lambda c, x, h: positive(x) ** h + positive(x) ** 1.5 + 2.0**h,
    "powers": lambda c, x, h: x**2 + x**3 + x**1 + positive(x) ** 0.5 + positive(h) ** -0.5,
    "power -1": lambda c, x, h: positive(x) ** -1 + positive(x) ** -2 + x**4,
    "round decimals": lambda c, x, h: torch.round(x, decimals=1) * h,
    "addcmul": lambda c, x, h: torch.addcmul(x, h, c.w, value=0.3),
    "addcdiv": lambda c, x, h: torch.addcdiv(x, h, positive(h), value=0.5),
    "lerp": lambda c, x, h: torch.lerp(x, h, 0.3) + torch.lerp(x, h, c.w),
    "logaddexp": lambda c, x, h: torch.logaddexp(x, h) + torch.logaddexp(x, c.w),
    "mask * 1.0": lambda c, x, h: (x > 0) * 1.0 * h + torch.where(x > h, 1.0, 0.0) * x,
    "bool + bool": lambda c, x, h: ((x > 0) + (h > 0)) * x,
    "atan2 at 0": lambda c, x, h: torch.atan2(x * 0, h * 0) + x,
    "xlogy": lambda c, x, h: torch.xlogy(x, positive(h)),
    "where": lambda c, x, h: torch.where(x > h, x, 0.3 * h) + torch.where(c.mask, x, h),
    "where numbers": lambda c, x, h: torch.where(x > 0, x, 1.0) + torch.where(x > h, 0.25, h),
    "masked_fill": lambda c, x, h: x.masked_fill(x > h, -1.0) + h.masked_fill(c.mask, 2.0),
    "clamp": lambda c, x, h: x.clamp(-0.5, 0.5) + h.clamp(max=0.5) + x.clamp(min=-0.5),
    "clamp tensors": lambda c, x, h: torch.clamp(x, c.w, c.w + 1),
    "clamp_min": lambda c, x, h: torch.clamp_min(x, 0.5) + torch.clamp_max(h, 0.5),
    "threshold": lambda c, x, h: F.threshold(x, 0.5, 0.25) * h,
    "softplus beta": lambda c, x, h: F.softplus(x, beta=2.0, threshold=1.0) * h,
    "gelu tanh": lambda c, x, h: F.gelu(x, approximate="tanh") * h,
    "elu alpha": lambda c, x, h: F.elu(x, 0.7) + F.celu(h, 0.5) + F.leaky_relu(x, 0.2),
    "hardtanh": lambda c, x, h: F.hardtanh(x, -0.5, 0.5) * h,
    "prelu": lambda c, x, h: F.prelu(x, c.w) + F.prelu(h, c.w[:1]),
    "hardshrink": lambda c, x, h: F.hardshrink(x, 0.5) + F.softshrink(h, 0.5),
    "glu": lambda c, x, h: F.glu(x, 1),
    "glu of heads": lambda c, x, h: F.glu(heads(x), 1) * heads(h)[:, :1],
    "logit": lambda c, x, h: torch.logit(torch.sigmoid(x)) + torch.logit(x * 0.3 + 0.5, 0.3),
    "mse": lambda c, x, h: F.mse_loss(x, h, reduction="none"),
    "bool": lambda c, x, h: (((x > 0) & (h > 0)) | ~(x > 0.5) ^ (h > 1)).double() * h,
    "bool of parameters": lambda c, x, h: ((x > 0) & (c.w > 0)).double() * h,
    "integers": lambda c, x, h: ((x * 3).long() % 3 + 2).double() * h,
    "to bool": lambda c, x, h: x.bool().double() * h + (x != 0) * h,
    "in place": in_place,
    "filled": filled,
    "no_grad": no_gradient,
    "in place in no_grad": changed_without_gradient,
    "nan_to_num": lambda c, x, h: (
        torch.nan_to_num(torch.where(x > 0, x, math.nan)) * h
        + torch.nan_to_num(torch.where(h > 0, h, -math.inf), posinf=1.0, neginf=-2.0)
    ),
    "isnan": lambda c, x, h: torch.where(torch.where(x > 0, x, math.nan).isnan(), h, x),
}

VIEWS = {
    "slice": lambda c, x, h: x[:, 1:5:2] * h[:, :2] + x[..., -2:],
    "select": lambda c, x, h: x[:, 2:3] * h + x[:, -1, None],
    "narrow": lambda c, x, h: x.narrow(1, 2, 3) * h[:, :3],
    "chunk": lambda c, x, h: x.chunk(3, 1)[1] * h.chunk(3, -1)[2],
    "chunk of heads": lambda c, x, h: heads(x).chunk(2, 1)[1] * heads(h).chunk(3, 2)[1],
    "split": lambda c, x, h: x.split([1, 2, 3], 1)[2] * h.split(4, 1)[0][:, :3],
    "unbind": lambda c, x, h: torch.stack(heads(x).unbind(1)[::-1], 2) * c.w.view(3, 2),
    "stack": lambda c, x, h: torch.stack([x, h, c.w.expand_as(x)], -1),
    "stack with a parameter": lambda c, x, h: torch.stack([x, h], 1) * torch.stack([c.w, c.w]),
    "cat": lambda c, x, h: torch.cat([h[:, 3:], x, x.new_zeros(len(x), 2), h[:, :3]], 1),
    "cat of heads": lambda c, x, h: torch.cat([heads(x), heads(h)], 2) * c.w,
    "cat with a parameter": lambda c, x, h: torch.cat([x, c.w.expand(len(x), -1)], 1),
    "parameter repeated": lambda c, x, h: torch.cat([x, c.w.repeat(len(x), 2)], 1),
    "ones as a column": lambda c, x, h: torch.cat([x, torch.ones(x.size(0), 1).to(x)], -1)
    @ torch.cat([c.m, c.b[None]]),
    "flip": lambda c, x, h: x.flip(1) * h + heads(x).flip(1, 2).flatten(1),
    "roll": lambda c, x, h: x.roll(2, 1) + heads(h).roll((1, -1), (1, 2)).flatten(1),
    "repeat": lambda c, x, h: x.repeat(1, 2) * h.tile(1, 2) + c.w.repeat(2),
    "repeat_interleave": lambda c, x, h: x.repeat_interleave(2, 1),
    "expand": lambda c, x, h: x.unsqueeze(1).expand(-1, 2, -1) * h[:, None] * heads(c.w)[0, :, :1],
    "permute": lambda c, x, h: heads(x).permute(0, 2, 1) * h.view(-1, 3, 2),
    "transpose": lambda c, x, h: heads(x).transpose(-1, 1).reshape(-1, 6) * h + heads(x).mT.flatten(1),
    "movedim": lambda c, x, h: heads(x).movedim(1, 2).flatten(1) * h,
    "squeeze": lambda c, x, h: x[:, None, :, None].squeeze(1).squeeze(-1) * h,
    "squeeze all": lambda c, x, h: x[:, :, None].squeeze() * h,
    "unflatten": lambda c, x, h: x.unflatten(1, (2, 3)) * h.reshape(len(x), 2, 3),
    "merged rows": lambda c, x, h: torch.tanh(heads(x).flatten(0, 1) @ c.k[0]).view(-1, 2, 3) * heads(h),
    "transposed rows": lambda c, x, h: (c.q @ x.T).T * h + (c.q @ x.t()).t(),
    "pad": lambda c, x, h: F.pad(x, (1, 2)) * F.pad(h, (0, 3), value=2.0) + F.pad(x, (2, -1))[:, :1],
    "index": lambda c, x, h: x[:, [3, 0, 0]] * h[:, c.index[:3]],
    "index_select": lambda c, x, h: heads(x).index_select(1, c.index[1:3]) * x.index_select(1, c.index[:3])[:, None],
    "diff": lambda c, x, h: x.diff(dim=1),
    "full": lambda c, x, h: torch.full((len(x), 6), 0.5).to(x) * h + x.new_full((len(x), 1), 2.0),
    "full rows": lambda c, x, h: torch.zeros(len(x), 6, dtype=x.dtype) + x.new_ones(len(x), 6) * h,
    "likes": lambda c, x, h: torch.full_like(x, 0.5) * h + torch.ones_like(x) - torch.zeros_like(x),
    "filled_whole": lambda c, x, h: torch.tanh(x + torch.full_like(h.long(), 1.7) + h.long().fill_(-2.5)),
    "filled_bool": lambda c, x, h: torch.where(torch.full_like(x > 0, 0.5), h, x) + torch.full_like(x > 0, 0),
    "constants": lambda c, x, h: x * torch.arange(6, dtype=x.dtype) + torch.eye(6, dtype=x.dtype)[2] * h,
    "clone": lambda c, x, h: x.clone().contiguous() * h.flatten(1).view_as(h),
    "detach": lambda c, x, h: x.detach() * h,
}  # fmt: skip

REDUCTIONS = {
    "sum": lambda c, x, h: x.sum(1, keepdim=True) * h + heads(x).sum((1, 2))[:, None],
    "sum of bool": lambda c, x, h: (x > 0).sum(1, keepdim=True) * h,
    "mean": lambda c, x, h: x.mean(-1)[:, None] * h + heads(x).mean(1).repeat(1, 2),
    "var": lambda c, x, h: x.var(1, keepdim=True) * h + x.var(1, unbiased=False)[:, None],
    "var of heads": lambda c, x, h: heads(x).var((1, 2), correction=0, keepdim=True) * heads(h),
    "std": lambda c, x, h: (x + c.w).std(1, keepdim=True) * h,
    "var_mean": lambda c, x, h: torch.cat(torch.var_mean(x, 1, keepdim=True), 1),
    "std_mean": lambda c, x, h: torch.cat(torch.std_mean(x + c.w, 1, keepdim=True), 1),
    "amax": lambda c, x, h: x.amax(1, keepdim=True) * h + heads(x).amin(-1).repeat(1, 3),
    "amax of ties": lambda c, x, h: x.round().amax(1, keepdim=True) * h,
    "aminmax": lambda c, x, h: torch.cat(torch.aminmax(x, dim=1, keepdim=True), 1) * h[:, :2],
    "max": lambda c, x, h: x.max(1, keepdim=True).values * h + heads(x).min(1).values.repeat(1, 2),
    "max of ties": lambda c, x, h: x.round().max(1).values[:, None] * h,
    "prod": lambda c, x, h: x.prod(1, keepdim=True) * h + heads(x).prod(1).repeat(1, 2),
    "any all": lambda c, x, h: (x > 0).any(1, keepdim=True) * h + (x > -1).all(1)[:, None] * x,
    "count_nonzero": lambda c, x, h: x.count_nonzero(1)[:, None] * h,
    "nansum": lambda c, x, h: torch.where(x > 0, x, math.nan).nansum(1, keepdim=True) * h,
    "cumsum": lambda c, x, h: x.cumsum(1) * h + heads(x).cumsum(1).flatten(1),
    "cumprod": lambda c, x, h: x.cumprod(1) * h,
    "norm": lambda c, x, h: x.norm(dim=1, keepdim=True) * h + x.norm(1, dim=1)[:, None],
    "norm of zero": lambda c, x, h: (x * 0).norm(dim=1, keepdim=True) + h,
    "norm inf": lambda c, x, h: torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True) * h,
    "std of nothing": lambda c, x, h: (x * 0).std(1, keepdim=True) + h,
    "normalize a zero": lambda c, x, h: F.normalize(x * 0, dim=1) + h,
    "normalize": lambda c, x, h: F.normalize(x, dim=-1) * h,
    "cosine": lambda c, x, h: F.cosine_similarity(x, h, dim=1)[:, None] * h,
    "cosine to a memory": lambda c, x, h: F.cosine_similarity(x[:, None], c.memory[None], dim=2),
    "pairwise_distance": lambda c, x, h: F.pairwise_distance(x, h)[:, None],
    "softmax": lambda c, x, h: x.softmax(1) * h + heads(x).softmax(1).flatten(1),
    "log_softmax": lambda c, x, h: x.log_softmax(-1) * h + heads(x).log_softmax(2).flatten(1),
    "softmin": lambda c, x, h: F.softmin(x, 1) * h,
    "logsumexp": lambda c, x, h: x.logsumexp(1, keepdim=True) * h + heads(x).logsumexp(1).repeat(1, 2),
    "layer_norm": lambda c, x, h: F.layer_norm(x, (6,), c.w, c.q[0]) * F.layer_norm(h, (6,)),
    "layer_norm of heads": lambda c, x, h: F.layer_norm(heads(x), (3,), c.w[:3], c.w[3:]),
    "layer_norm of two axes": lambda c, x, h: F.layer_norm(heads(x), (2, 3), heads(c.w)[0]),
    "group_norm": lambda c, x, h: F.group_norm(x, 2, c.w, c.q[0]) * h,
    "group_norm of heads": lambda c, x, h: F.group_norm(heads(x), 1, c.w[:2], c.w[:2]),
    "rms_norm": lambda c, x, h: F.rms_norm(x, (6,), c.w) * h,
    "kl": lambda c, x, h: F.kl_div(x.log_softmax(1), h.softmax(1), reduction="none"),
}  # fmt: skip

PRODUCTS = {
    "linear": lambda c, x, h: F.linear(x, c.q, c.w) + F.linear(h, c.q.t()),
    "linear of heads": lambda c, x, h: F.linear(heads(x), c.k[0], c.w[:3]) * heads(h),
    "matmul": lambda c, x, h: x @ c.m + h @ c.m * 2,
    "mv": lambda c, x, h: (x @ c.w)[:, None] * h + torch.mv(h, c.w)[:, None],
    "addmm": lambda c, x, h: torch.addmm(c.b, x, c.m, beta=0.5, alpha=2),
    "addmm of rows": lambda c, x, h: torch.addmm(h[:, :4], x, c.m),
    "addmv": lambda c, x, h: torch.addmv(h[:, 0], x, c.w, beta=2, alpha=0.5)[:, None],
    "computed weights": lambda c, x, h: x @ torch.tril(c.q) + h @ F.softmax(c.q, 1).exp(),
    "attention over a memory": lambda c, x, h: torch.softmax(x @ c.memory.t(), 1) @ c.memory,
    "memory by broadcast": lambda c, x, h: (x.unsqueeze(1) * c.memory).sum(-1),
    "per head": lambda c, x, h: torch.einsum("bhi,hij->bhj", heads(x), c.k) * heads(h),
    "per head, turned": lambda c, x, h: torch.einsum("bhi,hji->bhj", heads(x), c.k),
    "per head by bmm": lambda c, x, h: torch.bmm(heads(x).transpose(0, 1), c.k).transpose(0, 1) * heads(h),
    "per head by matmul": lambda c, x, h: (x.view(-1, 2, 1, 3) @ c.k).flatten(1) * h,
    "per head from the left": lambda c, x, h: torch.matmul(c.k, x.view(-1, 2, 3, 1)).flatten(1) * h,
    "heads times one matrix": lambda c, x, h: heads(x) @ c.k[0] * heads(h),
    "rows times rows": lambda c, x, h: torch.bmm(heads(x), h.view(-1, 3, 2)),
    "rows times rows by matmul": lambda c, x, h: heads(x) @ heads(h).mT,
    "baddbmm": lambda c, x, h: torch.baddbmm(heads(h), heads(x), h[:, :3, None] * x[:, None, :3], beta=2, alpha=0.5),
    "outer": lambda c, x, h: x[:, :, None] * h[:, None, :],
    "outer by einsum": lambda c, x, h: torch.einsum("bi,bj->bij", x, h),
    "dot by einsum": lambda c, x, h: torch.einsum("bi,bi->b", x, h)[:, None] * h,
    "vecdot": lambda c, x, h: torch.linalg.vecdot(x, h)[:, None] * h,
    "three by einsum": lambda c, x, h: torch.einsum("bi,ij,bj->bi", x, c.q, h),
    "multi_dot": lambda c, x, h: torch.linalg.multi_dot([x, c.q, c.m]),
    "attention": lambda c, x, h: F.scaled_dot_product_attention(heads(x), heads(h), heads(x)),
    "torch.nn.LSTMCell": lambda c, x, h: torch.cat(c.lstm(x, (h[:, :3], h[:, 3:])), 1),
    "torch.nn.GRUCell": lambda c, x, h: c.gru(x, h),
    "torch.nn.RNNCell": lambda c, x, h: c.rnn(x, h),
}  # fmt: skip

LINES = {**ELEMENTWISE, **PAIRS, **VIEWS, **REDUCTIONS, **PRODUCTS}


def inputs(cell: Cell, *, halves: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, offsets, state = oracle.batch(cell, [2, 0, 3, 1])
    if halves:
        x, state = (x * 2).round() / 2, (state * 2).round() / 2
    return x, offsets, state


# What a line is compared to where torch's own backward is less exact than float64: it multiplies by
# the float32 numbers 1/6 and 1/alpha.
BY_HAND = {
    "hardsigmoid": lambda c, x, h: F.relu6(x + 3) / 6 * h,
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_its_eager_self(name: str) -> None:
    cell = OneLine(LINES[name])
    for halves in (False, True):
        x, offsets, state = inputs(cell, halves=halves)
        cell.line = BY_HAND.get(name, LINES[name])
        wanted = oracle.outcome(eager.run, cell, x, offsets, state)
        cell.line = LINES[name]
        for engine in ("torch", "auto"):
            with unpad.engine(engine):
                actual = oracle.outcome(choose.run, cell, x, offsets, state)
            oracle.assert_same(actual, wanted, 1e-10)


# -- randomness: drawn before the loop, from the operation's own distribution ----------------------

RANDOM = {
    "dropout": (lambda c, x, h: F.dropout(torch.ones_like(x), 0.25), {0.0, 4 / 3}, 1.0),
    "dropout of a half": (lambda c, x, h: F.dropout(torch.ones_like(x)), {0.0, 2.0}, 1.0),
    "a module's dropout": (lambda c, x, h: nn.Dropout()(torch.ones_like(x)), {0.0, 2.0}, 1.0),
    "dropout of channels": (
        lambda c, x, h: F.dropout1d(torch.ones_like(x)[:, None], 0.5)[:, 0], {0.0, 2.0}, 1.0,
    ),
    "bernoulli_ of a half": (lambda c, x, h: torch.empty_like(x).bernoulli_(), {0.0, 1.0}, 0.5),
    "bernoulli_ of chances": (
        lambda c, x, h: torch.empty_like(x).bernoulli_(torch.full_like(x, 0.25)), {0.0, 1.0}, 0.25,
    ),
    "dropout of all": (lambda c, x, h: F.dropout(torch.ones_like(x), 1.0), {0.0}, 0.0),
    "bernoulli": (lambda c, x, h: torch.bernoulli(torch.full_like(x, 0.25)), {0.0, 1.0}, 0.25),
    "bernoulli_": (lambda c, x, h: torch.empty_like(x).bernoulli_(0.75), {0.0, 1.0}, 0.75),
    "rand_like": (lambda c, x, h: torch.rand_like(x), None, 0.5),
    "rand": (lambda c, x, h: torch.rand(len(x), 6, dtype=x.dtype), None, 0.5),
    "randn": (lambda c, x, h: torch.randn(len(x), 6, dtype=x.dtype) + 3, None, 3.0),
    "randn_like": (lambda c, x, h: torch.randn_like(x) + 3, None, 3.0),
    "uniform_": (lambda c, x, h: torch.empty_like(x).uniform_(1, 3), None, 2.0),
    "normal_": (lambda c, x, h: torch.empty_like(x).normal_(2, 0.5), None, 2.0),
    "keep_mask": (
        lambda c, x, h: unpad.noise.keep_mask(x, 0.25, per_sequence=False), {0.0, 1.0}, 0.75,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_randomness_is_drawn_afresh_for_every_token(name: str) -> None:
    line, values, mean = RANDOM[name]
    cell = OneLine(lambda c, x, h: torch.ones_like(x))
    cell.line = line
    x, offsets, state = oracle.batch(cell, [40, 0, 60])
    output, _, _ = choose.run(cell, x, offsets, state)
    if values is not None:
        assert {round(v, 6) for v in output.flatten().tolist()} == {round(v, 6) for v in values}
    assert abs(float(output.mean()) - mean) < 0.15
    if values is None or len(values) > 1:
        assert not torch.equal(output[:20], output[20:40])
        assert not torch.equal(choose.run(cell, x, offsets, state)[0], output)
    torch.manual_seed(3)
    first, _, _ = choose.run(cell, x, offsets, state)
    torch.manual_seed(3)
    assert torch.equal(choose.run(cell, x, offsets, state)[0], first)


def test_a_mean_of_each_number_is_drawn_around_in_the_eager_loop() -> None:
    cell = OneLine(lambda c, x, h: torch.normal(x, 0.25))
    x, offsets, state = oracle.batch(cell, [400])
    with pytest.warns(unpad.UncompiledCellWarning, match=r"aten\.normal.*randn_like"):
        output, _, _ = choose.run(cell, x, offsets, state)
    assert abs(float((output - x).std()) - 0.25) < 0.05


def test_dropout_of_eval_mode_and_of_rate_0_is_nothing() -> None:
    cell = OneLine(lambda c, x, h: F.dropout(x, 0.5, training=c.training) + F.dropout(h, 0.0))
    cell.eval()
    x, offsets, state = oracle.batch(cell, [2, 3])
    wanted = oracle.outcome(eager.run, cell, x, offsets, state)
    oracle.assert_same(oracle.outcome(choose.run, cell, x, offsets, state), wanted, 1e-10)


# What a rule's defaults mean another way than the operation's, by name.
OTHERWISE = {
    "amax": "no axes are all axes", "amin": "no axes are all axes", "roll": "a tuple for a list",
    "var": "the overload with `unbiased` alone", "var_mean": "likewise", "std_mean": "likewise",
    "slice": "an overload on Python's lists", "split": "an overload on strings",
    "flatten": "the rule of `reshape`, for an operation that a trace has taken apart",
    "bernoulli": "0.5 in place only", "normal": "in place only; others are refused",
}  # fmt: skip


def test_defaults_that_a_trace_leaves_out_are_those_of_the_operations() -> None:
    """torch drops an argument that equals the schema's default before a mode sees the call."""
    differing: set[str] = set()
    compared = 0
    for name, lowers in Lowering.rules.items():
        own = list(inspect.signature(lowers).parameters.values())[1:]
        places = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
        for packet in (getattr(torch.ops.aten, n, None) for n in (name, f"{name}_")):
            for overload in packet.overloads() if packet is not None else ():
                arguments = getattr(packet, overload)._schema.arguments
                for place, argument in enumerate(arguments):
                    if not argument.has_default_value():
                        continue
                    named = next((p for p in own if p.name == argument.name), None)
                    there = places[place] if place < len(places) else None
                    taken = named if argument.kwarg_only else there
                    compared += taken is not None
                    if taken is not None and taken.default != argument.default_value:
                        differing.add(name)
    assert differing == set(OTHERWISE)
    assert compared > 100


# -- coverage --------------------------------------------------------------------------------------

# Names that torch resolves before the tracer sees them, or that only another device or build uses.
NEVER_SEEN = {
    "_batch_norm_impl_index", "_native_batch_norm_legit", "_reshape_alias", "clip", "contiguous",
    "cudnn_batch_norm", "flatten", "lift", "linear", "log_softmax", "narrow", "norm", "reshape",
    "softmax", "to", "__and__", "__or__", "__xor__", "alias", "positive", "logical_xor",
    "unsafe_split_with_sizes", "square", "new_empty", "new_ones", "new_zeros", "new_full",
    "scalar_tensor", "zeros", "empty", "native_batch_norm", "lift_fresh", "relu6", "native_dropout",
}  # fmt: skip


def test_every_rule_is_used_by_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()

    def spy(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (used.add(name), rule(*args, **kwargs))[1]

    rules = {name: spy(name, rule) for name, rule in Lowering.rules.items()}
    monkeypatch.setattr(Lowering, "rules", rules)
    cells = [OneLine(line) for line in LINES.values()]
    for line, _, _ in RANDOM.values():
        cells.append(OneLine(lambda c, x, h: torch.ones_like(x)))
        cells[-1].line = line
    for cell in cells:
        x, _, state = oracle.batch(cell, [2])
        compile_cell(cell, x, state)
    assert set(rules) - used <= NEVER_SEEN
