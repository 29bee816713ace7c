"""Noise around a cell: dropout and zoneout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_flag, check_rate
from unpad.cells.cell import Size, is_nested
from unpad.cells.compose import Wrapper
from unpad.errors import ArgumentError
from unpad.nest import Nest, leaves, map_leaves, rebuild, same_form
from unpad.noise import keep_mask


class Dropout(Wrapper):
    """Dropout of a cell's input, output and state: ``v * mask / (1 - rate)``, in training alone.

    Args:
        cell: any cell.
        input: rate for the input.
        output: rate for the output, as it leaves the cell; the state is not touched by it.
        state: rate for the state as the cell reads it; what is carried on and returned is not
            masked. A number means the first state (h of an LSTM, not its memory c); a nest formed
            like ``state_size`` gives every state its own.
        same_over_time: one mask for all steps of a sequence, another for every sequence
            (variational dropout); False: a fresh mask at every step.

    In eval mode it is the plain cell.

    Raises:
        ArgumentError: a rate outside of [0, 1], or rates formed unlike the state.

    Source: Srivastava et al. (2014); same mask over time: Gal and Ghahramani, arXiv:1512.05287; not
    on c: Semeniuta et al., arXiv:1603.05118.

    >>> from unpad.cells import LSTMCell
    >>> cell = Dropout(LSTMCell(3, 4), input=0.2, state=0.3, same_over_time=True)
    >>> cell.state
    (0.3, 0.0)
    """

    def __init__(
        self,
        cell: nn.Module,
        *,
        input: float = 0.0,  # noqa: A002 - the field's word
        output: float = 0.0,
        state: Nest = 0.0,
        same_over_time: bool = False,
    ) -> None:
        super().__init__(cell)
        self.input = check_rate("input", input)
        self.output = check_rate("output", output)
        self.state = _check_state_rates(state, self.state_size)
        self.same_over_time = check_flag("same_over_time", same_over_time)

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x and state, run the cell on what is left of them; give its output and new state."""
        if not self.training:
            return self.cell(x, state)
        kept = map_leaves(lambda rate, leaf: self._drop(leaf, rate), self.state, state)
        output, new_state = self.cell(self._drop(x, self.input), kept)
        return self._drop(output, self.output), new_state

    def _drop(self, value: Tensor, rate: float) -> Tensor:
        if rate == 0.0:
            return value
        mask = keep_mask(value, rate, per_sequence=self.same_over_time)
        return value * mask if rate == 1.0 else value * (mask * (1.0 / (1.0 - rate)))

    def extra_repr(self) -> str:
        """Give the rates."""
        return (
            f"input={self.input}, output={self.output}, state={self.state}, "
            f"same_over_time={self.same_over_time}"
        )


class Zoneout(Wrapper):
    """Zoneout: each number of a state keeps its old value with a probability, the rate::

        training:  s' = where(mask, s_new, s_old),  mask = 0 with probability rate
        eval:      s' = rate * s_old + (1 - rate) * s_new

    Args:
        cell: any cell.
        rates: a number for all states or a nest formed like ``state_size``, such as (h's, c's) for
            an LSTM. 0 leaves a state as it is, 1 freezes it.

    Where the cell's output is its first state (as for every gated cell here), the output is that
    state after zoneout; any other output is the cell's own. A state of integers needs the rate 0.

    Source: Krueger et al., arXiv:1606.01305, equations 4 to 6 (c and h each with its own rate).

    >>> from unpad.cells import LSTMCell
    >>> Zoneout(LSTMCell(3, 4), (0.05, 0.5)).rates
    (0.05, 0.5)
    """

    def __init__(self, cell: nn.Module, rates: Nest) -> None:
        super().__init__(cell)
        if isinstance(rates, (int, float)):
            rates = _each(self.state_size, rates)
        self.rates = _check_rates("rates", rates, self.state_size)

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x and state; give the cell's output and a state between the old and the new one."""
        output, new_state = self.cell(x, state)
        old, new = leaves(state), leaves(new_state)
        mixed = [self._mix(*row) for row in zip(leaves(self.rates), old, new, strict=True)]
        if output is new[0]:
            output = mixed[0]
        return output, rebuild(new_state, mixed)

    def _mix(self, rate: float, old: Tensor, new: Tensor) -> Tensor:
        if rate == 0.0:
            return new
        if not new.is_floating_point():
            raise ArgumentError(
                "rates", rate, f"0 for a state of {new.dtype}", "give that state the rate 0"
            )
        if self.training:
            return torch.where(keep_mask(new, rate, per_sequence=False) > 0.5, new, old)
        return rate * old + (1.0 - rate) * new

    def extra_repr(self) -> str:
        """Give the rates."""
        return f"rates={self.rates}"


def _check_state_rates(rates: Nest, size: Size) -> Nest:
    if isinstance(rates, (int, float)):
        if not is_nested(size):
            return check_rate("state", rates)
        if rates and any(is_nested(part) for part in size):
            raise ArgumentError(
                "state",
                rates,
                f"rates formed like state_size {size}",
                "name every state's rate, or wrap the cells inside of the Stack",
            )
        rates = _each(size, 0.0) if not rates else (rates, *_each(size, 0.0)[1:])
    return _check_rates("state", rates, size)


def _check_rates(argument: str, rates: Nest, size: Size) -> Nest:
    if not same_form(rates, _each(size, 0.0)):
        raise ArgumentError(
            argument,
            rates,
            f"a number, or rates formed like state_size {size}",
            "give one rate for each state",
        )
    return map_leaves(lambda rate: check_rate(argument, rate), rates)


def _each(size: Size, value: float) -> Nest:
    """A nest formed like the sizes with one value at every leaf."""
    return tuple(_each(part, value) for part in size) if is_nested(size) else value
