"""Programs under autograd: one `autograd.Function` for every cell and both engines.

Forward runs the forward pass and keeps what the backward pass reads; backward runs the derived
backward pass. Where a derivative of the derivative is asked for, backward is replayed in torch
operations on the step itself, so that autograd can go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from unpad.compiler.build import Compiled, Programs, Streams
from unpad.compiler.ops import OPERATIONS
from unpad.compiler.schedule import Scheduled
from unpad.compiler.step import Step
from unpad.engine import eager
from unpad.engine.memory import in_full, in_rows
from unpad.engine.precision import product
from unpad.engine.torch_engine import Columns, Frame, Placed

RunPass = Callable[[Scheduled, Frame], None]
Alloc = Callable[[int, int, Tensor], Tensor]


@dataclass(slots=True)
class Call:
    """One run of a cell, with everything that is not a differentiable input.

    With ``begins`` it is a run over stretches of sequences: ``x``, and what `_forward` and
    `_backward` are told to fill, are of the larger batch, in which they begin there.
    """

    compiled: Compiled
    run_pass: RunPass
    allocate: Alloc
    offsets: Tensor
    reverse: bool
    return_states: bool
    noises: list[Tensor]
    precision: str = "float32"
    begins: Tensor | None = None

    def placed(self, x: Tensor) -> Tensor | Placed:
        """As an engine is given the input."""
        return x if self.begins is None else Placed(x)

    @property
    def direction(self) -> int:
        """+1: sequences are read from first to last token."""
        return -1 if self.reverse else 1


class Inputs(NamedTuple):
    """The tensors of a run.

    Attributes:
        x: [T, width].
        initial: [B, width] for each state, contiguous; None: zeros.
        parts: what the matrices and vectors are made of (`compiler.once.Once`); x, initial states
            and parts, in a row, are what autograd knows of.
        joined: those that have more than one part.
        matrices, vectors: the weights as the programs read them.
    """

    x: Tensor
    initial: list[Tensor | None]
    parts: Sequence[Tensor]
    joined: Sequence[Tensor]
    matrices: list[Tensor]
    vectors: list[Tensor]


def inputs_of(
    compiled: Compiled, tensors: Sequence[Any], joined: Sequence[Tensor] | None = None
) -> Inputs:
    """The tensors of a run by what they are; ``joined`` where that is known."""
    states, once = 1 + len(compiled.step.states), compiled.once
    initial = [None if t is None else in_full(t) for t in tensors[1:states]]
    parts = tensors[states:]
    joined = once.joined(parts) if joined is None else joined
    return Inputs(tensors[0], initial, parts, joined, *once.weights(parts, joined))


def run(
    call: Call, x: Tensor, initial: Sequence[Tensor | None], parts: list[Tensor]
) -> list[Tensor]:
    """[output [T, O], final states [B, w]..., states at every token [T, w]...], differentiable."""
    tensors = (x, *initial, *parts)
    flags = [t is not None and t.requires_grad for t in tensors]
    if torch.is_grad_enabled() and any(flags):
        return list(_apply(call, *tensors))
    inputs = inputs_of(call.compiled, tensors)
    return _forward(call, wanted(call, (False,) * len(flags)), inputs)[0]


def wanted(call: Call, flags: tuple[bool, ...]) -> Programs:
    """The programs for the tensors of a run that want a gradient."""
    return call.compiled.wanted(flags, call.return_states)


def _forward(
    call: Call, programs: Programs, inputs: Inputs, into: Sequence[Tensor | Placed] = ()
) -> tuple[list[Tensor], Tensor | None]:
    """(results, what to keep for the backward pass)

    ``into``: where output and states at every token go, which are then no results.
    """
    compiled, allocate, scheduled = call.compiled, call.allocate, programs.forward
    x, streams, batch = inputs.x, programs.streams, call.offsets.shape[0] - 1
    count = x.shape[0] if call.begins is None else int(call.offsets[-1])
    widths = streams.forward_widths
    kept = allocate(count, streams.kept_width, x) if streams.kept_width else None
    found: Sequence[Tensor] = ()
    if not into:
        found = [allocate(count, widths[s], x) for s in (streams.output, *streams.states.values())]
    final = [x.new_empty(batch, width) for width in compiled.step.state_widths]
    frame = Frame(
        offsets=call.offsets,
        direction=call.direction,
        streams=[call.placed(x), *call.noises, *_kept(streams, kept), *(into or found)],
        shared=[inputs.vectors[i] for i in scheduled.shared],
        matrices=[inputs.matrices[m] for m, _ in scheduled.matrices],
        flipped=scheduled.flipped,
        accumulators=[],
        initial=inputs.initial,
        final=final,
        precision=call.precision,
        begins=call.begins,
    )
    call.run_pass(scheduled, frame)
    return [*found[:1], *final, *found[1:]], kept


def _kept(streams: Streams, kept: Tensor | None) -> list[Columns]:
    """Saved values and histories, as columns of the one tensor that is kept."""
    return [] if kept is None else [Columns(kept, streams.kept_columns)]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        programs = wanted(call, ctx.needs_input_grad[1:])
        inputs = inputs_of(call.compiled, tensors)
        results, kept = _forward(call, programs, inputs)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.programs = call, programs
        ctx.save_for_backward(*tensors, kept, *inputs.joined)
        if not call.compiled.all_floating:
            states = zip(results[1:], call.compiled.floating * 2, strict=False)
            ctx.mark_non_differentiable(*[state for state, floats in states if not floats])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call, saved, needed = ctx.call, ctx.saved_tensors, ctx.needs_input_grad[1:]
        tensors, kept, joined = saved[: len(needed)], saved[len(needed)], saved[len(needed) + 1 :]
        if torch.is_grad_enabled():
            return (None, *_replay(call, tensors, grads, needed))
        inputs = inputs_of(call.compiled, tensors, joined)
        d_x, d_initial, d_weights = _backward(call, ctx.programs, inputs, kept, grads)
        return (None, d_x, *d_initial, *call.compiled.once.spread(inputs.parts, d_weights))


# torch's own `apply` first looks through every argument for the wrappers of torch.func, a twentieth
# of a step at batch 1; none comes here (`choose`).
_above: Any = super(torch.autograd.Function, _Function)
_apply: Callable[..., tuple[Tensor, ...]] = _above.apply


def _backward(
    call: Call,
    programs: Programs,
    inputs: Inputs,
    kept: Tensor | None,
    grads: Sequence[Tensor | Placed | None],
    into: Placed | None = None,
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:
    """The gradients of x, the initial states, and every matrix and vector.

    That of x goes ``into`` a larger one, and is then no result.
    """
    streams, states, alive = programs.streams, programs.needs.states, programs.alive
    x, count = inputs.x, len(inputs.initial)
    d_output, d_states = grads[0], grads[1 + count :]
    d_final = cast("Sequence[Tensor | None]", grads[1 : 1 + count])
    arrives = tuple([g is not None for g in d_states]) or (False,) * count
    backward = programs.backward(d_output is not None, arrives)
    scheduled = backward.scheduled
    d_x = None
    if programs.needs.x and into is None:
        d_x = call.allocate(x.shape[0], x.shape[1], x)
    d_initial = [
        torch.empty_like(state) if state is not None and wants and lives else None
        for state, wants, lives in zip(inputs.initial, states, alive, strict=True)
    ]
    sums = [_sum(call, x, shape) for shape in backward.shapes]
    arriving = [in_rows(g) if isinstance(g, Tensor) else g for g in (d_output, *d_states)]
    frame = Frame(
        offsets=call.offsets,
        direction=-call.direction,
        streams=[call.placed(x), *call.noises, *_kept(streams, kept), *arriving, into or d_x],
        shared=[inputs.vectors[i] for i in scheduled.shared],
        matrices=[inputs.matrices[m] for m, _ in scheduled.matrices],
        flipped=scheduled.flipped,
        accumulators=sums,
        initial=[None if g is None else in_full(g) for g in compress(d_final, alive)],
        final=list(compress(d_initial, alive)),
        precision=call.precision,
        begins=call.begins,
    )
    call.run_pass(scheduled, frame)
    weights = (*inputs.matrices, *inputs.vectors)
    d_weights = [
        None if place is None else torch.zeros_like(weight) if place < 0 else sums[place]
        for weight, place in zip(weights, backward.places, strict=True)
    ]
    return d_x, d_initial, d_weights


# An allocator maps a larger one anew at every step, and its pages cost more than the sum.
_LARGE_SUM = 1 << 18  # numbers


def _sum(call: Call, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory for the gradient of a weight or a vector."""
    if len(shape) == 2 and shape[0] * shape[1] >= _LARGE_SUM:
        return call.allocate(shape[0], shape[1], x)
    return x.new_empty(shape)


# -- replay ----------------------------------------------------------------------------------------


def _replay(
    call: Call,
    tensors: Sequence[Tensor | None],
    grads: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients as differentiable functions of inputs and arriving gradients.

    Through a view of each: a tensor that comes in twice has a gradient at each of its places, and
    autograd adds them up.
    """
    tensors = [None if t is None else t.view_as(t) for t in tensors]
    outs = replay_forward(call, tensors)
    pairs = [
        (out, grad)
        for out, grad in zip(outs, grads, strict=True)
        if grad is not None and out.requires_grad
    ]
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        cast("list[Tensor]", [*compress(tensors, needed)]),
        [grad for _, grad in pairs],
        create_graph=True,
        allow_unused=True,
    )
    results = iter(found)
    return [next(results) if needs else None for needs in needed]


def replay_forward(call: Call, tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """The forward results again, by the eager loop over the step in torch operations."""
    step, inputs = call.compiled.step, inputs_of(call.compiled, tensors)
    cell = _StepCell(step, inputs.matrices, inputs.vectors, call.precision)
    output, final, states = eager.run(
        cell,
        torch.cat([inputs.x, *call.noises], 1) if call.noises else inputs.x,
        call.offsets,
        tuple(filled(call, inputs.x, inputs.initial)),
        reverse=call.reverse,
        return_states=call.return_states,
    )
    return [output, *final, *(states or ())]


def filled(call: Call, x: Tensor, initial: Sequence[Tensor | None]) -> list[Tensor]:
    """Initial states with the zeros that None stands for."""
    batch, widths = call.offsets.shape[0] - 1, call.compiled.step.state_widths
    return [
        x.new_zeros(batch, width) if state is None else state
        for state, width in zip(initial, widths, strict=True)
    ]


class _StepCell(torch.nn.Module):
    """A step as a cell in torch operations; its x is x and the noises side by side."""

    def __init__(
        self,
        step: Step,
        matrices: Sequence[Tensor],
        shared: Sequence[Tensor],
        precision: str = "float32",
    ) -> None:
        super().__init__()
        self.output_size = step.graph[step.output].width
        self.step, self.matrices, self.shared = step, matrices, shared
        self.precision = precision

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        step, values = self.step, dict[int, Tensor]()
        starts = [0, step.x_width]
        for noise in step.noises:
            starts.append(starts[-1] + noise.width)
        for number in step.needed():
            node = step.graph[number]
            args = [values[a] for a in node.args]
            if node.op == "x":
                value = x[:, : step.x_width]
            elif node.op == "noise":
                value = x[:, starts[1 + node.index] : starts[2 + node.index]]
            elif node.op == "state":
                value = state[node.index]
            elif node.op == "shared":
                value = self.shared[node.index].expand(len(x), -1)
            elif node.op == "const":
                value = x.new_full((len(x), 1), node.value)
            elif node.op == "linear":
                matrix = self.matrices[node.index // 2]
                flipped = node.index // 2 in step.flipped
                value = product(args[0], matrix.t() if flipped else matrix, self.precision)
            elif node.op == "slice":
                value = args[0][:, node.dims[0] : node.dims[0] + node.width]
            elif node.op == "concat":
                value = torch.cat(args, 1)
            elif node.op == "stop":
                value = args[0].detach()
            else:
                extra = [node.dims] if node.dims else [node.table] if node.table else []
                value = OPERATIONS[node.op].torch(*args, *extra)
            values[number] = value
        return values[step.output], tuple(values[n] for n in step.states)
