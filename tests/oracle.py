"""What every engine is checked against: a plain Python loop over the cell, one sequence at a time.

It knows nothing of engines, batches or packing; all it ever does is call ``cell(x_t, state)`` on
one row. `outcome` runs it, or anything with the same signature, and takes every gradient of one
fixed random loss, so that two outcomes can be compared.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Run = Callable[..., tuple[Tensor, Any, Any]]


def loop(
    cell: nn.Module,
    x: Tensor,
    offsets: Tensor,
    state: Any,
    *,
    reverse: bool = False,
    return_states: bool = True,
) -> tuple[Tensor, Any, Any]:
    """Run a cell over each sequence alone, token by token; the signature of an engine."""
    starts, outputs, states, finals = offsets.tolist(), {}, {}, []
    for row, (start, end) in enumerate(itertools.pairwise(starts)):
        current = pytree.tree_map(lambda leaf, row=row: leaf[row : row + 1], state)
        for token in reversed(range(start, end)) if reverse else range(start, end):
            outputs[token], current = cell(x[token : token + 1], current)
            states[token] = current
        finals.append(current)
    output = _join([outputs[token] for token in range(len(outputs))], _no_output(cell, x))
    final = _join(finals, pytree.tree_map(lambda leaf: leaf[:0], state))
    if not return_states:
        return output, final, None
    every = [states[token] for token in range(len(states))]
    return output, final, _join(every, pytree.tree_map(lambda leaf: leaf[:0], state))


def _join(rows: list[Any], nothing: Any) -> Any:
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *rows) if rows else nothing


def _no_output(cell: nn.Module, x: Tensor) -> Tensor:
    size = cell.output_size
    return x.new_zeros((0, size) if isinstance(size, int) else (0, *size))


@dataclass
class Outcome:
    """What a run gave: results, and the gradient of every input, state and parameter by name."""

    output: Tensor
    final: list[Tensor]
    states: list[Tensor]
    gradients: dict[str, Tensor]

    def named(self) -> dict[str, Tensor]:
        found = {"output": self.output, **{f"grad {k}": v for k, v in self.gradients.items()}}
        found.update({f"final {i}": leaf for i, leaf in enumerate(self.final)})
        found.update({f"state {i}": leaf for i, leaf in enumerate(self.states)})
        return found


def outcome(
    run: Run,
    cell: nn.Module,
    x: Tensor,
    offsets: Tensor,
    state: Any,
    *,
    reverse: bool = False,
    captured: Sequence[Tensor] = (),
    seed: int = 0,
) -> Outcome:
    """Run forward and backward of a random loss over the output, final state and all states.

    The loss's weights are drawn from ``seed`` in float64, so they are the same for every engine and
    dtype. Gradients are taken for ``x``, floating state leaves, every parameter of the cell and the
    ``captured`` tensors (those that require a gradient); one that is not reached counts as zero.
    """
    x = x.detach().requires_grad_()
    state = pytree.tree_map(_as_leaf, state)
    output, final, states = run(cell, x, offsets, state, reverse=reverse, return_states=True)
    finals, every = pytree.tree_leaves(final), pytree.tree_leaves(states)
    loss = random_loss([output, *finals, *every], seed)
    wanted = {"x": x, **dict(cell.named_parameters())}
    wanted.update({f"state {i}": leaf for i, leaf in enumerate(pytree.tree_leaves(state))})
    wanted.update({f"captured {i}": tensor for i, tensor in enumerate(captured)})
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad}
    found = [None] * len(wanted)
    if loss.requires_grad:
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    gradients = {
        name: torch.zeros_like(tensor) if gradient is None else gradient
        for (name, tensor), gradient in zip(wanted.items(), found, strict=True)
    }
    return Outcome(
        output.detach(), [leaf.detach() for leaf in finals], [s.detach() for s in every], gradients
    )


def _as_leaf(leaf: Tensor) -> Tensor:
    return leaf.detach().requires_grad_() if leaf.is_floating_point() else leaf


def random_loss(tensors: Sequence[Tensor], seed: int) -> Tensor:
    """Sum floating tensors, each number with a fixed random weight; smooth, and not symmetric."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        weights = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if tensor.is_floating_point():
            total = total + (tensor.double() * weights).sum()
    return total


def expected(cell: nn.Module, x: Tensor, offsets: Tensor, state: Any, **options: Any) -> Outcome:
    """The oracle's outcome, always worked out in float64."""
    return outcome(loop, as_double(cell), x.double(), offsets, double(state), **options)


def double(state: Any) -> Any:
    return pytree.tree_map(lambda v: v.double() if v.is_floating_point() else v, state)


def as_double(cell: nn.Module) -> nn.Module:
    """A float64 copy of a cell, with the tensors that it keeps as plain attributes."""
    cell = copy.deepcopy(cell).double()
    for module in cell.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(module, name, value.detach().double().requires_grad_(value.requires_grad))
    return cell


def assert_same(actual: Outcome, wanted: Outcome, tolerance: float) -> None:
    """Every result and gradient within ``tolerance`` of the other, relative to its largest one."""
    left, right = actual.named(), wanted.named()
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert_close(value, right[name], tolerance, name)


def assert_close(actual: Tensor, wanted: Tensor, tolerance: float, name: str = "value") -> None:
    assert actual.shape == wanted.shape, f"{name}: {actual.shape} is not {wanted.shape}"
    found = error(actual, wanted)
    assert found <= tolerance, f"{name}: error {found:.2e} is above {tolerance:.0e}"


def error(actual: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest value; of small values absolute."""
    if wanted.numel() == 0:
        return 0.0
    actual, wanted = actual.detach().double(), wanted.detach().double()
    return float((actual - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))


def largest_error(actual: Outcome, wanted: Outcome) -> float:
    """Of every result and gradient."""
    right = wanted.named()
    return max(error(value, right[name]) for name, value in actual.named().items())


def offsets_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def batch(
    cell: nn.Module, lengths: Sequence[int], *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Any]:
    """Random (x, offsets, state) for a cell; floating states are random, others the cell's own."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    size = cell.input_size
    x = random(sum(lengths), *((size,) if isinstance(size, int) else size))
    state = pytree.tree_map(
        lambda leaf: random(*leaf.shape) if leaf.is_floating_point() else leaf,
        cell.initial_state(len(lengths), dtype=dtype),
    )
    return x, offsets_of(lengths), state


LENGTHS = ([2, 5, 1, 4], [0, 3, 0, 2], [1], [0, 0], [], [7, 7, 7], [1, 9, 1, 0, 3])
"""Unsorted, with zeros, one token, all zero, no sequence, all equal, one long."""


def lengths(max_batch: int = 6, max_length: int = 7) -> st.SearchStrategy[list[int]]:
    """Hypothesis: lengths of a batch, also none, all 0 and all equal."""
    length = st.integers(0, max_length)
    size = st.integers(0, max_batch)
    equal = st.builds(lambda n, length: [length] * n, size, length)
    return st.one_of(st.lists(length, max_size=max_batch), equal)
