"""The loss on the native engine (csrc/softmax.cpp): forward and backward in one call.

Gradients are worked out with the loss, where any is wanted, since a tile's probabilities are at
hand then. A backward pass hands them over, times the gradient that arrives; asked for a second
time, or for losses that were not reduced, it makes one more call. Derivatives of higher order are
those of the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unpad.engine import native_engine
from unpad.engine.memory import in_full, in_rows
from unpad.softmax import reference
from unpad.softmax.reference import Head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unpad.softmax.grouping import Grouping

Tensors = list["Tensor | None"]

# Below this, torch's allocator keeps memory mapped and is quicker than the pool.
_WORTH_POOLING = 1 << 16


def total(hidden: Tensor, target: Tensor, head: Head, scales: Tensor | float) -> Tensor:
    """Return the sum of the losses, each times its scale."""
    inputs = _working([hidden, *head.tensors()])
    result: Any = _Total.apply(_Call(head, target, scales, _wanted(inputs)), *inputs)  # type: ignore[no-untyped-call]
    return result


def losses(hidden: Tensor, target: Tensor, head: Head) -> Tensor:
    """Return the loss of each token [T]."""
    inputs = _working([hidden, *head.tensors()])
    result: Any = _Losses.apply(_Call(head, target, 1.0, _wanted(inputs)), *inputs)  # type: ignore[no-untyped-call]
    return result


def best_of(head: Head) -> Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]:
    """Return what finds the likeliest words of classes, for `search.topk`."""
    groups, tensors = head.grouping, _working(head.tensors())
    assert groups is not None
    given = [None if t is None else t.detach() for t in tensors]

    def best(hidden: Tensor, rows: Tensor, classes: Tensor, k: int) -> tuple[Tensor, Tensor]:
        (inputs,) = _working([hidden.detach()])
        assert inputs is not None
        values = inputs.new_empty(len(rows), k)
        words = torch.empty(len(rows), k, dtype=torch.int64, device="cpu")
        frame = _frame([inputs, *given], groups, values)
        frame += k, len(rows), rows.data_ptr(), classes.data_ptr(), words.data_ptr()
        numbers = [1.0, 1 / head.temperature, 0.0]
        native_engine.softmax_best(frame, numbers, dtype=inputs.dtype, rounds=head.rounds)
        return values, words

    return best


@dataclass(frozen=True, eq=False)
class _Call:
    """What does not change between the calls for one loss."""

    head: Head
    target: Tensor
    scales: Tensor | float
    wanted: list[bool]
    """Of hidden and the head's tensors: whether a gradient is."""


def _working(inputs: Tensors) -> Tensors:
    """bfloat16 numbers as float32: products round their operands, sums stay wide."""

    def one(t: Tensor) -> Tensor:
        return in_rows(t.float() if t.dtype.itemsize < 4 else t)

    return [None if t is None else one(t) for t in inputs]


def _wanted(inputs: Tensors) -> list[bool]:
    recording = torch.is_grad_enabled()
    return [recording and t is not None and t.requires_grad for t in inputs]


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor | None) -> Tensor:
        loss, _, ctx.gradients = _run(call, inputs, call.scales, call.wanted)
        ctx.call = call
        ctx.save_for_backward(*inputs)
        hidden = inputs[0]
        assert hidden is not None
        return hidden.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        call, inputs = ctx.call, ctx.saved_tensors
        if torch.is_grad_enabled():
            return (None, *_differentiated(call, inputs, grads[0] * call.scales))
        # Handed over, not shared: autograd may keep them as the parameters' gradients.
        found, ctx.gradients = ctx.gradients, None
        if found is None:
            _, _, found = _run(call, inputs, call.scales, call.wanted)
        factor = float(grads[0])
        if factor != 1:
            for gradient in found:
                if gradient is not None:
                    gradient.mul_(factor)
        return (None, *found)


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor | None) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*inputs)
        return _run(call, inputs, 1.0, [False] * len(inputs))[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        call, inputs = ctx.call, ctx.saved_tensors
        if torch.is_grad_enabled():
            return (None, *_differentiated(call, inputs, grads[0]))
        return (None, *_run(call, inputs, grads[0], call.wanted)[2])


def _differentiated(call: _Call, inputs: Any, grad: Tensor) -> Tensors:
    """Gradients that can be differentiated again, by the reference; ``grad``: of each loss."""
    hidden, *tensors = inputs
    result = reference.losses(hidden, call.target, call.head.with_tensors(tensors))
    some = [t for t, wanted in zip(inputs, call.wanted, strict=True) if wanted]
    found = iter(torch.autograd.grad(result, some, grad.expand_as(result), create_graph=True))
    return [next(found) if wanted else None for wanted in call.wanted]


def _run(
    call: _Call, inputs: Any, scales: Tensor | float, wanted: list[bool]
) -> tuple[float, Tensor, Tensors]:
    """Return the scaled sum, the losses [T] and the gradient of each input that is wanted."""
    hidden: Any
    hidden, *tensors = (None if t is None else t.detach() for t in inputs)
    head, target = call.head, call.target.contiguous()
    losses = hidden.new_empty(len(hidden))
    gradients: Tensors = [
        _empty_like(t) if want else None for t, want in zip([hidden, *tensors], wanted, strict=True)
    ]
    vector = isinstance(scales, Tensor)
    held = in_full(scales.detach().to(hidden.dtype)) if isinstance(scales, Tensor) else None
    frame = _frame(
        [hidden, *tensors], head.grouping, losses, target=target, scales=held, gradients=gradients
    )
    numbers = [1.0 if vector else float(scales), 1 / head.temperature, head.label_smoothing]
    total = native_engine.softmax_loss(frame, numbers, dtype=hidden.dtype, rounds=head.rounds)
    return total, losses, gradients


def _frame(
    inputs: Any,
    groups: Grouping | None,
    losses: Tensor,
    *,
    target: Tensor | None = None,
    scales: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (None,) * 5,
) -> list[int]:
    """Sizes and addresses from T on, as csrc/engine.h has them."""
    hidden, weight, *_ = inputs
    classes = 0 if groups is None else len(groups.sizes)
    frame = [len(hidden), hidden.shape[1], len(weight), classes]
    frame += hidden.data_ptr(), hidden.stride(0), _address(target), _address(scales)
    frame += losses.data_ptr(), _address(gradients[0])
    for at in (1, 3):
        matrix, bias = inputs[at], inputs[at + 1]
        frame += _address(matrix), 0 if matrix is None else matrix.stride(0), _address(bias)
        frame += _address(gradients[at]), _address(gradients[at + 1])
    if groups is None:
        return [*frame, 0, 0, 0, 0]
    order = 0 if groups.in_order else groups.words.data_ptr()
    frame += groups.class_of.data_ptr(), order
    return [*frame, groups.place_of.data_ptr(), groups.starts.data_ptr()]


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _empty_like(tensor: Any) -> Tensor:
    """Memory for a gradient: large ones from the pool, where pages are mapped already."""
    if tensor.dim() < 2 or tensor.nbytes < _WORTH_POOLING:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return native_engine.empty(tensor.shape[0], tensor.shape[1], tensor.dtype)
