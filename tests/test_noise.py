"""The masks that cells draw: an operation that torch can trace, move and draw again from a seed."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from unpad.cells import Dropout, GRUCell
from unpad.engine import eager
from unpad.noise import keep_mask, sequence_masks


def test_torch_accepts_the_operation():
    x = torch.randn(3, 4, requires_grad=True)
    torch.library.opcheck(
        torch.ops.unpad.keep_mask.default,
        (x.detach(), 0.5, False),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_masks_hold_ones_and_zeros_in_the_given_share(dtype):
    mask = keep_mask(torch.ones(200, 200, dtype=dtype), 0.3, per_sequence=False)
    assert mask.dtype == dtype
    assert set(mask.unique().tolist()) == {0, 1}
    assert abs(float(mask.double().mean()) - 0.7) < 0.02


def test_a_seed_gives_the_same_masks_and_none_takes_a_gradient():
    x = torch.ones(5, 6, requires_grad=True)
    torch.manual_seed(3)
    first = keep_mask(x, 0.5, per_sequence=True)
    torch.manual_seed(3)
    assert torch.equal(keep_mask(x, 0.5, per_sequence=True), first)
    assert not first.requires_grad
    assert not torch.equal(keep_mask(x, 0.5, per_sequence=True), first)


def test_the_calls_of_a_step_have_masks_of_their_own_that_hold_over_steps():
    x = torch.ones(4, 32)
    with sequence_masks(4) as masks:
        steps = []
        for rows in (4, 4, 2):
            masks.begin_step()
            steps.append([keep_mask(x[:rows], 0.5, per_sequence=True) for _ in range(2)])
        fresh = keep_mask(x, 0.5, per_sequence=False)
    assert not torch.equal(steps[0][0], steps[0][1])
    assert not torch.equal(steps[0][0], fresh)
    for place in range(2):
        assert torch.equal(steps[1][place], steps[0][place])
        assert torch.equal(steps[2][place], steps[0][place][:2])


def test_masks_belong_to_sequences_whatever_the_order_of_the_loop():
    x, order = torch.ones(4, 32), torch.tensor([2, 0, 3, 1])
    drawn = []
    for given in (None, order):
        torch.manual_seed(1)
        with sequence_masks(4, given):
            drawn.append(keep_mask(x, 0.5, per_sequence=True))
    assert torch.equal(drawn[1], drawn[0][order])


def test_a_run_within_a_run_has_masks_of_its_own():
    x = torch.ones(2, 32)
    with sequence_masks(2):
        outer = keep_mask(x, 0.5, per_sequence=True)
        with sequence_masks(2):
            inner = keep_mask(x, 0.5, per_sequence=True)
    assert not torch.equal(outer, inner)


def test_a_trace_keeps_two_calls_apart():
    def both(x):
        return keep_mask(x, 0.5, per_sequence=True) + keep_mask(x, 0.5, per_sequence=True)

    graph = make_fx(both)(torch.ones(2, 3)).graph
    calls = [node for node in graph.nodes if node.target is torch.ops.unpad.keep_mask.default]
    assert len(calls) == 2


def test_vmap_draws_for_every_sample_or_one_for_all_as_it_is_told():
    cell = Dropout(GRUCell(3, 4), input=0.5, same_over_time=True)
    x, offsets, state = torch.randn(4, 3), torch.tensor([0, 3, 4]), torch.zeros(2, 4)

    def run(x):
        return eager.run(cell, x, offsets, state)[0]

    samples = x.expand(6, 4, 3)
    assert len(torch.func.vmap(run, randomness="different")(samples).unique(dim=0)) > 1
    assert len(torch.func.vmap(run, randomness="same")(samples).unique(dim=0)) == 1
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(run)(samples)
