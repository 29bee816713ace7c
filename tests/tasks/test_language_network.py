"""The network and its batches against plain torch in float64; the softmaxes by themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from unpad.ragged import Ragged
from unpad.tasks.language.batches import LineBatches, StreamBatches
from unpad.tasks.language.module import Descent, clipped, gradients
from unpad.tasks.language.network import LanguageNetwork, detached
from unpad.tasks.language.settings import LanguageSettings, preset

WORDS = 23


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    torch.manual_seed(seed)


def plain(network: LanguageNetwork) -> tuple[nn.Embedding, nn.LSTM]:
    """torch's modules with the same weights, in float64."""
    layers: Any = network.layers
    lstm = nn.LSTM(layers[0].input_size, layers[0].hidden_size, len(layers), batch_first=True)
    state = {
        name.replace("_l0", f"_l{n}"): value
        for n, layer in enumerate(layers)
        for name, value in layer.state_dict().items()
    }
    lstm.load_state_dict(state)
    embedding = nn.Embedding.from_pretrained(network.embedding.weight.detach(), freeze=False)
    return embedding.double(), lstm.double()


def test_carried_state_gives_the_numbers_of_one_long_run() -> None:
    network = LanguageNetwork(LanguageSettings(hidden_size=9, dropout=0.5), WORDS).eval()
    ids = torch.randint(WORDS, (101,))
    embedding, lstm = plain(network)
    weight, bias = network.softmax.weight.double(), network.softmax.bias.double()  # pyright: ignore
    hidden, _ = lstm(embedding(ids[None, :-1]))
    logits = hidden[0] @ weight.T + bias
    expected = nn.functional.cross_entropy(logits, ids[1:], reduction="none")
    state, losses = None, list[Tensor]()
    for begin in range(0, 100, 7):
        window = slice(begin, min(begin + 7, 100))
        rows = Ragged.from_list([ids[window]])
        found, state = network(rows, ids[1:][window], state, reduction="none")
        losses.append(found)
    torch.testing.assert_close(torch.cat(losses).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_window_ends_at_its_beginning() -> None:
    network = LanguageNetwork(LanguageSettings(hidden_size=9, dropout=0.0), WORDS)
    ids = torch.randint(WORDS, (3, 13))
    embedding, lstm = plain(network)
    weight = network.softmax.weight.detach().double().requires_grad_()  # pyright: ignore
    bias = network.softmax.bias.detach().double()  # pyright: ignore
    _, before = lstm(embedding(ids[:, :6]))
    hidden, _ = lstm(embedding(ids[:, 6:12]), tuple(part.detach() for part in before))
    logits = hidden.flatten(0, 1) @ weight.T + bias
    nn.functional.cross_entropy(logits, ids[:, 7:].flatten()).backward()
    _, state = network(Ragged.from_list(list(ids[:, :6])), ids[:, 1:7].flatten())
    loss, _ = network(Ragged.from_list(list(ids[:, 6:12])), ids[:, 7:].flatten(), detached(state))
    loss.backward()
    pairs = [
        (network.embedding.weight.grad, embedding.weight.grad),
        (network.layers[0].weight_hh_l0.grad, lstm.weight_hh_l0.grad),
        (network.layers[1].weight_ih_l0.grad, lstm.weight_ih_l1.grad),
        (network.softmax.weight.grad, weight.grad),  # pyright: ignore[reportAttributeAccessIssue]
    ]
    for found, expected in pairs:
        assert found is not None
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=60)
def test_windows_read_every_token_once_after_the_one_before_it(
    count: int, rows: int, steps: int
) -> None:
    ids = torch.arange(2, 2 + count)
    windows = StreamBatches(ids, 1, rows, steps)
    read = [(x.to_list(), Ragged(y, x.offsets).to_list()) for x, y in windows]
    assert len(read) == len(windows)
    assert all(len(row) <= steps for x, _ in read for row in x)
    pieces = [[torch.cat([window[k][row] for window in read]) for row in range(len(read[0][0]))]
              for k in (0, 1)]  # fmt: skip
    assert torch.equal(torch.cat(pieces[1]), ids)
    assert torch.equal(torch.cat(pieces[0]), torch.cat([torch.tensor([1]), ids[:-1]]))
    lengths = [len(row) for row in pieces[1]]
    assert max(lengths) - min(lengths) <= 1


def test_lines_are_read_whole_in_another_order_each_epoch() -> None:
    lines = [torch.randint(2, WORDS, (n,)) for n in torch.randint(0, 9, (40,)).tolist()]
    ended = Ragged.from_list([torch.cat([line, torch.tensor([1])]) for line in lines])
    batches = LineBatches(ended.values, ended.offsets, 1, tokens=30, lines=8, seed=3)
    orders = list[list[tuple[int, ...]]]()
    for epoch in range(2):
        batches.budget.set_epoch(epoch)
        order = list[tuple[int, ...]]()
        for x, y in batches:
            assert x.num_tokens <= 30
            assert x.batch_size <= 8
            for inputs, targets in zip(x.to_list(), Ragged(y, x.offsets).to_list(), strict=True):
                assert inputs.tolist() == [1, *targets[:-1].tolist()]
                order.append(tuple(targets.tolist()))
        orders.append(order)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert sorted(orders[0]) == sorted(tuple(row.tolist()) for row in ended.to_list())


@pytest.mark.parametrize("same_mask", [True, False])
def test_dropout_has_one_mask_for_all_steps_of_a_sequence_or_one_for_each(same_mask: bool) -> None:
    chosen = LanguageSettings(hidden_size=50, dropout=0.4, same_mask=same_mask)
    network = LanguageNetwork(chosen, WORDS)
    kept = network._drop(Ragged.from_lengths(torch.ones(90, 50), [40, 0, 50]))
    first, _, last = kept.to_list()
    assert kept.values.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    assert bool((first == first[0]).all() and (last == last[0]).all()) == same_mask
    assert not torch.equal(first[0], last[0])
    assert float(kept.values.mean()) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("softmax", ["full", "hierarchical", "adaptive"])
def test_a_softmax_agrees_with_its_own_log_probabilities(softmax: str) -> None:
    network = LanguageNetwork(LanguageSettings(hidden_size=8, softmax=softmax), WORDS).eval()
    hidden, target = torch.randn(60, 8), torch.randint(WORDS, (60,))
    made: Any = network.softmax
    chances = made.log_prob(hidden)
    torch.testing.assert_close(chances.exp().sum(1), torch.ones(60))
    losses = made(hidden, target, reduction="none")
    torch.testing.assert_close(losses, -chances[torch.arange(60), target])
    torch.testing.assert_close(made(hidden, target), losses.mean())
    torch.testing.assert_close(made(hidden, target, reduction="sum"), losses.sum())
    best, words = made.topk(hidden, 3)
    expected, _ = chances.topk(3)
    torch.testing.assert_close(best, expected)
    torch.testing.assert_close(chances.gather(1, words), expected)
    cold = torch.log_softmax(chances[:, :] / 0.5, 1)
    if softmax == "adaptive":
        torch.testing.assert_close(made.log_prob(hidden, temperature=0.5), cold)


@pytest.mark.parametrize("softmax", ["full", "hierarchical"])
def test_tied_weights_are_one_parameter_with_both_gradients(softmax: str) -> None:
    chosen = LanguageSettings(hidden_size=8, softmax=softmax, tied=True, dropout=0.0)
    network = LanguageNetwork(chosen, WORDS)
    assert network.softmax.weight is network.embedding.weight
    ids = Ragged.from_list([torch.tensor([1, 2, 3])])
    network(ids, torch.tensor([4, 5, 6]))[0].backward()
    gradient = network.embedding.weight.grad
    assert gradient is not None
    assert bool((gradient[[1, 2, 3, 4, 5, 6]].abs().sum(1) > 0).all())


@pytest.mark.parametrize(("scale", "most"), [(1.0, 1.0), (3.0, 1.0), (3.0, 1e9), (0.5, 0.0)])
def test_a_step_with_clipping_is_torchs_and_a_row_met_twice_counts_as_its_sum(
    scale: float, most: float
) -> None:
    weights, ids = torch.randn(6, 4), torch.tensor([5, 0, 5, 2])
    dense, sparse = (nn.Embedding(6, 4, sparse=kind) for kind in (False, True))
    for embedding, factor in ((dense, scale), (sparse, 1.0)):
        embedding.weight.data.copy_(weights)
        (factor * embedding(ids) ** 2).sum().backward()
    if most:
        nn.utils.clip_grad_norm_([dense.weight], most)
    torch.optim.SGD(dense.parameters(), lr=0.3).step()
    optimizer = Descent(sparse.parameters(), lr=0.3)
    optimizer.factor = clipped(gradients(sparse.parameters()), scale, most)
    optimizer.step()
    torch.testing.assert_close(sparse.weight, dense.weight)
    assert not torch.equal(sparse.weight, weights)


def test_the_preset_is_the_papers_small_configuration() -> None:
    model, training = preset("zaremba-small")
    assert (model.cell, model.layers, model.hidden_size, model.width) == ("lstm", 2, 200, 200)
    assert (model.init, model.dropout, model.tied) == (0.1, 0.0, False)
    assert (training.steps, training.batch, training.epochs) == (20, 20, 13)
    assert (training.learning_rate, training.decay, training.flat) == (1.0, 0.5, 4)
    assert (training.clip, training.optimizer, training.loss_per) == (5.0, "sgd", "sequence")
    network = LanguageNetwork(model, 50)
    assert all(float(p.detach().abs().max()) <= 0.1 for p in network.parameters())
    assert math.isclose(float(network.embedding.weight.detach().std()), 0.2 / 12**0.5, rel_tol=0.1)
