"""Rows that no path spells: found by their number, an error or skipped, never inf or NaN."""

from __future__ import annotations

import warnings

import pytest
import torch

from unpad import ArgumentError, Ragged
from unpad.functional import ctc_loss, ctc_unalignable

LENGTHS = [3, 5, 1, 4]
LABELS = [[1, 1, 2], [1, 1, 2], [1, 2], [2, 1, 2, 1]]  # rows 0 and 2 are a step short


def batch():
    logits = Ragged.from_list([torch.randn(n, 4) for n in LENGTHS])
    return logits.with_values(logits.values.requires_grad_())


def test_a_repeat_needs_a_step_more():
    assert ctc_unalignable(LENGTHS, LABELS).tolist() == [0, 2]
    assert ctc_unalignable([4, 2], [[1, 1, 2], [1, 2]]).tolist() == []
    assert ctc_unalignable([], []).tolist() == []
    # A repeat across two rows is none.
    assert ctc_unalignable([1, 1], [[1], [1]]).tolist() == []


def test_without_merging_equal_labels_need_no_blank_between():
    logits = Ragged(torch.randn(3, 4), [0, 3])
    assert ctc_loss(logits, [[1, 1, 1]], merge_repeated=False).isfinite()
    with pytest.raises(ArgumentError, match="row 0 has 3 steps and needs 5"):
        ctc_loss(logits, [[1, 1, 1]])


def test_the_error_names_the_rows_and_what_to_do():
    with pytest.raises(ArgumentError) as refused:
        ctc_loss(batch(), LABELS)
    message = str(refused.value)
    assert "rows 0, 2 that cannot be aligned" in message
    assert "row 0 has 3 steps and needs 4" in message
    assert 'unalignable="skip"' in message


def test_skipped_rows_cost_nothing_and_change_nothing_for_the_others():
    logits = batch()
    losses = ctc_loss(logits, LABELS, reduction="none", unalignable="skip")
    some = ctc_loss(logits[[1, 3]], [LABELS[1], LABELS[3]], reduction="none")
    assert losses[[0, 2]].tolist() == [0.0, 0.0]
    assert torch.equal(losses[[1, 3]], some)
    found = torch.autograd.grad(losses.sum(), logits.values, retain_graph=True)[0]
    wanted = torch.autograd.grad(some.sum(), logits.values)[0]
    assert torch.equal(found, wanted)
    assert not found[:3].any()
    assert not found[8].any()


def test_the_mean_is_over_the_rows_that_count():
    logits = batch()
    losses = ctc_loss(logits, LABELS, reduction="none", unalignable="skip")
    assert ctc_loss(logits, LABELS, unalignable="skip") == losses.sum() / 2


def test_a_batch_of_nothing_but_unalignable_rows_costs_nothing():
    logits = batch()
    loss = ctc_loss(logits, [[1] * 9] * 4, unalignable="skip")
    assert loss == 0
    loss.backward()
    assert not logits.values.grad.any()


def test_a_warning_names_the_rows_by_choice():
    with pytest.warns(RuntimeWarning, match="rows 0, 2 that cannot be aligned"):
        warned = ctc_loss(batch(), LABELS, unalignable="warn")
    assert warned.isfinite()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ctc_loss(batch(), LABELS, unalignable="skip")


def test_the_warning_points_at_the_caller():
    with pytest.warns(RuntimeWarning) as caught:
        ctc_loss(batch(), LABELS, unalignable="warn")
    assert caught[0].filename == __file__


def test_skipped_rows_are_not_read():
    logits = batch().detach()
    with torch.no_grad():
        logits.values[:3] = torch.nan
    logits.values.requires_grad_()
    loss = ctc_loss(logits, LABELS, unalignable="skip")
    assert loss.isfinite()
    loss.backward()
    assert logits.values.grad.isfinite().all()


def forbid(logits, row, label):
    values = logits.values.detach().clone()
    begin, end = logits.offsets[row], logits.offsets[row + 1]
    values[begin:end, label] = -torch.inf
    return logits.with_values(values.requires_grad_())


def test_a_label_that_the_logits_forbid_cannot_be_aligned_either():
    logits = forbid(batch(), 3, 2)
    labels = [[1], [1, 1, 2], [1], [2, 1]]
    with pytest.raises(ArgumentError, match="row 3 that cannot be aligned: -inf"):
        ctc_loss(logits, labels)
    losses = ctc_loss(logits, labels, reduction="none", unalignable="skip")
    assert losses[3] == 0
    assert losses.isfinite().all()
    losses.sum().backward()
    assert logits.values.grad.isfinite().all()
    assert not logits.values.grad[9:].any()


def test_a_class_that_the_logits_forbid_does_no_harm_elsewhere():
    logits = forbid(batch(), 3, 3)
    losses = ctc_loss(logits, [[1], [1, 1, 2], [1], [2, 1]], reduction="none")
    assert losses.isfinite().all()
    losses.sum().backward()
    assert logits.values.grad.isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_in_a_row_is_named(bad):
    logits = batch().detach()
    logits.values[6, 2] = bad
    with pytest.raises(ArgumentError, match="NaN or inf at step 3 of row 1"):
        ctc_loss(logits, [[1], [1], [1], [1]])
