"""Arguments that every layer of Keras takes: what has a meaning here is taken, the rest refused."""

from __future__ import annotations

import numbers
from typing import Any, cast

import torch

from unpad.cells.arguments import check_flag, check_size, is_number
from unpad.errors import ArgumentError, ArgumentTypeError, quoted

_IGNORED = ("autocast", "batch_size", "dynamic", "enable_caching_device", "input_length")
_PENALTY = "add the penalty to your loss, or use the optimizer's weight_decay"
_BOUND = "bound the weights after optimizer.step(), within torch.no_grad()"
_TAKEN = ("input_dim", "input_shape", "batch_input_shape", "trainable", "dtype", "weights")


def common_arguments(owner: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return what these keyword arguments of Keras's mean here; None and False mean nothing.

    Args:
        owner: the class that they were given to.
        options: what the class itself does not know.

    Returns:
        ``input_size`` of ``input_dim``, ``input_shape`` or ``batch_input_shape`` (None: not said);
        ``trainable``; ``dtype``; ``weights``.

    Raises:
        ArgumentError: a regularizer or a constraint; shapes that contradict each other.
        ArgumentTypeError: a name that Keras does not have either; no shape.

    >>> common_arguments("LSTM", {"batch_input_shape": (None, 7, 3), "trainable": False})
    {'input_size': 3, 'trainable': False, 'dtype': None, 'weights': None}
    """
    for name, value in options.items():
        if name in _TAKEN or name in _IGNORED:
            continue
        remedy = _PENALTY if name.endswith("_regularizer") else _BOUND
        if not name.endswith(("_regularizer", "_constraint")):
            raise ArgumentTypeError(
                name, quoted(value), f"no argument of {owner}", "check its spelling"
            )
        if value is not None:
            raise ArgumentError(name, quoted(value), "None", remedy)
    return {
        "input_size": _input_size(options),
        "trainable": check_flag("trainable", options.get("trainable", True)),
        "dtype": dtype_of(options.get("dtype")),
        "weights": options.get("weights"),
    }


def _input_size(options: dict[str, Any]) -> int | None:
    sizes: dict[str, int] = {}
    if (size := options.get("input_dim")) is not None:
        sizes["input_dim"] = check_size("input_dim", size)
    for name, rank in (("input_shape", 2), ("batch_input_shape", 3)):
        if (shape := options.get(name)) is None:
            continue
        if not isinstance(shape, (tuple, list)) or len(cast("list[Any]", shape)) != rank:
            axes = "(steps, features)" if rank == 2 else "(batch, steps, features)"
            raise ArgumentTypeError(name, shape, axes, "steps and batch may be None")
        if (size := cast("list[Any]", shape)[-1]) is not None:
            sizes[name] = check_size(name, size)
    if len(set(sizes.values())) > 1:
        raise ArgumentError(
            " and ".join(sizes), list(sizes.values()), "one width", "give one of them"
        )
    return next(iter(sizes.values()), None)


def dtype_of(given: Any) -> torch.dtype | None:
    """Return a torch dtype, or the one that a name of Keras's stands for; None: none was given.

    >>> dtype_of("float64")
    torch.float64
    """
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if given is None or (isinstance(found, torch.dtype) and found.is_floating_point):
        return found
    raise ArgumentTypeError(
        "dtype", quoted(given), "a floating dtype, its name, or None", 'such as "float32"'
    )


def dropout_rate(argument: str, rate: Any) -> float:
    """Return a share to drop, 0 to below 1."""
    if not is_number(rate, numbers.Real):
        raise ArgumentTypeError(
            argument, quoted(rate), "a number from 0 to below 1", "give a share"
        )
    if not 0.0 <= rate < 1.0:
        remedy = "give the share that is dropped; Keras's cells take 1 for 0"
        raise ArgumentError(argument, rate, "0 to below 1", remedy)
    return float(rate)
