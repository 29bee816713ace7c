"""What users of recurrent libraries reported about packing, ragged input and empty sequences.

One test for each report, named after what its user saw. The oracle is each sequence alone, in
float64: a plain loop over the cell, or torch.nn's layer on that one row.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence
from torch.utils.data import DataLoader

import unpad
from oracle import assert_close, loop, offsets_of
from reports import UNSORTED, each_layer
from torch_pairs import flat
from unpad import Ragged
from unpad.nn import GRU, LSTM, RNN, Recurrent


def twins(ours: Any, theirs: Any, *sizes: int, **options: Any) -> tuple[nn.Module, nn.Module]:
    """Our layer and torch's with the same weights, in float64."""
    reference = theirs(*sizes, batch_first=True, **options).double()
    layer = ours(*sizes, batch_first=True, **options).double()
    layer.load_state_dict(reference.state_dict())
    return layer, reference


def rows_of(lengths: list[int], width: int = 3) -> list[Tensor]:
    return [torch.randn(n, width, dtype=torch.float64, requires_grad=True) for n in lengths]


def alone(reference: nn.Module, rows: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Each row of at least one step by itself: outputs, and final states joined over the rows."""
    results = [reference(row[None]) for row in rows]
    finals = zip(*(flat(state) for _, state in results), strict=True)
    return [output[0] for output, _ in results], [torch.cat(leaf, 1) for leaf in finals]


def gradients(loss: Tensor, inputs: Any) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(inputs), allow_unused=True, retain_graph=True)
    pairs = zip(found, inputs, strict=True)
    return [torch.zeros_like(x) if g is None else g for g, x in pairs]


def loss_of(outputs: list[Tensor], finals: Any) -> Tensor:
    return sum((o.square().sum() for o in outputs), torch.zeros(())) + sum(
        leaf.sin().sum() for leaf in finals
    )


# 1a. Packing, ragged input, lengths --------------------------------------------------------------


@each_layer
def test_1_callers_had_to_sort_by_length_and_unsort_everything(ours: Any, theirs: Any) -> None:
    layer, reference = twins(ours, theirs, 3, 4)
    rows = rows_of(UNSORTED)
    output, final = layer(Ragged.from_list(rows))
    outputs, finals = alone(reference, rows)
    for mine, expected in zip([*output, *flat(final)], [*outputs, *finals], strict=True):
        assert_close(mine, expected, 1e-10)
    mine = gradients(loss_of(output.to_list(), flat(final)), [*rows, *layer.parameters()])
    wanted = gradients(loss_of(outputs, finals), [*rows, *reference.parameters()])
    for gradient, expected in zip(mine, wanted, strict=True):
        assert_close(gradient, expected, 1e-10)
    order = [2, 0, 3, 1]
    shuffled, shuffled_final = layer(Ragged.from_list([rows[i] for i in order]))
    assert shuffled.equal(output[order])
    for leaf, expected in zip(flat(shuffled_final), flat(final), strict=True):
        assert torch.equal(leaf, expected[:, order])


@each_layer
def test_2_rows_were_mixed_up_silently_after_sorting(ours: Any, theirs: Any) -> None:
    rows = [torch.full((n, 1), float(i)).requires_grad_() for i, n in enumerate(UNSORTED)]
    _, final = ours(1, 4)(Ragged.from_list(rows))
    for i in range(len(rows)):
        reached = gradients(flat(final)[0][0, i].sum(), rows)
        assert [bool(g.any()) for g in reached] == [j == i for j in range(len(rows))]


def test_3_the_error_did_not_name_what_to_do() -> None:
    with pytest.raises(ValueError, match="lengths") as caught:
        LSTM(3, 4, batch_first=True)(torch.zeros(2, 5, 3), lengths=[6, 1])
    for part in ("argument `lengths`", "got 6 for row 0", "allowed: 0 to 5", "remedy: "):
        assert part in str(caught.value)


def test_4_the_docs_did_not_say_what_order_things_come_in() -> None:
    for page in (RNN.forward, Recurrent.forward, unpad.dynamic_rnn):
        assert "past the end" in str(page.__doc__)
    assert "Rows are in the input's order" in " ".join(str(Recurrent.forward.__doc__).split())


@pytest.mark.parametrize(
    "form",
    [list, tuple, np.array, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)],
    ids=["list", "tuple", "numpy", "int64", "int32"],
)
def test_5_lengths_elsewhere_than_expected_were_refused(form: Callable[[Any], Any]) -> None:
    layer, x = GRU(3, 4, batch_first=True), torch.randn(4, 5, 3)
    expected = layer(Ragged.from_padded(x, UNSORTED))
    output, final = layer(x, lengths=form(UNSORTED))
    assert torch.equal(output, expected[0].to_padded())
    assert torch.equal(final, expected[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_6_lengths_and_indices_had_to_be_on_different_devices() -> None:
    layer, x = GRU(3, 4, batch_first=True).cuda(), torch.randn(4, 5, 3, device="cuda")
    here, there = (layer(x, lengths=torch.tensor(UNSORTED).to(at))[0] for at in ("cpu", "cuda"))
    assert torch.equal(here, there)


def test_7_the_container_fell_apart_when_moved_pinned_or_copied() -> None:
    ragged = Ragged.from_list([torch.randn(n, 2) for n in (2, 0, 3)])
    dataset = [ragged[i : i + 1] for i in range(3)]
    for back in (
        ragged.to("cpu"),
        ragged.cpu(),
        ragged.double().float(),
        ragged.detach(),
        pickle.loads(pickle.dumps(ragged)),
        copy.deepcopy(ragged),
        next(iter(DataLoader(dataset, batch_size=3))),
        next(iter(DataLoader(dataset, batch_size=3, num_workers=2))),
    ):
        assert isinstance(back, Ragged)
        assert back.equal(ragged)
    with torch.device("meta"):  # a default device elsewhere
        assert GRU(2, 3).to_empty(device="cpu")(ragged)[0].lengths.tolist() == [2, 0, 3]


def test_8_activations_linears_and_sums_needed_unpacking() -> None:
    rows = rows_of(UNSORTED)
    a = Ragged.from_list(rows)
    linear = nn.Linear(3, 2).double()
    for result, function in ((linear(a), linear), (torch.tanh(a), torch.tanh)):
        for mine, row in zip(result, rows, strict=True):
            assert_close(mine, function(row), 1e-12)
    assert torch.equal((a + a)[1], rows[1] * 2)
    with pytest.raises(unpad.ArgumentError, match=r"lengths \[5, 1, 4\].*lengths \[2, 5, 1\]"):
        a[:3] + a[1:]


def test_9_rollouts_of_1_to_3000_steps_wasted_memory_and_length_0_was_refused() -> None:
    code = (
        "import resource, torch\n"
        "from unpad.nn import GRU\n"
        "layer = GRU(64, 64); layer([torch.zeros(2, 64)])[0][0].sum().backward()\n"
        "rows = [torch.zeros(n, 64) for n in [1] * 300 + [3000, 0, 2]]\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "output, _ = layer(rows)\n"
        "sum(row.sum() for row in output).backward()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    grown, padded = int(done.stdout), 303 * 3000 * 64 * 4 // 1024
    assert grown < padded / 4, f"grew by {grown} KiB; one padded tensor takes {padded} KiB"


def test_10_the_docs_promised_operations_that_raised() -> None:
    """tests/test_ragged_functions.py calls every entry; the page lists exactly these."""
    ragged = Ragged(torch.rand(3, 2), [0, 1, 3])
    for name in unpad.ragged.supported_functions()["elementwise"]:
        assert unpad.ragged.functions.objects_named(name), name
    with pytest.raises(unpad.ArgumentTypeError, match=r"docs/ragged\.md"):
        torch.sort(ragged)


def test_11_and_12_ragged_inputs_and_targets_could_not_train() -> None:
    """A tagger on sentences of 3 to 200 words, with no padding step in its code."""
    sentences = [torch.randint(0, 10, (n,)) for n in (3, 200, 17, 60, 5, 90)]
    x = Ragged.from_list(sentences)
    y = x % 2
    embed, layer, score = nn.Embedding(10, 8), GRU(8, 16, bidirectional=True), nn.Linear(32, 2)
    parameters = [*embed.parameters(), *layer.parameters(), *score.parameters()]
    optimizer = torch.optim.Adam(parameters, 0.02)

    def logits() -> Ragged:
        return score(layer(embed(x))[0])

    by_hand = [F.cross_entropy(p, t, reduction="sum") for p, t in zip(logits(), y, strict=True)]
    assert_close(F.cross_entropy(logits(), y), sum(by_hand) / x.num_tokens, 1e-6)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(logits(), y).backward()
        optimizer.step()
    assert (logits().argmax(-1) == y).values.float().mean() > 0.99


def test_13_sequences_of_sequences_failed_on_ragged_input() -> None:
    """Characters in words of 0 to 4 in sentences of 0 to 3, encoded twice; against rows alone."""
    sentences = [[[1, 2, 3, 4], [5], []], [], [[], [6, 7]], [[8, 9, 1]]]
    sizes = [len(sentence) for sentence in sentences]
    embed = nn.Embedding(10, 3).double()
    words_layer, words_alone = twins(GRU, nn.GRU, 3, 4)
    sentence_layer, sentences_alone = twins(LSTM, nn.LSTM, 4, 2)

    words = Ragged.from_list([word for sentence in sentences for word in sentence]).long()
    _, word_state = words_layer(embed(words))
    _, (mine, _) = sentence_layer(Ragged.from_lengths(word_state[0], sizes))

    expected = []
    for sentence in sentences:
        vectors = [
            words_alone(embed(torch.tensor(w)[None]))[1][0, 0] if w else torch.zeros(4).double()
            for w in sentence
        ]
        stacked = torch.stack(vectors)[None] if vectors else None
        h = torch.zeros(1, 2).double() if stacked is None else sentences_alone(stacked)[1][0][0]
        expected.append(h)
    wanted = torch.cat(expected)[None]
    assert_close(mine, wanted, 1e-10)
    ours = [embed.weight, *words_layer.parameters(), *sentence_layer.parameters()]
    references = [embed.weight, *words_alone.parameters(), *sentences_alone.parameters()]
    for gradient, reference in zip(
        gradients(mine.sin().sum(), ours), gradients(wanted.sin().sum(), references), strict=True
    ):
        assert_close(gradient, reference, 1e-10)


def test_19_unpacking_padded_to_the_local_longest_only() -> None:
    ragged = Ragged.from_list([torch.ones(2), torch.ones(3)])
    padded = ragged.to_padded(total_length=6, value=-1)
    assert padded.tolist() == [[1, 1, -1, -1, -1, -1], [1, 1, 1, -1, -1, -1]]
    with pytest.raises(ValueError, match=r"total_length.*at least 3"):
        ragged.to_padded(total_length=2)


def shipped_cells() -> dict[str, Callable[[], nn.Module]]:
    un = unpad.nn
    return {
        "RNNCell": lambda: un.RNNCell(3, 4),
        "RNNCell relu": lambda: un.RNNCell(3, 4, nonlinearity="relu"),
        "GRUCell": lambda: un.GRUCell(3, 4),
        "GRUCell reset before": lambda: un.GRUCell(3, 4, reset_after=False),
        "LSTMCell": lambda: un.LSTMCell(3, 4),
        "LSTMCell with all": lambda: un.LSTMCell(
            3, 4, peepholes=True, proj_size=2, cell_clip=0.5, proj_clip=0.3, forget_bias=1.0
        ),
        "LayerNormLSTMCell": lambda: un.LayerNormLSTMCell(3, 4),
        "Stack": lambda: un.Stack([un.GRUCell(3, 4), un.LSTMCell(4, 2)]),
        "Residual": lambda: un.Residual(un.GRUCell(3, 3)),
        "Dropout": lambda: un.Dropout(un.GRUCell(3, 4), input=0.5).eval(),
        "Zoneout": lambda: un.Zoneout(un.LSTMCell(3, 4), (0.1, 0.3)).eval(),
    }


@pytest.mark.parametrize("name", shipped_cells())
def test_20_specialised_cells_did_not_take_lengths(name: str) -> None:
    cell = shipped_cells()[name]().double()
    x = torch.randn(3, 4, 3, dtype=torch.float64)
    output, final = unpad.dynamic_rnn(cell, x, [1, 4, 2])
    values = Ragged.from_padded(x, [1, 4, 2]).values
    start = cell.initial_state(3)
    expected, expected_final, _ = loop(cell, values, offsets_of([1, 4, 2]), start)
    assert_close(output, Ragged.from_lengths(expected, [1, 4, 2]).to_padded(), 1e-10)
    flat = torch.utils._pytree.tree_leaves
    for leaf, wanted in zip(flat(final), flat(expected_final), strict=True):
        assert_close(leaf, wanted, 1e-10)


# 1b. Zero length and empty batches ---------------------------------------------------------------


@each_layer
def test_21_words_of_length_0_were_refused(ours: Any, theirs: Any) -> None:
    layer = ours(3, 4).double()
    h0 = [torch.randn(1, 4, 4).double().requires_grad_() for _ in range(2 if ours is LSTM else 1)]
    given = tuple(h0) if ours is LSTM else h0[0]
    output, final = layer(Ragged.from_list(rows_of([0, 3, 0, 2])), given)
    assert output.lengths.tolist() == [0, 3, 0, 2]
    for leaf, start in zip(flat(final), h0, strict=True):
        assert torch.equal(leaf[:, [0, 2]], start[:, [0, 2]])
        weights = torch.randn(4).double()
        (gradient,) = gradients((leaf[0, 0] * weights).sum(), [start])
        expected = torch.zeros_like(start)
        expected[0, 0] = weights
        assert torch.equal(gradient, expected)


def test_22_lengths_clamped_to_1_fed_a_pad_into_the_model() -> None:
    layer, x = GRU(3, 4, batch_first=True), torch.randn(2, 3, 3)
    poisoned = x.clone()
    poisoned[0] = float("nan")
    _, empty = layer(poisoned, lengths=[0, 3])
    _, clamped = layer(x, lengths=[1, 3])
    assert empty[0, 0].tolist() == [0] * 4
    assert not torch.equal(empty[0, 0], clamped[0, 0])
    # To the bit on the native engine (test_bitwise); torch's products differ with the batch.
    assert_close(empty[0, 1], clamped[0, 1], 1e-6)


def test_23_windows_without_an_observation_could_not_be_packed() -> None:
    rows = [torch.zeros(0, 3), torch.randn(2, 3), torch.zeros(0, 3)]
    ragged = Ragged.from_list(rows)
    assert ragged.lengths.tolist() == [0, 2, 0]
    assert torch.equal(ragged[1], rows[1])
    output, final = LSTM(3, 4)(Ragged.from_list([torch.zeros(0, 3)] * 2))
    assert (output.values.shape, final[0].shape) == ((0, 4), (1, 2, 4))


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
@each_layer
def test_24_a_batch_of_nothing_but_empty_sequences_raised(
    ours: Any, theirs: Any, options: dict[str, Any]
) -> None:
    layer = ours(3, 4, **options)
    places = 2 if options else 1
    h0 = [torch.randn(places, 3, 4, requires_grad=True) for _ in range(2 if ours is LSTM else 1)]
    x = torch.full((5, 3, 3), float("nan"))
    output, final = layer(x, tuple(h0) if ours is LSTM else h0[0], lengths=[0, 0, 0])
    assert not output.any()
    for leaf, start in zip(flat(final), h0, strict=True):
        assert torch.equal(leaf, start)
    sum(leaf.sum() for leaf in flat(final)).backward()
    assert all(torch.equal(start.grad, torch.ones_like(start)) for start in h0)
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("lengths", [[], [0, 0]], ids=["no row", "no token"])
@each_layer
def test_25_an_empty_tensor_gave_an_error_or_nan(
    ours: Any, theirs: Any, lengths: list[int]
) -> None:
    model, score = ours(3, 4), nn.Linear(4, 2)
    parameters = [*model.parameters(), *score.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    output, final = model(Ragged.from_lengths(torch.zeros(0, 3), lengths))
    assert output.values.shape == (0, 4)
    assert flat(final)[0].shape == (1, len(lengths), 4)
    targets = output.detach().map(lambda v: v.new_zeros(0, dtype=torch.int64))
    F.cross_entropy(score(output), targets).backward()
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in parameters)


def test_26_inference_on_an_empty_selection_failed() -> None:
    ragged = Ragged.from_list([torch.randn(n, 3) for n in (2, 3)])
    chosen = ragged[ragged.lengths > 10]
    for layer in (GRU(3, 4), Recurrent([unpad.nn.LSTMCell(3, 4)], bidirectional=True)):
        output, _ = layer.eval()(chosen)
        assert len(output) == 0
        assert output.last().shape == (0, *output.feature_shape)
    assert GRU(3, 4)([])[0] == []


def test_148_a_decoder_could_not_repeat_the_code_to_each_rows_own_length() -> None:
    ragged = Ragged.from_list([torch.randn(n, 2) for n in (100, 6, 31)])
    encoder, decoder, out = GRU(2, 5), GRU(5, 5), nn.Linear(5, 2)
    _, code = encoder(ragged)
    rebuilt = out(decoder(Ragged.repeat_like(code[0], ragged))[0])
    assert rebuilt.lengths.tolist() == [100, 6, 31]
    errors = [((a - b) ** 2).sum() for a, b in zip(rebuilt, ragged, strict=True)]
    assert_close(F.mse_loss(rebuilt, ragged), sum(errors) / (137 * 2), 1e-6)


def test_a_packed_sequence_comes_back_packed_and_unpacks_with_torch() -> None:
    layer, reference = twins(LSTM, nn.LSTM, 3, 4)
    packed = Ragged.from_list(rows_of(UNSORTED)).to_packed()
    mine, theirs = layer(packed)[0], reference(packed)[0]
    left, right = (pad_packed_sequence(p, batch_first=True) for p in (mine, theirs))
    assert_close(left[0], right[0], 1e-10)
    assert left[1].tolist() == UNSORTED
