"""Weights as Keras hands them over: a list of arrays in its own order."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unpad.cells.arguments import as_numbers, check_flag, check_size
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.tf1.cell import RNNCell


class KerasWeights(nn.Module):
    """A module whose parameters stand in Keras's order, under its names and in its layouts."""

    def build(self, input_size: Any) -> None:
        """Make the kernels that wait for the width of the input: those of the cells inside.

        Args:
            input_size: features of a token; or as in Keras the input's shape, such as
                ``(None, None, 3)``, of which the last number counts.

        Raises:
            ArgumentError, ArgumentTypeError: neither; kernels that are there, for another width.
        """
        width = width_in(input_size)
        for module in self.children():
            if isinstance(module, (KerasWeights, RNNCell)):
                module.build(width)

    def settle(self, common: dict[str, Any]) -> None:
        """Do what a layer's arguments of Keras's say, as `common_arguments` read them."""
        if common["input_size"] is not None:
            self.build(common["input_size"])
        if common["dtype"] is not None:
            self.to(common["dtype"])
        if not common["trainable"]:
            for parameter in self.parameters():
                parameter.requires_grad = False  # of one without a size, too
        if common["weights"] is not None:
            self.set_weights(common["weights"])

    def get_weights(self) -> list[npt.NDArray[Any]]:
        """Give copies of all weights as arrays, in Keras's order.

        Raises:
            ArgumentError: the width of the input is not known yet.

        >>> from unpad.tf1.keras import GRU
        >>> [array.shape for array in GRU(4, input_size=3).get_weights()]
        [(3, 12), (4, 12), (2, 12)]
        """
        if any(is_lazy(parameter) for parameter in self.parameters()):
            raise ArgumentError(
                "input_size", None, "a known width", "call build(input_size), or the layer, first"
            )
        return [p.detach().to("cpu", copy=True).numpy() for p in self.parameters()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Take a list of arrays or tensors in Keras's order: what its ``get_weights`` gives.

        A layer that does not know the width of its input learns it from the first kernel.

        Raises:
            ArgumentError: another number of arrays, or an array of another shape; no weight has
                changed then.
            ArgumentTypeError: something that is no list of arrays.

        >>> import numpy as np
        >>> from unpad.tf1.keras import SimpleRNN
        >>> layer = SimpleRNN(2)
        >>> layer.set_weights([np.ones((3, 2)), np.eye(2), np.zeros(2)])
        >>> layer.cell.kernel.shape
        torch.Size([3, 2])
        """
        tensors = _as_tensors(weights)
        wanted = self._shapes()
        if len(tensors) != len(wanted):
            named = ", ".join(f"{name} {_text(shape)}" for name, shape in wanted.items())
            raise ArgumentError(
                "weights", f"{len(tensors)} arrays", f"{len(wanted)}: {named}", "check the options"
            )
        for (name, shape), tensor in zip(wanted.items(), tensors, strict=True):
            given = list(tensor.shape)
            fits = len(given) == len(shape) and all(
                want in (None, have) for want, have in zip(shape, given, strict=True)
            )
            if not fits:
                raise ArgumentError(
                    f"weights, {name}", tensor, f"shape {_text(shape)}", "check units and order"
                )
        if any(is_lazy(parameter) for parameter in self.parameters()):
            self.build(tensors[0].shape[0])
        with torch.no_grad():
            for parameter, tensor in zip(self.parameters(), tensors, strict=True):
                parameter.copy_(tensor)

    def _shapes(self) -> dict[str, list[int | None]]:
        """The shape of every weight by its name; None for a width that is not known yet."""
        shapes: dict[str, list[int | None]] = {}
        for name, parameter in self.named_parameters():
            if is_lazy(parameter):
                owner = self.get_submodule(name.rpartition(".")[0])
                shapes[name] = [None, cast("Any", owner).columns]
            else:
                shapes[name] = list(parameter.shape)
        return shapes


def width_in(input_size: Any) -> int:
    """Return the features of a token, of a number or a shape that ends with it.

    >>> width_in((None, 7, 3)), width_in(3)
    (3, 3)
    """
    if isinstance(input_size, (tuple, list)) and len(cast("list[Any]", input_size)) > 1:
        input_size = cast("list[Any]", input_size)[-1]
    return check_size("input_size", input_size)


@contextmanager
def mode(module: nn.Module, training: bool | None) -> Generator[None]:
    """Run in training mode or out of it, as Keras's ``training=``; None: as the module stands."""
    if training is None:
        yield
        return
    check_flag("training", training)
    before = [(each, each.training) for each in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for each, was in before:
            each.training = was


def _as_tensors(weights: Any) -> list[Tensor]:
    if not isinstance(weights, (list, tuple)):
        raise ArgumentTypeError(
            "weights", type(weights).__name__, "a list of arrays", "give what get_weights gave"
        )
    items = cast("list[Any]", weights)
    return [as_numbers(f"weights[{place}]", item) for place, item in enumerate(items)]


def _text(shape: list[int | None]) -> str:
    return "[" + ", ".join("input" if size is None else str(size) for size in shape) + "]"
