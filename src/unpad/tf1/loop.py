"""What a loop function of `raw_rnn` gives at each of its calls, checked before it is used."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_like
from unpad.cells.cell import first_floating, start_like
from unpad.cells.compose import size_of
from unpad.compiler.trace import autocast_enabled
from unpad.errors import ArgumentError, ArgumentTypeError, brief
from unpad.nest import Nest, describe, leaves, rebuild, same_form
from unpad.states import check_state
from unpad.tf1.cell import RNNCell
from unpad.tf1.rnn import check_plain_tuples

_PARTS = "(finished, next_input, next_state, emit, next_loop_state)"


class Given(NamedTuple):
    """The five parts that a loop function returns."""

    finished: Tensor
    x: Nest
    state: Nest
    emit: Nest
    loop_state: Any


def opened(given: Any, time: int) -> Given:
    """Return what a loop function gave as its five parts, the first of which is a bool [B]."""
    parts = cast("tuple[Any, ...]", given)
    if not isinstance(given, (tuple, list)) or len(parts) != 5:
        found = f"{len(parts)} values" if isinstance(given, (tuple, list)) else brief(given)
        raise ArgumentTypeError(
            "loop_fn", f"{found} at time {time}", f"five values {_PARTS}", "return all of them"
        )
    finished = parts[0]
    where = _part("finished", time)
    if not isinstance(finished, Tensor) or finished.dtype is not torch.bool:
        raise ArgumentTypeError(where, finished, "a bool tensor [B]", "such as time >= lengths")
    if finished.dim() != 1:
        raise ArgumentError(where, finished, "[B]", "give one for each row")
    return Given(*parts)


def check_first(cell: nn.Module, given: Given) -> Given:
    """Check the call at time 0, which gives the first input, the initial state, emit's form."""
    batch = len(given.finished)
    for leaf in leaves(given.x):
        where = _part("next_input", 0)
        if not isinstance(leaf, Tensor):
            raise ArgumentTypeError(where, leaf, "a tensor [B, features]", "convert it")
        if leaf.dim() == 0 or len(leaf) != batch:
            raise ArgumentError(
                where, leaf, f"{batch} rows, as many as finished has", "give one for each row"
            )
        like = first_floating(cell) if isinstance(cell, RNNCell) else None
        if like is not None:
            check_like(where, leaf, like)
    return given._replace(state=_first_state(cell, given, batch), emit=_check_form(given.emit))


def _first_state(cell: nn.Module, given: Given, batch: int) -> Nest:
    where = _part("next_state", 0)
    if given.state is None:
        raise ArgumentTypeError(
            where, None, "the initial state", "give cell.zero_state(batch_size), or a state"
        )
    check_plain_tuples(size_of(cell, "state_size"), given.state, where)
    like = next((leaf for leaf in leaves(given.x) if leaf.is_floating_point()), torch.zeros(()))
    wanted = start_like(cell, batch, dtype=like.dtype, device=like.device)
    state = check_state(given.state, wanted, where)
    for leaf, own in zip(leaves(state), leaves(wanted), strict=True):
        if leaf.dtype != own.dtype:
            raise ArgumentTypeError(
                where, f"a state of {leaf.dtype}", f"{own.dtype}", f"use .to({own.dtype})"
            )
    return given.state


def _check_form(form: Nest) -> Nest:
    for leaf in leaves(form):
        if leaf is not None and not isinstance(leaf, Tensor):
            raise ArgumentTypeError(
                _part("emit", 0),
                leaf,
                "None, or zeros [features] that show what a row is, or a nest of these",
                "such as torch.zeros(features)",
            )
    return form


def check_next(given: Given, before: Given, like: Nest, time: int) -> Given:
    """Check a later call by what the loop had before.

    Args:
        given: what the loop function gave.
        before: the input and the state that the cell was called with.
        like: what an emitted row looks like, [features].
        time: of the call.
    """
    batch = len(before.finished)
    if len(given.finished) != batch:
        raise ArgumentError(
            _part("finished", time), given.finished, f"[{batch}], as at time 0", "keep the rows"
        )
    _check_like(_part("next_input", time), given.x, before.x, "as at time 0")
    _check_like(_part("next_state", time), given.state, before.state, "as the initial state")
    wanted = [leaf.new_empty((batch, *leaf.shape), device="meta") for leaf in leaves(like)]
    _check_like(
        _part("emit", time), given.emit, rebuild(like, wanted), "[B, features], as time 0 showed"
    )
    return given


def _check_like(argument: str, given: Nest, wanted: Nest, why: str) -> None:
    allowed, remedy = f"{describe(wanted)}, {why}", "give the same form, shapes and dtypes"
    if not same_form(given, wanted):
        raise ArgumentTypeError(argument, describe(given), allowed, remedy)
    for leaf, like in zip(leaves(given), leaves(wanted), strict=True):
        if not isinstance(leaf, Tensor):
            raise ArgumentTypeError(argument, describe(given), allowed, remedy)
        if leaf.shape != like.shape:
            raise ArgumentError(argument, describe(given), allowed, remedy)
        if leaf.dtype != like.dtype and not autocast_enabled(leaf.device.type):
            raise ArgumentTypeError(argument, f"{leaf.dtype}", f"{like.dtype}, {why}", remedy)


def _part(name: str, time: int) -> str:
    return f"loop_fn, {name} at time {time}"
