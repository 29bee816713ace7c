"""Batches under torch's transforms: vmap, grad, jvp and compile see plain tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unpad.ragged import Ragged

OFFSETS = [0, 2, 2, 6]
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda v: Ragged(v, OFFSETS).last(),
    "sum": lambda v: Ragged(v, OFFSETS).sum(),
    "mean": lambda v: Ragged(v, OFFSETS).mean(),
    "max": lambda v: Ragged(v, OFFSETS).max(),
    "reverse": lambda v: Ragged(v, OFFSETS).reverse().values,
    "to_padded": lambda v: Ragged(v, OFFSETS).to_padded(),
    "from_padded": lambda v: Ragged.from_padded(v.reshape(2, 3, -1), [1, 3]).values,
    "tanh": lambda v: (torch.tanh(Ragged(v, OFFSETS)) * 2 + 1).values,
    "chunks": lambda v: Ragged.cat(list(Ragged(v, OFFSETS).chunks(3)), dim=1).values,
}


@pytest.mark.parametrize("name", CALLS)
def test_vmap_and_per_sample_gradients_are_those_of_a_loop(name: str) -> None:
    call = CALLS[name]
    samples = torch.randn(4, 6, 3, dtype=torch.float64)
    together = torch.func.vmap(call)(samples)
    assert torch.equal(together, torch.stack([call(sample) for sample in samples]))
    gradient = torch.func.grad(lambda v: call(v).sin().sum())
    together = torch.func.vmap(gradient)(samples)
    torch.testing.assert_close(together, torch.stack([gradient(sample) for sample in samples]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", CALLS)
def test_forward_mode_agrees_with_the_jacobian(name: str) -> None:
    call = CALLS[name]
    x, direction = torch.randn(2, 6, 3, dtype=torch.float64)
    _, pushed = torch.func.jvp(call, (x,), (direction,))
    jacobian = torch.func.jacrev(call)(x)
    torch.testing.assert_close(pushed, (jacobian * direction).sum((-1, -2)))


def test_compile_takes_a_batch_in_one_graph_whatever_its_lengths() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def score(x: Ragged) -> Ragged:
        return torch.tanh(model(x)) * 2

    compiled = torch.compile(score, backend="eager", fullgraph=True)
    for lengths in ([2, 0, 4], [5, 1], [3, 3, 3, 0]):
        ragged = Ragged.from_lengths(torch.randn(sum(lengths), 3), lengths)
        torch.testing.assert_close(compiled(ragged).values, score(ragged).values)
