"""Tensors as the native code reads them, which knows an address and strides and nothing else.

A tensor need not be what its memory holds: the imaginary part of a conjugate is its negative.
"""

from __future__ import annotations

import torch
from torch import Tensor


def resolved(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors that are what their memory holds; these very ones where they are.

    >>> z = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    >>> z.is_neg(), resolved([z])[0].is_neg()
    (True, False)
    """
    if any([t.is_neg() for t in tensors]):  # noqa: C419 - quicker
        return [t.resolve_neg() for t in tensors]
    return tensors


def lies_in_rows(tensor: Tensor) -> bool:
    """Whether neighbour columns are neighbours in memory, which holds the numbers themselves."""
    return (tensor.stride(-1) == 1 or tensor.shape[-1] == 1) and not tensor.is_neg()


def in_rows(tensor: Tensor) -> Tensor:
    """The very tensor where it lies in rows, else a copy that does.

    >>> in_rows(torch.zeros(3, 2).T).stride()
    (3, 1)
    """
    if lies_in_rows(tensor):
        return tensor
    # contiguous() would leave an empty tensor with the strides that it has.
    return tensor.resolve_neg().clone(memory_format=torch.contiguous_format)


def in_full(tensor: Tensor) -> Tensor:
    """Resolved and contiguous."""
    return tensor.resolve_neg().contiguous() if tensor.is_neg() else tensor.contiguous()
