"""Keras's recurrent layer: any cell over a batch, with masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import as_numbers, check_flag, check_like
from unpad.cells.cell import feature_shape, first_floating, start
from unpad.cells.compose import are_cells, check_cell, size_of
from unpad.engine import choose
from unpad.errors import ArgumentError
from unpad.jit import opaque, refuse_scripting
from unpad.nest import Nest, describe, leaves, map_leaves, rebuild
from unpad.states import check_state
from unpad.tf1.keras.arguments import common_arguments
from unpad.tf1.keras.stack import StackedRNNCells
from unpad.tf1.keras.steps import Steps, open_steps, width_of
from unpad.tf1.keras.weights import KerasWeights, mode
from unpad.tf1.waiting import waiting_if_refused

LAYER_OPTIONS = (
    "return_sequences",
    "return_state",
    "go_backwards",
    "stateful",
    "unroll",
    "time_major",
    "zero_output_for_mask",
)


class RNN(KerasWeights):
    """A cell over a batch of sequences, with Keras 2's arguments and its treatment of masks.

    A masked step leaves the states as they were, and its output is the one before it (0 before the
    first); a hole in a mask is as good as padding. What a masked step holds is never read: not
    even NaN in it reaches a result, and its gradient is 0.

    Args:
        cell: a cell of this package or any `unpad.Cell`; or a list of cells, which becomes
            `StackedRNNCells`.
        return_sequences: give the output of every step, not of the last one alone.
        return_state: give the final states too: ``[output, *states]``.
        go_backwards: read the whole time axis from its end, padding first. Outputs stay in the
            order computed, so that the first one belongs to the last step.
        stateful: start where the call before ended, without its gradient; see `reset_states`.
        unroll: accepted; no number depends on it, nor does the work.
        time_major: padded input, outputs and mask are [T, B, ...].
        zero_output_for_mask: the output of a masked step is 0. Without ``return_sequences`` this
            makes the result 0 wherever the last step of a padded row is masked, as in Keras.
        name: kept for the reader.
        keras: as in Keras, ``input_shape``, ``batch_input_shape`` or ``input_dim``, which make the
            weights at once; ``trainable``; ``dtype``; ``weights``, what `set_weights` takes.

    The kernel is made at the first call, by ``build(input_size)`` or by ``set_weights``, where the
    cell was not given its ``input_size``. Weights have Keras's names (``layer.cell.kernel``) and
    layouts; `get_weights` and `set_weights` have its order.

    Source: Keras 2.15, ``keras.layers.RNN``.

    >>> from unpad.tf1.keras import GRUCell, LSTMCell
    >>> layer = RNN([LSTMCell(4), GRUCell(2)], return_sequences=True, return_state=True)
    >>> mask = torch.tensor([[True, False, True], [True, False, False]])
    >>> output, (h, c), below = layer(torch.zeros(2, 3, 5), mask=mask)
    >>> output.shape, h.shape, below.shape
    (torch.Size([2, 3, 2]), torch.Size([2, 4]), torch.Size([2, 2]))
    """

    def __init__(
        self,
        cell: nn.Module | list[nn.Module],
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        time_major: bool = False,
        *,
        zero_output_for_mask: bool = False,
        name: str | None = None,
        **keras: Any,
    ) -> None:
        super().__init__()
        common = common_arguments(type(self).__name__, keras)
        self.cell = StackedRNNCells(cell) if are_cells(cell) else check_cell(cell, "cell")  # pyright: ignore[reportArgumentType]
        self.return_sequences = check_flag("return_sequences", return_sequences)
        self.return_state = check_flag("return_state", return_state)
        self.go_backwards = check_flag("go_backwards", go_backwards)
        self.stateful = check_flag("stateful", stateful)
        self.unroll = check_flag("unroll", unroll)
        self.time_major = check_flag("time_major", time_major)
        self.zero_output_for_mask = check_flag("zero_output_for_mask", zero_output_for_mask)
        self.name = name
        self._kept = 0
        self.settle(common)

    @opaque
    def forward(
        self,
        inputs: Any,
        initial_state: Nest = None,
        constants: None = None,
        *,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        """Run over a batch.

        Args:
            inputs: padded [B, T, I] ([T, B, I] with ``time_major``); or a Ragged, a PackedSequence,
                a nested tensor, a list of tensors [length, I].
            initial_state: the states [B, ...] in the order of the final ones, flat or formed like
                them; None: zeros, or what the call before ended with where ``stateful``.
            mask: [B, T] ([T, B] with ``time_major``) of a padded tensor: True, or 1, where a step
                counts. None: every step does.
            constants: only None: a cell here has x and states.
            training: of this call, as in Keras: whether dropout acts; None: the module's own mode
                (``train()``, ``eval()``).

        Returns:
            The output, [B, H], or with ``return_sequences`` in the form of the inputs; with
            ``return_state`` a list of it and of the final states [B, ...], for `StackedRNNCells`
            one entry for each cell. A row without a step that counts, one of length 0 among them,
            keeps its initial states (the gradient is the identity) and has the output 0.

        Raises:
            ArgumentError, ArgumentTypeError: wrong inputs, states or mask, before any work.
        """
        if constants is not None:
            raise ArgumentError(
                "constants",
                constants,
                "None: a cell is called with x and its state alone",
                "join Ragged.repeat_like(constant, inputs) to the inputs (torch.cat, dim=-1), "
                "or keep it in the state, which the cell returns as it came",
            )
        with waiting_if_refused(self.cell), mode(self, training):
            steps = self.open(inputs, mask)
            output, final = self.run(steps, self.start(steps, initial_state))
        if self.return_sequences:
            repeat = not self.zero_output_for_mask
            result = steps.sequences(output, flipped=self.go_backwards, repeat=repeat)
        else:
            zero = self.zero_output_for_mask
            result = steps.last(output, backwards=self.go_backwards, zero=zero)
        return [result, *final] if self.return_state else result

    __prepare_scriptable__ = refuse_scripting

    def open(self, inputs: Any, mask: Any) -> Steps:
        """Take the steps that count out of an input, and make the kernel if it waits for one."""
        width = width_of(inputs)
        if getattr(self.cell, "input_size", None) is None and width is not None:
            self.build(width)
        own = first_floating(self.cell)
        like = torch.empty(0) if own is None else own
        features = feature_shape(size_of(self.cell, "input_size"))
        steps = open_steps(inputs, mask, features=features, time_major=self.time_major, like=like)
        if own is not None:
            check_like("inputs", steps.values, own)
        return steps

    def run(self, steps: Steps, state: Nest) -> tuple[Tensor, list[Nest]]:
        """Give one output for each token, in the input's order, and the list of final states."""
        output, final, _ = choose.run(
            self.cell, steps.values, steps.offsets, state, reverse=self.go_backwards
        )
        if self.stateful:
            self._keep(leaves(final))
        return output, list(final) if isinstance(final, (tuple, list)) else [final]

    def start(self, steps: Steps, given: Nest) -> Nest:
        """Give the states before a batch, formed as the cell's: given, kept or its own."""
        own = start(self.cell, steps.batch_size, steps.values)
        if given is None:
            return own if self.states is None else self._go_on(own)
        if self.states is not None:
            raise ArgumentError(
                "initial_state",
                describe(given),
                "None: a stateful layer goes on from the call before",
                "call reset_states() first, or reset_states(states)",
            )
        flat = self._counted("initial_state", given, own)
        state = check_state(rebuild(own, flat), own, "initial_state")
        weight = first_floating(self.cell)
        for leaf in leaves(state):
            if weight is not None and leaf.is_floating_point():
                check_like("initial_state", leaf, weight)
        return state

    def _counted(self, argument: str, given: Nest, own: Nest) -> list[Any]:
        flat, wanted = leaves(given), len(leaves(own))
        if len(flat) != wanted:
            raise ArgumentError(
                argument, describe(given), f"{wanted} states: {describe(own)}", "give every state"
            )
        return flat

    # States between calls -------------------------------------------------------------------------

    @property
    def states(self) -> list[Tensor] | None:
        """The states that a stateful layer goes on from, flat; None: it starts afresh."""
        return [self.get_buffer(f"state_{number}") for number in range(self._kept)] or None

    def reset_states(self, states: Sequence[Any] | None = None) -> None:
        """Have the next call of a stateful layer start from zeros, or from given states.

        Args:
            states: tensors or arrays [B, ...] in the order of the final states; None: zeros. Their
                shapes are checked against the next batch.

        Raises:
            ArgumentError: the layer is not stateful, or another number of states.

        >>> from unpad.tf1.keras import GRU
        >>> layer = GRU(2, stateful=True)
        >>> _ = layer(torch.ones(1, 3, 4))
        >>> layer.reset_states()
        >>> layer.states is None
        True
        """
        if not self.stateful:
            raise ArgumentError("stateful", False, "True", "build the layer with stateful=True")
        if states is None:
            self._keep([])
            return
        own = start(self.cell, 0, torch.empty(0))
        flat = self._counted("states", list(states), own)
        like = first_floating(self.cell)
        self._keep([as_numbers("states", leaf).to(like) for leaf in flat])

    def _keep(self, states: list[Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():  # for a later call that learns
            kept = [state.clone() for state in states]
        for number in range(max(self._kept, len(kept))):
            value = kept[number] if number < len(kept) else None
            self.register_buffer(f"state_{number}", value, persistent=False)
        self._kept = len(states)

    def _go_on(self, own: Nest) -> Nest:
        state = rebuild(own, list(self.states or []))
        if [leaf.shape for leaf in leaves(state)] != [leaf.shape for leaf in leaves(own)]:
            raise ArgumentError(
                "inputs",
                f"a batch whose states are {describe(own)}",
                f"the batch of the states kept: {describe(state)}",
                "call reset_states() before a batch of another size",
            )
        return map_leaves(lambda leaf, like: leaf.to(like), state, own)

    def extra_repr(self) -> str:
        """Give what is not the default."""
        return ", ".join(f"{name}=True" for name in LAYER_OPTIONS if getattr(self, name))


def layer_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the layer's options out of those of layer and cell together."""
    taken = {name: options.pop(name) for name in LAYER_OPTIONS if name in options}
    if (weights := options.pop("weights", None)) is not None:
        taken["weights"] = weights
    return taken | {"name": options.get("name")}
