"""The eager engine: a plain torch loop over time that calls the cell on the live rows.

It takes any cell whatever, on any device, with ordinary autograd and so with every derivative that
torch has. The other engines fall back to it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from unpad import noise
from unpad.engine.order import StepOrder, step_order
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import Nest, describe, leaves, map_leaves, rebuild, same_form


def run(
    cell: nn.Module,
    x: Tensor,
    offsets: Tensor,
    state: Nest,
    *,
    reverse: bool = False,
    return_states: bool = False,
) -> tuple[Tensor, Nest, Nest]:
    """Run a cell over every sequence of a ragged batch.

    Args:
        cell: ``cell(x_t, state) -> (output, new_state)`` on rows.
        x: [T, features...], the tokens of all sequences, end to end.
        offsets: int64 [B + 1] on the CPU, where each sequence starts and ends.
        state: nest of [B, ...], the state before each sequence.
        reverse: read every sequence from its last token to its first.
        return_states: also give the state after every token.

    Returns:
        The output [T, ...] in the tokens' order, the final state (formed like ``state``) and the
        states after every token (nest of [T, ...]), or None. The final state of a sequence of
        length 0 is its initial state, and so is its gradient.
    """
    order = step_order(offsets, reverse=reverse)
    sequences = _unless(order.sorted, order.sequences)
    # A parametrized weight is worked out once a run, as any value that no step changes.
    with noise.sequence_masks(len(order.rows), sequences) as masks, parametrize.cached():
        loop = _Loop(cell, masks, return_states)
        loop.run(_take(x, _unless(order.straight, order.tokens)), _sort(state, order), order)
    places = _unless(order.straight, order.places)
    final = map_leaves(lambda leaf: _take(leaf, _unless(order.sorted, order.rows)), loop.final())
    states = map_leaves(lambda leaf: _take(leaf, places), loop.states()) if return_states else None
    return _take(loop.output(), places), final, states


class _Loop:
    """Steps over sorted rows; keeps what they gave."""

    def __init__(self, cell: nn.Module, masks: noise.SequenceMasks, keep_states: bool) -> None:
        self._cell = cell
        self._masks = masks
        self._keep_states = keep_states
        self._outputs: list[Tensor] = []
        self._states: list[list[Tensor]] = []
        self._ended: list[list[Tensor]] = []
        self._like: Nest = None

    def run(self, x: Tensor, state: Nest, order: StepOrder) -> None:
        self._like = state
        current = leaves(state)
        alive = len(order.rows)
        for rows, x_t in zip(order.live, x.split(order.live), strict=True):
            if rows < alive:
                self._ended.append([leaf[rows:] for leaf in current])
                current = [leaf[:rows] for leaf in current]
                alive = rows
            current = self._step(x_t, current)
        self._ended.append(current)
        if not order.live:
            self._step_on_nothing(x)

    def _step_on_nothing(self, x: Tensor) -> None:
        """One step on no rows tells the output's width and dtype, and ties both to the graph."""
        nothing = [leaf[:0] for leaf in self._ended[0]]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as torch's of a variance of no numbers
                self._ended.append(self._step(x, nothing))
        except RuntimeError:
            # Some operations, view(rows, -1) among them, are not defined on no rows.
            width = getattr(self._cell, "output_size", None)
            if width is None:
                raise
            self._outputs.append(x.new_zeros((0, width) if isinstance(width, int) else (0, *width)))
            self._states.append(nothing)

    def _step(self, x_t: Tensor, current: list[Tensor]) -> list[Tensor]:
        self._masks.begin_step()
        versions = _versions(current)
        result = self._cell(x_t, rebuild(self._like, current))
        if not self._outputs:
            check_result(self._cell, result, len(x_t), self._like)
        if versions != _versions(current):
            raise ArgumentError(
                "cell",
                type(self._cell).__name__,
                "a cell that leaves the state it is given as it is",
                "return new tensors: operations that end in _ (add_, mul_) change states that "
                "earlier steps gave out",
            )
        output, new_state = result
        new = leaves(new_state)
        self._outputs.append(output)
        if self._keep_states:
            self._states.append(new)
        return new

    def output(self) -> Tensor:
        return torch.cat(self._outputs)

    def final(self) -> Nest:
        """The states at the sequences' ends, in the order of the rows: the shortest ended first."""
        return self._join(self._ended[::-1])

    def states(self) -> Nest:
        return self._join(self._states)

    def _join(self, parts: list[list[Tensor]]) -> Nest:
        return rebuild(self._like, [torch.cat(leaf) for leaf in zip(*parts, strict=True)])


def _unless(condition: bool, index: Tensor) -> Tensor | None:
    return None if condition else index


def _take(values: Tensor, index: Tensor | None) -> Tensor:
    return values if index is None else values.index_select(0, index.to(values.device))


def _sort(state: Nest, order: StepOrder) -> Nest:
    return map_leaves(lambda leaf: _take(leaf, _unless(order.sorted, order.sequences)), state)


def _versions(tensors: list[Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def check_result(cell: nn.Module, result: Any, rows: int, state: Nest) -> None:
    """Refuse in words what would fail later, or worse, not fail."""
    name = type(cell).__name__
    if not isinstance(result, tuple) or len(result) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise ArgumentTypeError(
            "cell",
            f"{name}, whose forward returned {type(result).__name__}",
            "a forward that returns the pair (output, new_state)",
            "return output, new_state",
        )
    output, new_state = result  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(output, Tensor) or output.dim() == 0 or len(output) != rows:
        raise ArgumentError(
            "cell",
            f"{name}, whose output is {describe(output)} for {rows} rows",
            "an output tensor with one row for each row of x",
            "keep the first axis of x",
        )
    _check_state(name, new_state, rows, state)


def _check_state(name: str, new_state: Nest, rows: int, state: Nest) -> None:
    wanted = [leaf[:rows] for leaf in leaves(state)]
    new = leaves(new_state)
    if (
        not same_form(state, new_state)
        or any(not isinstance(leaf, Tensor) for leaf in new)
        or any(a.shape != b.shape for a, b in zip(wanted, new, strict=True))
    ):
        raise ArgumentError(
            "cell",
            f"{name}, whose new state is {describe(new_state)}",
            f"a new state formed like the state it was given: {describe(rebuild(state, wanted))}",
            "return every state in its place with its shape, also one that does not change",
        )
    for before, after in zip(wanted, new, strict=True):
        if before.is_floating_point() != after.is_floating_point():
            raise ArgumentError(
                "cell",
                f"{name}, whose state of {before.dtype} became {after.dtype}",
                "a state that keeps its dtype",
                f"add .to({before.dtype}) to the new state",
            )
