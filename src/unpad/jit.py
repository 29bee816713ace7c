"""What torch.jit and torch.export cannot take is refused in words, at the door.

Both would keep one batch's lengths as constants, and be wrong on the next batch without a word.
torch.compile calls a layer as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from unpad.errors import ArgumentTypeError

F = TypeVar("F", bound=Callable[..., Any])

_WHOLE = (
    "Unpad runs this call by its own engine, between two graphs of torch.compile; remedy: leave "
    "fullgraph=True out"
)
_REMEDY = "call it as it is, or through torch.compile; torch.jit.trace takes a single cell"


def is_traced() -> bool:
    """Whether torch.jit.trace follows what is computed."""
    return torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage] - Dynamo knows it


def refuse_tracing(argument: str) -> None:
    """Refuse an input that torch.jit.trace or torch.export follows."""
    if is_traced() or torch.compiler.is_exporting():
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


def _put_outside(forward: Any, outside: list[Any]) -> None:
    """Append what torch.compile calls in place of ``forward``."""
    disable: Any = torch.compiler.disable
    # torch 2.6 has no `reason`, which is what fullgraph=True refuses the second call with.
    told = "reason" in inspect.signature(disable).parameters
    outside.append(disable(forward, **({"reason": _WHOLE} if told else {})))


# And the first call, which is refused for this function. Torch sets the same on what it disables.
vars(_put_outside).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=_WHOLE)


def opaque(forward: F) -> F:
    """Have torch.compile call a layer's forward as it is, between two graphs of its own.

    It would else follow every line of what checks and forms the batch, in a graph each.
    """
    outside: list[Any] = []

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        if not outside:  # made here: at import it would take torch._dynamo along
            _put_outside(forward, outside)
        return outside[0](*args, **kwargs)

    return cast("F", run)
