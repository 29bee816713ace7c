"""Programs under autograd: one `autograd.Function` for every cell and both engines.

Forward runs the forward pass and keeps what the backward pass reads; backward runs the derived
backward pass. Where a derivative of the derivative is asked for, backward is replayed in torch
operations on the step itself, so that autograd can go through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unpad.compiler.build import Backward, Compiled, Programs, Streams
from unpad.compiler.differentiate import Needs
from unpad.compiler.ops import OPERATIONS
from unpad.compiler.schedule import Scheduled
from unpad.compiler.step import Step
from unpad.engine import eager
from unpad.engine.precision import product
from unpad.engine.torch_engine import Columns, Frame

RunPass = Callable[[Scheduled, Frame], None]
Alloc = Callable[[int, int, Tensor], Tensor]


@dataclass
class Call:
    """One run of a cell, with everything that is not a differentiable input."""

    compiled: Compiled
    run_pass: RunPass
    allocate: Alloc
    offsets: Tensor
    reverse: bool
    return_states: bool
    noises: list[Tensor]
    precision: str = "float32"

    @property
    def direction(self) -> int:
        """+1: sequences are read from first to last token."""
        return -1 if self.reverse else 1


def run(
    call: Call, x: Tensor, initial: list[Tensor], matrices: list[Tensor], shared: list[Tensor]
) -> list[Tensor]:
    """[output [T, O], final states [B, w]..., states at every token [T, w]...], differentiable."""
    tensors = (x, *initial, *matrices, *shared)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return list(_Function.apply(call, *tensors))  # type: ignore[no-untyped-call]
    return _forward(call, call.compiled.needs(None, call.return_states), tensors)[0]


def _needs(call: Call, flags: list[bool] | tuple[bool, ...]) -> Needs:
    return call.compiled.needs(tuple(flags), call.return_states)


def _forward(
    call: Call, needs: Needs, tensors: tuple[Tensor, ...]
) -> tuple[list[Tensor], Tensor, Programs]:
    """(results, what to keep for the backward pass, programs)"""
    step = call.compiled.step
    programs = call.compiled.programs(needs, call.return_states)
    x, initial, matrices, shared = _split(step, tensors)
    streams, count = programs.streams, len(x)
    widths = streams.forward_widths
    arena = call.allocate(count, streams.kept_width, x)
    output = call.allocate(count, widths[streams.output], x)
    states = [call.allocate(count, widths[s], x) for s in streams.states.values()]
    final = [torch.empty_like(t) for t in initial]
    frame = Frame(
        offsets=call.offsets,
        direction=call.direction,
        streams=[x, *call.noises, *_kept(streams, arena), output, *states],
        shared=[shared[i] for i in programs.forward.shared],
        matrices=_matrices(step, matrices, programs.forward),
        accumulators=[],
        initial=initial,
        final=final,
        precision=call.precision,
    )
    call.run_pass(programs.forward, frame)
    return [output, *final, *states], arena, programs


def _kept(streams: Streams, arena: Tensor) -> list[Columns]:
    """Saved values and histories, as columns of the one tensor that is kept."""
    return [Columns(arena, start, width) for start, width in streams.kept_columns]


def _matrices(step: Step, matrices: list[Tensor], scheduled: Scheduled) -> list[Tensor]:
    return [
        matrices[m].t() if transposed != (m in step.flipped) else matrices[m]
        for m, transposed in scheduled.matrices
    ]


def _split(
    step: Step, tensors: tuple[Tensor, ...]
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    states, matrices = len(step.states), len(step.matrices)
    rest = list(tensors[1:])
    return (
        tensors[0],
        [t.contiguous() for t in rest[:states]],
        rest[states : states + matrices],
        rest[states + matrices :],
    )


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        needs = _needs(call, ctx.needs_input_grad[1:])
        results, arena, programs = _forward(call, needs, tensors)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.programs = call, programs
        ctx.save_for_backward(*tensors, arena)
        floating = call.compiled.floating
        frozen = [results[1 + k] for k in range(len(floating)) if not floating[k]]
        if call.return_states:
            frozen += [results[1 + len(floating) + k] for k, f in enumerate(floating) if not f]
        ctx.mark_non_differentiable(*frozen)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call, (*tensors, arena) = ctx.call, ctx.saved_tensors
        if torch.is_grad_enabled():
            return (None, *_replay(call, tuple(tensors), grads, ctx.needs_input_grad[1:]))
        return (None, *_backward(call, ctx.programs, tuple(tensors), arena, grads))


def _backward(
    call: Call,
    programs: Programs,
    tensors: tuple[Tensor, ...],
    arena: Tensor,
    grads: tuple[Tensor | None, ...],
) -> list[Tensor | None]:
    step, needs, streams = call.compiled.step, programs.needs, programs.streams
    x, initial, matrices, shared = _split(step, tensors)
    count = len(initial)
    d_output, d_final, d_states = grads[0], grads[1 : 1 + count], grads[1 + count :]
    arrives = tuple(g is not None for g in d_states) or (False,) * count
    backward: Backward = programs.backward(d_output is not None, arrives)
    alive = [k for k in range(count) if programs.alive[k]]
    d_x = call.allocate(len(x), step.x_width, x) if needs.x else None
    d_initial = [torch.empty_like(initial[k]) for k in alive]
    shapes = call.compiled.accumulators()
    sums = {i: x.new_empty(shapes[i]) for i in backward.accumulated}
    frame = Frame(
        offsets=call.offsets,
        direction=-call.direction,
        streams=[
            x,
            *call.noises,
            *_kept(streams, arena),
            *[_rows(g) for g in (d_output, *d_states)],
            d_x,
        ],
        shared=[shared[i] for i in backward.scheduled.shared],
        matrices=_matrices(step, matrices, backward.scheduled),
        accumulators=list(sums.values()),
        initial=[_dense(d_final[k], initial[k]) for k in alive],
        final=d_initial,
        precision=call.precision,
    )
    call.run_pass(backward.scheduled, frame)
    by_state = dict(zip(alive, d_initial, strict=True))
    results: list[Tensor | None] = [d_x]
    results += [by_state.get(k) if wanted else None for k, wanted in enumerate(needs.states)]
    for i, wanted in enumerate((*needs.matrices, *needs.shared)):
        total = sums.get(i)
        if total is not None and i >= len(step.matrices):
            total = total.reshape(-1)
        elif total is None and wanted:
            total = torch.zeros_like((*matrices, *shared)[i])
        results.append(total if wanted else None)
    return results


def _rows(grad: Tensor | None) -> Tensor | None:
    """Unit column stride, which an expanded gradient (of a sum) has not."""
    if grad is None or grad.stride(-1) == 1:
        return grad
    # contiguous() would leave an empty gradient with the strides that it has.
    return grad.clone(memory_format=torch.contiguous_format)


def _dense(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad.contiguous()


# -- replay ----------------------------------------------------------------------------------------


def _replay(
    call: Call,
    tensors: tuple[Tensor, ...],
    grads: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients as differentiable functions of inputs and arriving gradients."""
    outs = replay_forward(call, tensors)
    pairs = [
        (out, grad)
        for out, grad in zip(outs, grads, strict=True)
        if grad is not None and out.requires_grad
    ]
    wanted = [t for t, needs in zip(tensors, needed, strict=True) if needs]
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        wanted,
        [grad for _, grad in pairs],
        create_graph=True,
        allow_unused=True,
    )
    results = iter(found)
    return [next(results) if needs else None for needs in needed]


def replay_forward(call: Call, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The forward results again, by the eager loop over the step in torch operations."""
    step = call.compiled.step
    x, initial, matrices, shared = _split(step, tensors)
    cell = _StepCell(step, matrices, shared, call.precision)
    output, final, states = eager.run(
        cell,
        torch.cat([x, *call.noises], 1) if call.noises else x,
        call.offsets,
        tuple(initial),
        reverse=call.reverse,
        return_states=call.return_states,
    )
    return [output, *final, *(states or ())]


class _StepCell(torch.nn.Module):
    """A step as a cell in torch operations; its x is x and the noises side by side."""

    def __init__(
        self,
        step: Step,
        matrices: list[Tensor],
        shared: list[Tensor],
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
