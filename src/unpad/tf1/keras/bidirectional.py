"""Keras's two directions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from unpad.cells.cell import feature_shape
from unpad.cells.compose import output_size_of, size_of
from unpad.errors import ArgumentError, ArgumentTypeError, quoted
from unpad.jit import opaque, refuse_scripting
from unpad.nest import Nest, describe
from unpad.tf1.keras.arguments import common_arguments
from unpad.tf1.keras.layer import RNN
from unpad.tf1.keras.weights import KerasWeights, mode
from unpad.tf1.waiting import waiting_if_refused

MERGE_MODES = ("concat", "sum", "ave", "mul", None)


class Bidirectional(KerasWeights):
    """One layer from each sequence's start and another from its end, their outputs merged.

    Args:
        layer: an `RNN`. It becomes the forward layer itself, with the weights that it has.
        merge_mode: ``"concat"`` on the last axis, forward first; ``"sum"``; ``"ave"``, their mean;
            ``"mul"``; None: a list of both outputs.
        weights: what `set_weights` takes; None: they start by the layers' initializers.
        backward_layer: an `RNN` with the other ``go_backwards``; None: a copy of ``layer``, started
            afresh.
        keras: as for `RNN`.

    The backward output at a step belongs to that step of the input. With ``return_sequences``
    masked steps are 0, whatever ``zero_output_for_mask`` says; without it the merged outputs are
    those of the last step of each direction that counts. States are the forward layer's, then the
    backward layer's; weights likewise.

    Raises:
        ArgumentError: layers that do not belong together, an unknown merge mode, or unequal widths
            where outputs are added or multiplied.

    Source: Keras 2.15, ``keras.layers.Bidirectional``.

    >>> from unpad.tf1.keras import LSTM
    >>> layer = Bidirectional(LSTM(4, return_sequences=True))
    >>> layer(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        layer: RNN,
        merge_mode: str | None = "concat",
        weights: Sequence[Any] | None = None,
        backward_layer: RNN | None = None,
        *,
        name: str | None = None,
        **keras: Any,
    ) -> None:
        super().__init__()
        common = common_arguments("Bidirectional", keras | {"weights": weights})
        self.forward_layer = _check_layer("layer", layer)
        if merge_mode not in MERGE_MODES:
            raise ArgumentError(
                "merge_mode", quoted(merge_mode), f"one of {MERGE_MODES}", "choose one of them"
            )
        self.merge_mode = merge_mode
        self.backward_layer = (
            _turned(layer)
            if backward_layer is None
            else _check_layer("backward_layer", backward_layer)
        )
        self.name = name
        self._check_pair()
        self.settle(common)

    def _check_pair(self) -> None:
        forward, backward = self.forward_layer, self.backward_layer
        if forward.go_backwards == backward.go_backwards:
            raise ArgumentError(
                "backward_layer",
                f"go_backwards={backward.go_backwards}",
                f"{not forward.go_backwards}: the directions must differ",
                "set go_backwards of one of them",
            )
        for name in ("stateful", "return_sequences", "return_state", "time_major"):
            wanted, given = getattr(forward, name), getattr(backward, name)
            if wanted != given:
                raise ArgumentError(
                    "backward_layer", f"{name}={given}", f"{wanted}, as of layer", "make them equal"
                )
        widths = [feature_shape(output_size_of(each.cell)) for each in (forward, backward)]
        if self.merge_mode in ("sum", "ave", "mul") and widths[0] != widths[1]:
            raise ArgumentError(
                "merge_mode",
                quoted(self.merge_mode),
                f'"concat" or None for outputs of {list(widths[0])} and {list(widths[1])}',
                "give both layers the same units",
            )

    @opaque
    def forward(
        self,
        inputs: Any,
        initial_state: Nest = None,
        *,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        """Run over a batch.

        Args:
            inputs, mask, training: as for `RNN`.
            initial_state: the forward layer's states, then the backward layer's, in one list.

        Returns:
            The merged output (for None: a list of both); with the layers' ``return_state`` a list
            of it, or of both outputs, and of all final states. Length 0 is as for `RNN`.

        Raises:
            ArgumentError, ArgumentTypeError: as for `RNN`.
        """
        forward, backward = self.forward_layer, self.backward_layer
        with waiting_if_refused(forward.cell, backward.cell), mode(self, training):
            steps = forward.open(inputs, mask)
            self._join(steps.values)
            first, second = self._halves(initial_state)
            first, second = forward.start(steps, first), backward.start(steps, second)
            one, first = forward.run(steps, first)
            other, second = backward.run(steps, second)
        if forward.return_sequences:
            flipped = forward.go_backwards
            merged = [
                steps.sequences(output, flipped=flipped, repeat=False)
                for output in self._merge(one, other)
            ]
        else:
            merged = self._merge(
                steps.last(one, backwards=forward.go_backwards, zero=False),
                steps.last(other, backwards=backward.go_backwards, zero=False),
            )
        result = merged if self.merge_mode is None else merged[0]
        if not forward.return_state:
            return result
        return [*merged, *first, *second]

    __prepare_scriptable__ = refuse_scripting

    def _join(self, values: Tensor) -> None:
        """Make the backward kernel if it waits for one, and refuse one of another width."""
        backward = self.backward_layer.cell
        if getattr(backward, "input_size", None) is None:
            self.backward_layer.build(values.shape[-1])
        wanted = feature_shape(size_of(backward, "input_size"))
        if values.shape[1:] != wanted:
            raise ArgumentError(
                "inputs",
                f"tokens of shape {list(values.shape[1:])}",
                f"{list(wanted)}, what the backward layer takes",
                "build both layers for one input",
            )

    def _halves(self, given: Nest) -> tuple[Nest, Nest]:
        if given is None:
            return None, None
        both = cast("list[Any]", list(given)) if isinstance(given, (list, tuple)) else [given]
        middle = len(both) // 2
        if len(both) % 2:
            raise ArgumentError(
                "initial_state",
                describe(given),
                "the states of the forward layer, then those of the backward layer",
                "give both, or None",
            )
        return both[:middle], both[middle:]

    def _merge(self, forward: Tensor, backward: Tensor) -> list[Tensor]:
        if self.merge_mode == "concat":
            return [torch.cat([forward, backward], dim=-1)]
        if self.merge_mode == "sum":
            return [forward + backward]
        if self.merge_mode == "ave":
            return [(forward + backward) / 2]
        if self.merge_mode == "mul":
            return [forward * backward]
        return [forward, backward]

    def reset_states(self) -> None:
        """Have the next call of stateful layers start from zeros."""
        self.forward_layer.reset_states()
        self.backward_layer.reset_states()

    def extra_repr(self) -> str:
        """Give the merge mode."""
        return f"merge_mode={self.merge_mode!r}"


def _check_layer(argument: str, layer: Any) -> RNN:
    if not isinstance(layer, RNN):
        name = type(layer).__name__
        raise ArgumentTypeError(
            argument, name, "a layer of unpad.tf1.keras: RNN, SimpleRNN, LSTM, GRU", "wrap a cell: "
            "RNN(cell)"
        )  # fmt: skip
    return layer


def _turned(layer: RNN) -> RNN:
    """Copy a layer for the other direction, with weights and states of its own."""
    turned = copy.deepcopy(layer)
    turned.go_backwards = not layer.go_backwards
    if turned.stateful:
        turned.reset_states()
    for module in turned.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return turned
