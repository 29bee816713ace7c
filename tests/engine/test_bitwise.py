"""A row's result depends on that row alone, bit for bit: not on mates, order, threads or cut."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import oracle
import unpad
from engine.every_cell import TIERS, use
from random_cells import random_cell
from unpad.engine import choose
from unpad.nn import Dropout, GRUCell, LayerNormLSTMCell, LSTMCell, RNNCell, Stack

pytestmark = pytest.mark.skipif(not TIERS, reason="the native engine is not built")

CELLS = {
    "rnn": lambda: RNNCell(17, 64),
    "gru": lambda: GRUCell(3, 48, reset_after=False),
    "lstm": lambda: LSTMCell(12, 64),
    "lstm of odd sizes": lambda: LSTMCell(7, 33, peepholes=True, proj_size=5),
    "layer norm lstm": lambda: LayerNormLSTMCell(12, 40),
    "stack": lambda: Stack([LSTMCell(9, 24), GRUCell(24, 10)]),
    **{f"random {n}": (lambda n=n: random_cell(n)) for n in (2, 7, 17, 31)},
}
LENGTHS = [3, 0, 41, 1, 17, 5, 2, 9, 30, 4, 1, 6, 23, 8, 8, 12, 7, 50, 1, 0, 2, 19, 5, 5, 11, 3, 28]
LENGTHS += [4, 14, 2, 6, 1]  # 32 mates


class Rows:
    """One tensor of weights for the loss and of inputs, by sequence, whatever the batch's order."""

    def __init__(self, cell: nn.Module, dtype: torch.dtype, precision: str | None = None) -> None:
        self.cell, self.dtype, self.precision = cell.to(dtype), dtype, precision
        x, _, self.state = oracle.batch(cell, LENGTHS, dtype=dtype)
        self.x = x.split(LENGTHS)
        outs = cell.output_size
        self.weights = torch.randn(sum(LENGTHS), outs, dtype=dtype).split(LENGTHS)

    def run(self, order: list[int], *, reverse: bool) -> dict[int, dict[str, Tensor]]:
        """Outputs, states, dx and d initial state of each sequence in the batch."""
        lengths = [LENGTHS[i] for i in order]
        x = torch.cat([self.x[i] for i in order]).requires_grad_()
        leaf = lambda v: v[order].clone().requires_grad_(v.is_floating_point())  # noqa: E731
        state = pytree.tree_map(leaf, self.state)
        output, final, states = choose.run(
            self.cell, x, oracle.offsets_of(lengths), state,
            reverse=reverse, return_states=True, precision=self.precision,
        )  # fmt: skip
        loss = (output * torch.cat([self.weights[i] for i in order])).sum()
        floats = [v for v in pytree.tree_leaves(final) if v.is_floating_point()]
        (loss + sum(v.square().sum() for v in floats)).backward()
        found: dict[int, dict[str, Tensor]] = {i: {} for i in order}
        tokens = {"output": output, "dx": x.grad, **_named("state", states)}
        rows = {**_named("final", final), **_named("d initial", state, grad=True)}
        for name, tensor in tokens.items():
            for i, part in zip(order, tensor.split(lengths), strict=True):
                found[i][name] = part
        for name, tensor in rows.items():
            for i, part in zip(order, tensor, strict=True):
                found[i][name] = part
        return found


def _named(name: str, nest: Any, *, grad: bool = False) -> dict[str, Tensor]:
    leaves = [v.grad if grad else v for v in pytree.tree_leaves(nest)]
    return {f"{name} {i}": leaf for i, leaf in enumerate(leaves) if leaf is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", CELLS)
def test_alone_in_a_crowd_in_any_order_on_any_threads(name: str, tier: str, dtype) -> None:
    """bfloat16: of products, in float32 tensors, so that no bit is rounded away at the end."""
    rounds = dtype is torch.bfloat16
    kind = (torch.float32, "bfloat16") if rounds else (dtype,)
    rows = Rows(CELLS[name](), *kind)
    everyone = list(range(len(LENGTHS)))
    reverse = bool(random.getrandbits(1))
    with use(f"native {tier}"):
        torch.set_num_threads(1)
        crowd = rows.run(everyone, reverse=reverse)
        shuffled = random.sample(everyone, len(everyone))
        batches = [shuffled, shuffled[:7], shuffled[7:], *([i] for i in everyone[::3])]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            variants = [everyone, *batches] if threads == 2 else batches
            for order in variants:
                for i, values in rows.run(order, reverse=reverse).items():
                    for key, value in values.items():
                        wanted = crowd[i][key]
                        assert torch.equal(value, wanted), (key, i, len(order), threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_parameter_gradients_repeat_at_a_fixed_number_of_threads(threads: int) -> None:
    cell = LayerNormLSTMCell(12, 40)
    x, offsets, state = oracle.batch(cell, LENGTHS, dtype=torch.float32)
    torch.set_num_threads(threads)

    def gradients() -> list[Tensor]:
        output, _, _ = choose.run(cell, x, offsets, state)
        return list(torch.autograd.grad(output.square().sum(), list(cell.parameters())))

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(gradients(), first, strict=True))


def test_inference_gives_the_bits_of_training() -> None:
    cell = LSTMCell(12, 64)
    x, offsets, state = oracle.batch(cell, LENGTHS, dtype=torch.float32)
    trained, _, _ = choose.run(cell, x, offsets, state)
    with torch.no_grad():
        assert torch.equal(choose.run(cell, x, offsets, state)[0], trained)


def test_masks_over_time_do_not_hang_on_threads() -> None:
    cell = Dropout(LSTMCell(12, 64), input=0.3, state=0.4, same_over_time=True)
    x, offsets, state = oracle.batch(cell, LENGTHS, dtype=torch.float32)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        with unpad.engine("native"):
            results.append(choose.run(cell, x, offsets, state)[0])
    assert torch.equal(*results)
