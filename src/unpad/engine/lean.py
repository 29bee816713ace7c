"""Training in little memory: the forward pass keeps states at borders, the backward runs again.

The batch is cut into stretches of steps (see `stretches`). Forward runs one after the other without
saving anything and keeps the states before each; backward goes from the last to the first, runs a
stretch's forward again, this time saving, and then its backward, with the gradient of the state
carried on and the parameters' gradients added up. With T steps in stretches of s the memory is of
the order of T / s states and s steps, least near s = sqrt(T); the time is one forward more.

Source: Chen et al., Training deep nets with sublinear memory cost, arXiv:1604.06174; for recurrent
networks Gruslys et al., arXiv:1606.03401.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from unpad.engine import autograd
from unpad.engine.memory import lies_in_rows
from unpad.engine.randomness import compact, compact_bytes, drawn, rows
from unpad.engine.stretches import Alloc, Stretch, Workspace, cut
from unpad.engine.torch_engine import Placed
from unpad.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unpad.compiler.build import Programs
    from unpad.compiler.differentiate import Needs

# Each of a stretch's three calls packs the weights, and small operations stand between them: 1.5 ms
# for an LSTM 128 -> 128, which trains on a thousand tokens in 13 ms (benchmarks/memory_lean.py).
_LEAST_TOKENS = 2048
_LEAST_BYTES = 1 << 20
# Steps to choose from, each a twentieth more than the one before.
_STEPS = torch.tensor(sorted({math.ceil(1.05**i) for i in range(440)}), device="cpu")


def run(
    call: autograd.Call,
    x: Tensor,
    initial: Sequence[Tensor | None],
    parts: list[Tensor],
    *,
    memory: str | int,
) -> list[Tensor]:
    """Give the results of `autograd.run`, keeping less for the backward pass.

    Args:
        call: without noises; they are drawn here.
        x, initial, parts: as for `autograd.run`.
        memory: "lean", or the most bytes that may be kept and worked with in the backward pass,
            beside the input, the results and their gradients.

    Raises:
        ArgumentError: so few bytes do not do, however short the stretches.
    """
    tensors = (x, *autograd.filled(call, x, initial), *parts)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        programs = autograd.wanted(call, tuple(t.requires_grad for t in tensors))
        steps = choose_steps(memory, call.offsets.diff(), _sizes(call, programs, x))
        if steps:
            return list(_Function.apply(_Lean(call, programs.needs, steps), *tensors))  # type: ignore[no-untyped-call]
    step = call.compiled.step
    noises = [drawn(noise, x, call.offsets, call.allocate) for noise in step.noises]
    return autograd.run(replace(call, noises=noises), x, initial, parts)


def share(memory: str | int, runs: int) -> str | int:
    """What each of several runs may take: an equal part of a number of bytes.

    >>> share("lean", 2), share(1 << 20, 2)
    ('lean', 524288)
    """
    return memory // runs if isinstance(memory, int) else memory


# -- how long a stretch is -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Bytes: of a fast run, kept by a lean one whatever the stretch, of a state, of a token."""

    fast: int
    fixed: int
    state: int
    token: int


def _sizes(call: autograd.Call, programs: Programs, x: Tensor) -> Sizes:
    step, size, tokens = call.compiled.step, x.element_size(), len(x)
    streams = programs.streams
    noise = sum(noise.width for noise in step.noises)
    # What the second forward run gives again, and nobody reads.
    results = streams.forward_widths[streams.output]
    results += sum(step.state_widths) if call.return_states else 0
    batch = len(call.offsets) - 1
    return Sizes(
        fast=tokens * (streams.kept_width + noise) * size,
        fixed=sum(compact_bytes(noise, tokens, batch, size) for noise in step.noises),
        state=sum(step.state_widths) * size,
        token=(streams.kept_width + noise + results) * size,
    )


def choose_steps(memory: str | int, lengths: Tensor, sizes: Sizes) -> int:
    """Return how many steps a stretch has; 0: the fast way needs no more, or is allowed.

    >>> choose_steps("lean", torch.tensor([10_000] * 8), Sizes(290 << 20, 0, 1024, 5200))
    261
    """
    budget = memory if isinstance(memory, int) else sizes.fast
    if not len(lengths) or not int(lengths.max()) or (memory != "lean" and sizes.fast <= budget):
        return 0
    steps = _STEPS[: int(torch.searchsorted(_STEPS, lengths.max()))]
    tokens, borders = _counts(steps, lengths)
    total = sizes.fixed + borders * sizes.state + tokens * sizes.token
    if memory == "lean":
        allowed = (tokens >= _LEAST_TOKENS) & (tokens * sizes.token >= _LEAST_BYTES)
        allowed &= total < sizes.fast
        best = total.where(allowed, torch.iinfo(torch.int64).max)
        return int(steps[best.argmin()]) if bool(allowed.any()) else 0
    fitting = steps[total <= budget]
    if not len(fitting):
        least = min(sizes.fast, *total.tolist())
        raise ArgumentError(
            "memory",
            f"{budget:,} bytes for each layer and direction",
            f"{least:,} or more for this batch",
            'allow more, take memory="lean", or go through the batch by Ragged.chunks',
        )
    return int(fitting[-1])


def _counts(steps: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For each number of steps: tokens of the longest stretch, the first; states at borders."""
    found, times = lengths.unique(return_counts=True)
    column = steps[:, None]
    tokens = torch.minimum(found, column) * times
    borders = ((found + column - 1) // column - 1).clamp_(min=0) * times
    return tokens.sum(1), borders.sum(1)


# -- the two passes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lean:
    """One run, and how it is cut."""

    call: autograd.Call
    needs: Needs
    steps: int

    def cut(self, x: Tensor) -> list[Stretch]:
        """The stretches, with indices of sequences where x is."""
        call = self.call
        return cut(call.offsets, self.steps, reverse=call.reverse, device=x.device)

    def part(
        self,
        stretch: Stretch,
        before: Sequence[Tensor],
        inputs: autograd.Inputs,
        noises: Sequence[Tensor],
        work: Workspace,
    ) -> tuple[autograd.Call, autograd.Inputs]:
        """The call for one stretch and its inputs, with the very noises that it had before."""
        work.give_back()
        call = self.noisy(stretch, noises, inputs.x, work)
        return call, inputs._replace(initial=[state.contiguous() for state in before])

    def noisy(
        self, stretch: Stretch, noises: Sequence[Tensor], x: Tensor, allocate: Alloc
    ) -> autograd.Call:
        """The call for one stretch, with its noises, in memory from ``allocate``."""
        pairs = zip(self.call.compiled.step.noises, noises, strict=True)
        return replace(
            self.call,
            offsets=stretch.offsets,
            begins=stretch.begins,
            noises=[rows(noise, kept, stretch, x, allocate) for noise, kept in pairs],
            allocate=allocate,
        )

    def whole(self, x: Tensor, noises: Sequence[Tensor]) -> autograd.Call:
        """The call for the whole batch."""
        (stretch,) = replace(self, steps=len(x)).cut(x)
        call = self.noisy(stretch, noises, x, self.call.allocate)
        return replace(call, offsets=self.call.offsets, begins=None)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lean: _Lean, *tensors: Tensor) -> tuple[Tensor, ...]:
        results, borders, noises = _forward(lean, tensors)
        ctx.set_materialize_grads(False)
        ctx.lean = lean
        ctx.save_for_backward(*tensors, *borders, *noises)
        floating = lean.call.compiled.floating
        states = zip(results[1:], floating * (1 + lean.call.return_states), strict=True)
        ctx.mark_non_differentiable(*[state for state, floats in states if not floats])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        lean, saved = ctx.lean, ctx.saved_tensors
        count = len(ctx.needs_input_grad) - 1
        states = len(lean.needs.states)
        tensors, borders = saved[:count], saved[count : count + states]
        noises = saved[count + states :]
        if torch.is_grad_enabled():
            call = lean.whole(tensors[0], noises)
            return (None, *autograd._replay(call, tensors, grads, ctx.needs_input_grad[1:]))
        inputs = autograd.inputs_of(lean.call.compiled, tensors)
        return (None, *_Backward(lean, inputs, noises, grads).run(borders))


def _forward(
    lean: _Lean, tensors: tuple[Tensor, ...]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(results, for each state its rows at all borders, noises in few bytes)"""
    call, step = lean.call, lean.call.compiled.step
    inputs = autograd.inputs_of(call.compiled, tensors)
    x, initial = inputs.x, cast("list[Tensor]", inputs.initial)
    noises = [compact(noise, x, call.offsets) for noise in step.noises]
    widths = [step.graph[step.output].width, *(step.state_widths if call.return_states else ())]
    streams = [Placed(call.allocate(len(x), width, x)) for width in widths]
    final = [state.clone() for state in initial]
    borders: list[list[Tensor]] = [[] for _ in initial]
    stretches = lean.cut(x)
    work = Workspace(call.allocate, len(stretches[0]))
    for number, stretch in enumerate(stretches):
        before = [stretch.sequences_of(state) for state in final]
        if number:
            for border, state in zip(borders, before, strict=True):
                border.append(state)
        after = _read(lean, stretch, before, inputs, noises, work, streams)
        pairs = zip(final, after, strict=True)
        final = [stretch.with_sequences(state, new) for state, new in pairs]
    kept = [torch.cat(border) if border else x.new_empty(0, 1) for border in borders]
    output, *every = [stream.tensor for stream in streams]
    return [output, *final, *every], kept, noises


def _read(
    lean: _Lean,
    stretch: Stretch,
    before: list[Tensor],
    inputs: autograd.Inputs,
    noises: Sequence[Tensor],
    work: Workspace,
    streams: list[Placed],
) -> list[Tensor]:
    """The states after a stretch; output and states at every token go into ``streams``."""
    call = lean.call
    part, mine = lean.part(stretch, before, inputs, noises, work)
    nothing = autograd.wanted(call, (False,) * (1 + len(before) + len(inputs.parts)))
    return autograd._forward(part, nothing, mine, streams)[0]


class _Backward:
    """Goes from the last stretch to the first, carrying the gradients of states and sums."""

    def __init__(
        self,
        lean: _Lean,
        inputs: autograd.Inputs,
        noises: Sequence[Tensor],
        grads: tuple[Tensor | None, ...],
    ) -> None:
        call = lean.call
        self.lean, self.inputs, self.noises = lean, inputs, noises
        self.x, self.initial = inputs.x, cast("list[Tensor]", inputs.initial)
        count = len(self.initial)
        self.arriving = (grads[0], *grads[1 + count :])
        # The gradient of a state goes on to the stretch before, wanted at the end or not.
        alive = call.compiled.programs(lean.needs, call.return_states).alive
        needs = replace(lean.needs, states=alive)
        self.programs = call.compiled.programs(needs, call.return_states)
        self.carried: list[Any] = [
            (torch.zeros_like(like) if grad is None else grad.clone()) if lives else None
            for grad, like, lives in zip(grads[1 : 1 + count], self.initial, alive, strict=True)
        ]
        width = self.x.shape[1]
        self.d_x = Placed(call.allocate(len(self.x), width, self.x)) if needs.x else None
        self.sums: list[Tensor | None] = []

    def run(self, borders: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradient of every tensor, or None."""
        stretches, end = self.lean.cut(self.x), len(borders[0])
        work = Workspace(self.lean.call.allocate, len(stretches[0]))
        for number, stretch in reversed([*enumerate(stretches)]):
            begin = end - len(stretch.sequences)
            before = [border[begin:end] for border in borders]
            end = begin
            if number == 0:
                before = [stretch.sequences_of(state) for state in self.initial]
            self._stretch(stretch, before, work)
        wanted = zip(self.carried, self.lean.needs.states, strict=True)
        states = [state if needed else None for state, needed in wanted]
        d_parts = self.lean.call.compiled.once.spread(self.inputs.parts, self.sums)
        return [self.d_x and self.d_x.tensor, *states, *d_parts]

    def _stretch(self, stretch: Stretch, before: list[Tensor], work: Workspace) -> None:
        part, inputs = self.lean.part(stretch, before, self.inputs, self.noises, work)
        _, kept = autograd._forward(part, self.programs, inputs, self._spare(stretch, work))
        output, *every = [_arriving(grad, stretch) for grad in self.arriving]
        ends = [None if state is None else stretch.sequences_of(state) for state in self.carried]
        grads = (output, *ends, *every)
        _, states, sums = autograd._backward(part, self.programs, inputs, kept, grads, self.d_x)
        pairs = zip(self.carried, states, strict=True)
        self.carried = [
            None if new is None else stretch.with_sequences(old, new) for old, new in pairs
        ]
        self._add(sums)

    def _spare(self, stretch: Stretch, work: Workspace) -> list[Tensor | Placed]:
        """Where the results of the second run go, which nobody reads: d_x, if it has the width."""
        streams, x = self.programs.streams, self.x
        output, *states = [
            streams.forward_widths[s] for s in (streams.output, *streams.states.values())
        ]
        fits = self.d_x is not None and output == x.shape[1]
        first = self.d_x if fits and self.d_x else work(len(stretch), output, x)
        return [first, *[work(len(stretch), width, x) for width in states]]

    def _add(self, sums: list[Tensor | None]) -> None:
        """Add a stretch's sums, in place, to those of the stretches behind it."""
        if not self.sums:
            self.sums = sums
            return
        for total, more in zip(self.sums, sums, strict=True):
            if total is not None and more is not None:
                total.add_(more)


def _arriving(grad: Tensor | None, stretch: Stretch) -> Tensor | Placed | None:
    """A gradient where it stands; an expanded one (of a sum) has no rows that an engine reads."""
    if grad is None:
        return None
    return Placed(grad) if lies_in_rows(grad) else stretch.tokens_of(grad)
