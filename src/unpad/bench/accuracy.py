"""How far float32 results are from the same in float64."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from torch import Tensor


def relative_error(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Largest deviation over all tensors, each relative to its own largest value.

    >>> import torch
    >>> relative_error([torch.tensor([1.0, 2.5])], [torch.tensor([1.0, 2.0])])
    0.25
    """
    return max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(_doubles(got), _doubles(wanted), strict=True)
    )


def rms_error(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Median over all tensors of the root-mean-square deviation, relative to the wanted one's.

    For chaotic cells, whose largest deviation grows with the length whatever computes them.

    >>> import torch
    >>> rms_error([torch.tensor([3.0, 4.5])], [torch.tensor([3.0, 4.0])])
    0.1
    """
    return statistics.median(
        float((a - b).norm() / b.norm().clamp_min(1e-30))
        for a, b in zip(_doubles(got), _doubles(wanted), strict=True)
    )


def _doubles(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().double() for tensor in tensors]
