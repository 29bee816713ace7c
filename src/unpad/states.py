"""States between calls: checked when they come in, their rows selected where a batch changes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError
from unpad.nest import Nest, describe, leaves, map_leaves, rebuild, same_form


def select_rows(state: Nest, rows: Any, *, dim: int = 0) -> Nest:
    """Select sequences' rows of a state: for a smaller last batch, or to reorder beams.

    Args:
        state: nest of tensors.
        rows: a slice, a list of numbers, or an integer or bool tensor.
        dim: the batch axis: 0 for cells, `Recurrent` and the functions, 1 for RNN, GRU and LSTM.

    Returns:
        A nest formed like ``state``. Gradients flow to the selected rows.

    Raises:
        RowIndexError: a row that is not there.

    >>> import torch
    >>> h, c = select_rows((torch.zeros(4, 2), torch.zeros(4, 3)), slice(0, 3))
    >>> tuple(h.shape), tuple(c.shape)
    ((3, 2), (3, 3))
    """
    index = (*(slice(None),) * dim, rows)
    try:
        return map_leaves(lambda leaf: leaf[index], state)
    except IndexError as error:
        raise RowIndexError(
            "rows",
            f"{rows!r} of a state {describe(state)}",
            f"a slice, numbers or a mask of the rows along dim {dim}",
            "give dim=1 for the states of RNN, GRU and LSTM, dim=0 for others",
        ) from error


def check_state(given: Nest, wanted: Nest, argument: str) -> Nest:
    """Return a given state in the very form of ``wanted``, or refuse it.

    A list may stand for a tuple. Shapes must be equal; floating leaves must stay floating.
    """
    form = f"{describe(wanted)} (batch first)"
    if not same_form(given, wanted) or not all(isinstance(leaf, Tensor) for leaf in leaves(given)):
        raise ArgumentTypeError(
            argument, describe(given), form, "give one tensor for each state, in the cell's order"
        )
    for leaf, like in zip(leaves(given), leaves(wanted), strict=True):
        if leaf.shape != like.shape:
            raise ArgumentError(
                argument,
                describe(given),
                form,
                "for a smaller batch take the rows of a kept state: select_rows(state, rows); or "
                "start afresh with None",
            )
        if leaf.is_floating_point() != like.is_floating_point():
            raise ArgumentTypeError(
                argument, f"{leaf.dtype}", f"{like.dtype}", f"use .to({like.dtype})"
            )
    return rebuild(wanted, leaves(given))
