"""Weights that wait for the width of the input."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter, is_lazy


@contextmanager
def waiting_if_refused(*cells: Any) -> Generator[None]:
    """Leave cells as they were where the call that made their weights does not end well.

    The refused input may have had the wrong width, and a width is for good.
    """
    unmade = [
        module
        for cell in cells
        if isinstance(cell, nn.Module) and getattr(cell, "input_size", 0) is None
        for module in cell.modules()
    ]
    if not unmade:
        yield
        return
    unsized = [module for module in unmade if vars(module).get("input_size", 0) is None]
    lazy = [p for module in unmade for p in module.parameters(recurse=False) if is_lazy(p)]
    before = [(parameter, parameter.dtype, parameter.device) for parameter in lazy]
    try:
        yield
    except BaseException:
        for parameter, dtype, device in before:
            parameter.data = torch.empty(0, dtype=dtype, device=device)
            cast("Any", parameter).__class__ = UninitializedParameter  # as `materialize`, backwards
        for module in unsized:
            module.input_size = None  # pyright: ignore[reportArgumentType]
        raise
