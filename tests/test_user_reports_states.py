"""What users of recurrent libraries reported about directions, states, arguments and errors.

One test for each report, named after what its user saw. The oracle is each sequence alone, in
float64: a plain loop over the cell, or torch.nn's layer on that one row.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import unpad
from oracle import assert_close, loop
from reports import UNSORTED, HandGRU, each_layer
from torch_pairs import flat
from unpad import Ragged
from unpad.nn import GRU, LSTM, RNN, GRUCell, Recurrent

# 1i. Both directions -----------------------------------------------------------------------------


def test_99_the_backward_pass_started_in_the_padding() -> None:
    """A palindrome beside a longer row, the directions' weights tied: the states are equal."""
    layer = LSTM(1, 4, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.fill_(1.0) if "bias" in name else None
            if name.endswith("_reverse"):
                parameter.copy_(layer.get_parameter(name.removesuffix("_reverse")))
    x = torch.full((2, 6, 1), float("nan")).double()
    x[0, :3, 0] = torch.tensor([2.0, 4.0, 2.0])
    x[1, :, 0] = torch.arange(6.0)
    output, (h, _) = layer(x, lengths=[3, 6])
    assert torch.equal(h[0, 0], h[1, 0])
    assert_close(output[0, :3, :4], output[0, :3, 4:].flip(0), 1e-12)
    assert not output[0, 3:].any()


def test_100_the_last_step_was_the_wrong_backward_vector() -> None:
    layer = Recurrent(GRUCell(3, 4), bidirectional=True).double()
    ragged = Ragged.from_lengths(torch.randn(12, 3).double(), UNSORTED)
    output, final = layer(ragged)
    forward, backward = output.values.split(4, -1)
    assert torch.equal(final.forward, output.with_values(forward).last())
    assert torch.equal(final.backward, output.with_values(backward).first())
    _, wanted, _ = loop(
        layer.backward_cells[0], ragged.values, ragged.offsets, torch.zeros(4, 4).double(),
        reverse=True,
    )  # fmt: skip
    assert_close(final.backward, wanted, 1e-10)


@each_layer
def test_102_masked_bidirectional_layers_were_wrong_or_crashed(ours: Any, theirs: Any) -> None:
    """Pads left, right and both sides: two layers, of which the second sees no pad of the first."""
    reference = theirs(3, 4, 2, bidirectional=True, batch_first=True).double()
    layer = ours(3, 4, 2, bidirectional=True).double()
    layer.load_state_dict(reference.state_dict())
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    x = torch.where(mask.bool()[..., None], torch.randn(4, 5, 3), float("nan")).double()
    output, final = layer(Ragged.from_mask(x, mask))
    for i, row in enumerate(output):
        wanted, wanted_final = reference(x[i, mask[i].bool()][None])
        assert_close(row, wanted[0], 1e-10)
        for leaf, right in zip(flat(final), flat(wanted_final), strict=True):
            assert_close(leaf[:, i], right[:, 0], 1e-10)


@each_layer
def test_103_lengths_were_optional_yet_required(ours: Any, theirs: Any) -> None:
    layer, x = ours(3, 4, bidirectional=True, batch_first=True), torch.randn(2, 5, 3)
    h0 = torch.randn(2, 2, 4)
    given = (h0, h0 + 1) if ours is LSTM else h0
    without, with_lengths = layer(x, given), layer(x, given, lengths=[5, 5])
    assert torch.equal(without[0], with_lengths[0])
    for left, right in zip(flat(without[1]), flat(with_lengths[1]), strict=True):
        assert left.shape == (2, 2, 4)
        assert torch.equal(left, right)


# 1j. API, errors, states -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        ([3, -1], ValueError),
        ([3, 9], ValueError),
        ([3.0, 2.0], TypeError),
        ([3], ValueError),
        ([[3], [2]], ValueError),
        ([True, False], TypeError),
        (torch.tensor([3.0, 2.0]), TypeError),
        (5, TypeError),
    ],
    ids=str,
)
def test_104_wrong_lengths_gave_unrelated_errors_or_killed_the_process(
    lengths: Any, error: type[Exception]
) -> None:
    x = torch.randn(2, 5, 3)
    cell = HandGRU(3, 4)

    def never(*_: Any) -> None:
        raise AssertionError("the cell was called")

    cell.forward = never  # type: ignore[method-assign]
    layer = GRU(3, 4, batch_first=True)
    for name, call in (
        ("lengths", lambda: layer(x, lengths=lengths)),
        ("lengths", lambda: Recurrent(cell)(x, lengths=lengths)),
        ("sequence_length", lambda: unpad.dynamic_rnn(cell, x, lengths)),
        ("lengths", lambda: Ragged.from_padded(x, lengths)),
    ):
        with pytest.raises(error, match=f"argument `{name}`"):
            call()


def test_105_the_last_batch_is_smaller_and_the_kept_state_no_longer_fits() -> None:
    layer, recurrent = GRU(3, 4), Recurrent(GRUCell(3, 4))
    _, kept = layer([torch.randn(2, 3)] * 4)
    with pytest.raises(ValueError, match=r"hx.*\[1, 4, 4\].*hx\[:, :n\]"):
        layer([torch.randn(2, 3)] * 3, kept)
    assert layer([torch.randn(2, 3)] * 3, kept[:, :3])[1].shape == (1, 3, 4)
    _, kept = recurrent([torch.randn(2, 3)] * 4)
    with pytest.raises(ValueError, match=r"initial_state.*select_rows"):
        recurrent([torch.randn(2, 3)] * 3, kept)


def test_106_batch_first_applied_to_data_and_not_to_states() -> None:
    """One rule: as in torch, states of RNN, GRU and LSTM are [layers, B, H] either way."""
    for batch_first in (True, False):
        _, h = GRU(3, 4, 3, batch_first=batch_first)(torch.randn(2, 2, 3))
        assert h.shape == (3, 2, 4)
    assert "[layers * directions, B, H]" in str(RNN.forward.__doc__)


def test_107_dropout_did_nothing_for_one_layer_silently() -> None:
    with pytest.warns(UserWarning, match="dropout=0.5 does nothing with num_layers=1"):
        GRU(3, 4, dropout=0.5)
    layer, x = GRU(3, 4, 2, dropout=0.5), torch.randn(5, 2, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    assert torch.equal(layer.eval()(x)[0], layer(x)[0])


def test_108_the_forget_bias_was_doubled_by_the_second_bias() -> None:
    layer = LSTM(3, 4, 2, forget_bias=1.0, init="orthogonal")
    for place in (0, 1):
        total = layer.get_parameter(f"bias_ih_l{place}") + layer.get_parameter(f"bias_hh_l{place}")
        assert total[4:8].tolist() == [1.0] * 4
        for gate in layer.get_parameter(f"weight_hh_l{place}").split(4):
            assert_close(gate @ gate.T, torch.eye(4), 1e-5)


def test_109_layers_could_not_have_widths_of_their_own() -> None:
    layer = Recurrent([GRUCell(3, 16), GRUCell(16, 8), GRUCell(8, 4)])
    output, final = layer(Ragged.from_lengths(torch.randn(12, 3), UNSORTED))
    assert output.feature_shape == (4,)
    assert [leaf.shape for leaf in final] == [(4, 16), (4, 8), (4, 4)]


def test_110_predicting_one_sequence_needed_dummy_rows() -> None:
    layer = GRU(3, 4)
    rows = [torch.randn(6, 3) for _ in range(8)]
    state = None
    for window in Ragged.from_list(rows).chunks(2):
        _, state = layer(window, state)
    _, single = layer([rows[5]])
    assert_close(state[:, 5], single[:, 0], 1e-6)
    assert layer([torch.randn(1, 3)], state[:, 5:6])[1].shape == (1, 1, 4)


@each_layer
def test_112_there_was_no_initial_state_and_not_all_final_ones(ours: Any, theirs: Any) -> None:
    layer = ours(2, 3, 2).double()
    h0 = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    ragged = Ragged.from_lengths(torch.randn(5, 2).double(), [3, 0, 2])

    def run(h0: Tensor) -> tuple[Tensor, ...]:
        output, final = layer(ragged, (h0, h0.cos()) if ours is LSTM else h0)
        return output.values, *flat(final)

    assert torch.autograd.gradcheck(run, h0)
    learned = Recurrent(GRUCell(2, 3), learned_initial_state=True)
    learned([torch.randn(2, 2)] * 4)[0][0].sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in learned.initial)


@each_layer
def test_114_flattened_weights_broke_copies_replicas_and_repeated_calls(
    ours: Any, theirs: Any
) -> None:
    layer, x = ours(3, 4, 2), torch.randn(5, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = layer(x)[0]
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(copied(x)[0], wanted)
        other = ours(3, 4, 2)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(other(x)[0], wanted)
        first, second = layer(x)[0], layer(x * 2)[0]
        (first.sum() + second.sum()).backward()
        with torch.no_grad():
            layer(x)
        swapped = {name: torch.zeros_like(p) for name, p in layer.named_parameters()}
        assert not torch.func.functional_call(layer, swapped, (x,))[0].any()
        assert layer.double()(x.double())[0].dtype == torch.float64


def test_115_backward_twice_or_with_frozen_weights_failed() -> None:
    layer, x = LSTM(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    loss = layer(x)[0].square().sum()
    once = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(once, torch.autograd.grad(loss, x)[0])
    layer.weight_hh_l0.requires_grad_(False)
    layer(x)[0].square().sum().backward()
    assert layer.weight_hh_l0.grad is None
    assert layer.weight_ih_l0.grad is not None
    layer.requires_grad_(False)
    assert torch.equal(torch.autograd.grad(layer(x)[0].square().sum(), x)[0], once)


def test_117_the_docs_conflicted_on_what_comes_after_the_end() -> None:
    """The output past the end is 0, the state is that of the last real step."""
    x = torch.randn(2, 6, 3)
    for call in (
        lambda: GRU(3, 4, batch_first=True)(x, lengths=[2, 6]),
        lambda: unpad.dynamic_rnn(GRUCell(3, 4), x, [2, 6]),
    ):
        output, final = call()
        assert output.shape == (2, 6, 4)
        assert not output[0, 2:].any()
        assert torch.equal(final.reshape(2, 4)[0], output[0, 1])


def test_118_masks_with_holes_were_refused() -> None:
    layer, x = GRU(3, 4), torch.randn(1, 3, 3)
    output, final = layer(Ragged.from_mask(x, torch.tensor([[1, 0, 1]])))
    wanted, wanted_final = layer([x[0, [0, 2]]])
    assert torch.equal(output[0], wanted[0])
    assert torch.equal(final, wanted_final)
