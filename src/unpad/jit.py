"""What torch.jit and torch.export cannot take is refused in words, at the door.

Both would keep one batch's lengths as constants, and be wrong on the next batch without a word.
"""

from __future__ import annotations

from typing import Any

import torch

from unpad.errors import ArgumentTypeError

_REMEDY = "call it as it is, or through torch.compile; torch.jit.trace takes a single cell"


def refuse_tracing(argument: str) -> None:
    """Refuse an input that torch.jit.trace or torch.export follows."""
    if torch._C._is_tracing() or torch.compiler.is_exporting():  # pyright: ignore[reportPrivateUsage]
        raise ArgumentTypeError(
            argument,
            "a tensor that torch.jit.trace or torch.export follows",
            "a tensor of an ordinary call, since lengths would become constants",
            _REMEDY,
        )


def refuse_scripting(module: Any) -> Any:
    """Refuse torch.jit.script, which asks a module by ``__prepare_scriptable__``."""
    raise ArgumentTypeError(
        "obj",
        f"{type(module).__name__}, given to torch.jit.script",
        "modules in the part of Python that TorchScript knows",
        _REMEDY,
    )
