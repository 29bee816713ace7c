"""Clipping a list of gradients by their common norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from unpad.cells.arguments import check_number
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.tf1.sparse import slices_values, with_values


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: float, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """Scale a list of tensors so that their common norm is at most a number.

    ``t * clip_norm / max(global_norm, clip_norm)``: the direction stays, and what is below the
    number comes back bit for bit.

    Args:
        t_list: tensors of one floating dtype; None stays None; IndexedSlices and torch's sparse
            tensors count and are scaled as they stand, an index that repeats is not summed first.
        clip_norm: the largest norm allowed: 0 or more.
        use_norm: the norm, where it is known already, a number or a scalar tensor.
        name: as in TensorFlow; no meaning here.

    Returns:
        The list, and the norm: before clipping, or ``use_norm``. A norm that is infinite or NaN
        makes every element NaN, as in TensorFlow: a sign that something went wrong before. An empty
        list has norm 0. Gradients flow through both.

    Raises:
        ArgumentTypeError: one tensor instead of a list; integers; dtypes that differ.
        ArgumentError: a negative or NaN ``clip_norm`` or ``use_norm``.

    Source: TensorFlow 1, ``tf.clip_by_global_norm``.

    >>> clipped, norm = clip_by_global_norm([torch.tensor([3., 0.]), None, torch.tensor([4.])], 1.0)
    >>> clipped, norm
    ([tensor([0.6000, 0.0000]), None, tensor([0.8000])], tensor(5.))
    """
    del name
    values = _values(t_list)
    clip = _check_norm("clip_norm", clip_norm)
    norm = _norm(values) if use_norm is None else _as_scalar(use_norm, values)
    trouble = norm - norm  # 0, or NaN where the norm is infinite or NaN
    if clip == 0.0:
        scale = trouble
    elif math.isinf(clip):
        scale = 1.0 + trouble
    else:
        scale = clip / norm.clamp(min=clip) + trouble
    clipped = [_scaled(*pair, scale) for pair in zip(t_list, values, strict=True)]
    return clipped, norm


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """Return the square root of the sum of all squares of a list of tensors.

    Args:
        t_list: as for `clip_by_global_norm`.
        name: as in TensorFlow; no meaning here.

    Returns:
        A scalar of the tensors' dtype, float32 for half precision; 0 for an empty list. Gradients
        flow; at 0 they are 0.

    Raises:
        ArgumentTypeError: as for `clip_by_global_norm`.

    >>> global_norm([torch.tensor([3.]), None, torch.tensor([[4.]])])
    tensor(5.)
    """
    del name
    return _norm(_values(t_list))


def _values(t_list: Any) -> list[Tensor | None]:
    if not isinstance(t_list, (list, tuple)) or hasattr(t_list, "_fields"):
        raise ArgumentTypeError(
            "t_list", t_list, "a list of tensors", "write list(...), or [tensor] for one"
        )
    values = [
        None if given is None else slices_values(given, f"t_list[{number}]")
        for number, given in enumerate(cast("list[Any]", t_list))
    ]
    dtype = next((value.dtype for value in values if value is not None), torch.float32)
    for number, value in enumerate(values):
        if value is not None and (value.dtype != dtype or not dtype.is_floating_point):
            raise ArgumentTypeError(
                f"t_list[{number}]",
                f"dtype {value.dtype}",
                "one floating dtype for all" if dtype.is_floating_point else "a floating dtype",
                "convert it: .float() or .double()",
            )
    return values


def _norm(values: list[Tensor | None]) -> Tensor:
    given = [value for value in values if value is not None]
    if not given:
        return torch.zeros(())
    wide = torch.promote_types(given[0].dtype, torch.float32)
    norms = [torch.linalg.vector_norm(value, dtype=wide).to(given[0].device) for value in given]
    return torch.linalg.vector_norm(torch.stack(norms))


def _scaled(given: Any, value: Tensor | None, scale: Tensor) -> Any:
    if value is None:
        return None
    return with_values(given, value * scale.to(value.device, value.dtype))


def _as_scalar(use_norm: Any, values: list[Tensor | None]) -> Tensor:
    like = next((value for value in values if value is not None), torch.zeros(()))
    wide = torch.promote_types(like.dtype, torch.float32)
    if isinstance(use_norm, Tensor):
        if use_norm.numel() != 1:
            raise ArgumentError("use_norm", use_norm, "a scalar", "give the norm of the whole list")
        return use_norm.reshape(()).to(like.device, wide)
    number = check_number("use_norm", use_norm, "a number of 0 or more", lambda n: not n < 0)
    return torch.tensor(number, dtype=wide, device=like.device)


def _check_norm(argument: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return check_number(argument, value, "a number of 0 or more", lambda number: number >= 0)
