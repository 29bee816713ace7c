"""A layer's input as the steps that count, and the way back to Keras's outputs.

A masked step is no step: it is left out before the loop, holes and padding alike, and what Keras
gives there (the output before it, or zeros) is put in afterwards, by one selection of rows.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from unpad.cells.arguments import as_numbers
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.forms import FORMS, open_input
from unpad.ragged import Ragged


class Steps:
    """A batch without its masked steps.

    Attributes:
        values: [T, ...], the tokens end to end.
        offsets: int64 [B + 1] on the CPU.
    """

    def __init__(self, ragged: Ragged) -> None:
        self.ragged = ragged
        self.values, self.offsets = ragged.values, ragged.offsets

    @property
    def batch_size(self) -> int:
        """Number of sequences, B."""
        return self.offsets.shape[0] - 1

    def sequences(self, output: Tensor, *, flipped: bool, repeat: bool) -> Any:
        """Give the outputs [T, ...] in the form of the input.

        Args:
            output: one row for each token, in the input's order.
            flipped: turn the time axis around, which is the order that a layer with
                ``go_backwards`` computes in.
            repeat: a masked step has the output before it in the result; else 0.
        """
        raise NotImplementedError

    def last(self, output: Tensor, *, backwards: bool, zero: bool) -> Tensor:
        """Give the output [B, ...] of the step computed last; 0 for a sequence without a step.

        Args:
            output: one row for each token, in the input's order.
            backwards: the first token is the one computed last.
            zero: a sequence whose last step is masked gives 0, as Keras's zero_output_for_mask.
        """
        rows = self.offsets[:-1] if backwards else self.offsets[1:] - 1
        silent = self.offsets.diff() == 0
        return _select(output, rows.masked_fill(silent | self._ends_masked(backwards, zero), -1))

    def _ends_masked(self, backwards: bool, zero: bool) -> Tensor:
        return torch.zeros(self.batch_size, dtype=torch.bool, device="cpu")


class RaggedSteps(Steps):
    """Sequences without padding: results come back in their form, each as long as its input."""

    def __init__(self, inputs: Any, *, features: torch.Size, like: Tensor) -> None:
        opened = open_input(
            inputs, None, features=features, batch_first=True, like=lambda: like, argument="inputs"
        )
        super().__init__(Ragged(opened.values, opened.offsets))
        self._close = opened.close

    def sequences(self, output: Tensor, *, flipped: bool, repeat: bool) -> Any:
        """Give the outputs in the input's form; with ``flipped`` each sequence turned around."""
        if flipped:
            output = self.ragged.with_values(output).reverse().values
        return self._close(output)


class PaddedSteps(Steps):
    """A padded tensor [B, T, ...], or [T, B, ...] with ``time_major``, and its mask alike."""

    def __init__(self, x: Tensor, mask: Any, *, time_major: bool) -> None:
        self.time_major = time_major
        if time_major:
            x = x.transpose(0, 1)
        self.shape = x.shape[:2]
        self.mask = None if mask is None else _as_mask(mask, self.shape, time_major)
        super().__init__(
            Ragged.from_padded(x, None) if self.mask is None else Ragged.from_mask(x, self.mask)
        )

    def sequences(self, output: Tensor, *, flipped: bool, repeat: bool) -> Any:
        """Give the outputs [B, T, ...], or [T, B, ...]; with ``flipped`` padding comes first."""
        if self.mask is not None:
            rows = self._rows(self.mask, flipped, repeat).flatten()
            output = _select(output, rows) if repeat else _place(output, rows)
        padded = output.reshape(*self.shape, *output.shape[1:])
        if self.mask is None and flipped:
            padded = padded.flip(1)
        return padded.transpose(0, 1) if self.time_major else padded

    def _rows(self, mask: Tensor, flipped: bool, repeat: bool) -> Tensor:
        """For each step of the result [B, T] the token whose output stands there; -1: zeros."""
        if flipped:
            mask = mask.flip(1)
        done = mask.cumsum(1)
        starts, ends = self.offsets[:-1, None], self.offsets[1:, None]
        rows = ends - done if flipped else starts + done - 1
        return rows.masked_fill(done == 0 if repeat else ~mask, -1)

    def _ends_masked(self, backwards: bool, zero: bool) -> Tensor:
        if self.mask is None or not zero or not self.shape[1]:
            return super()._ends_masked(backwards, zero)
        return ~self.mask[:, 0 if backwards else -1]


def open_steps(
    inputs: Any, mask: Any, *, features: torch.Size, time_major: bool, like: Tensor
) -> Steps:
    """Open a layer's input.

    Args:
        inputs: padded [B, T, features], or [T, B, features] with ``time_major``; or a Ragged, a
            PackedSequence, a nested tensor, a list of tensors [length, features].
        mask: of a padded tensor, shaped like its first two dimensions: True where a step counts.
        features: the shape of a token.
        time_major: whether time is the first axis of padded tensors.
        like: gives its dtype and device to a list of no sequences.

    Raises:
        ArgumentError: a wrong rank or width; a mask of another shape, or where none belongs.
        ArgumentTypeError: another form; a mask that is none.
    """
    if isinstance(inputs, Tensor) and not inputs.is_nested:
        order = "[T, B" if time_major else "[B, T"
        names = ", ".join(map(str, features))
        if inputs.dim() != 2 + len(features) or inputs.shape[2:] != features:
            raise ArgumentError(
                "inputs",
                f"a tensor of shape {list(inputs.shape)}",
                f"{order}, {names}]",
                "add the batch dimension, or give the layer the input's width",
            )
        return PaddedSteps(inputs, mask, time_major=time_major)
    if mask is not None:
        raise ArgumentError(
            "mask", mask, "None: these inputs know their lengths", "leave it out, or use .keep"
        )
    return RaggedSteps(inputs, features=features, like=like)


def width_of(inputs: Any) -> int | None:
    """Features of a token of an input of any form; None of a list of no sequences.

    Raises:
        ArgumentError, ArgumentTypeError: no form of a batch, or one without features.
    """
    if isinstance(inputs, (list, tuple)) and not isinstance(inputs, PackedSequence):
        rows = cast("list[Any]", inputs)
        if not rows:
            return None
        inputs = rows[0]
        allowed, remedy = "a list of tensors [length, features]", "make each sequence a tensor"
    else:
        inputs = inputs.data if isinstance(inputs, PackedSequence) else inputs
        inputs = inputs.values if isinstance(inputs, Ragged) else inputs
        allowed, remedy = FORMS, "use torch.from_numpy, or torch.as_tensor"
    if not isinstance(inputs, Tensor):
        raise ArgumentTypeError("inputs", type(inputs).__name__, allowed, remedy)
    if inputs.dim() < 2:
        found = f"a tensor of shape {list(inputs.shape)}"
        raise ArgumentError("inputs", found, "[B, T, features]", "add the dimensions that lack")
    return inputs.shape[-1]


def _as_mask(mask: Any, shape: torch.Size, time_major: bool) -> Tensor:
    """A bool mask [B, T] on the CPU; numbers must be 0 and 1."""
    kept = as_numbers("mask", mask)
    wanted = shape[::-1] if time_major else shape
    if kept.shape != wanted:
        raise ArgumentError(
            "mask", kept, f"{list(wanted)}, the first two dimensions of inputs", "mask every step"
        )
    kept = (kept.mT if time_major else kept).cpu()
    if kept.is_complex() or bool(((kept != 0) & (kept != 1)).any()):
        raise ArgumentTypeError(
            "mask", kept, "bool, or the numbers 0 and 1", "use mask != 0, or mask > 0.5"
        )
    return kept.bool()


def _select(output: Tensor, rows: Tensor) -> Tensor:
    """Give rows of the outputs, zeros for -1; gradients add up where a row stands several times."""
    nothing = rows < 0
    if bool(nothing.any()):
        output = torch.cat([output, output.new_zeros(1, *output.shape[1:])])
        rows = rows.masked_fill(nothing, len(output) - 1)
    # Not index_select, whose gradient takes four times as long to add up equal rows.
    return output[rows.to(output.device)]


def _place(output: Tensor, rows: Tensor) -> Tensor:
    """Give rows of the outputs, zeros for -1, where every output stands once."""
    places = (rows >= 0).nonzero()[:, 0]
    places = places[rows[places].argsort()]
    zeros = output.new_zeros(len(rows), *output.shape[1:])
    return zeros.index_copy(0, places.to(output.device), output)
