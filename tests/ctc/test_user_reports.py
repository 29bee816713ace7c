"""What users of other libraries report of CTC, row by row of the reports' recipes."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from unpad import ArgumentError, ArgumentTypeError, Ragged
from unpad.functional import ctc_loss


def batch(lengths, classes=4, dtype=torch.float64):
    rows = [torch.randn(n, classes, dtype=dtype) for n in lengths]
    ragged = Ragged.from_list(rows)
    return ragged.with_values(ragged.values.requires_grad_())


def test_empty_targets_have_the_exact_loss_and_a_finite_gradient():
    logits = batch([5])
    loss = ctc_loss(logits, [[]])
    by_hand = -sum(row.log_softmax(-1)[0] for row in logits.values)
    torch.testing.assert_close(loss, by_hand)
    mixed = batch([5, 5])
    losses = ctc_loss(mixed, [[], [1, 2]], reduction="none")
    assert losses.isfinite().all()
    assert torch.autograd.gradcheck(
        lambda v: ctc_loss(mixed.with_values(v), [[], [1, 2]], reduction="none"), (mixed.values,)
    )


def test_sizes_of_zero_never_kill_the_process():
    code = (
        "import itertools, torch\n"
        "from unpad import ArgumentError, Ragged, tf1\n"
        "from unpad.functional import ctc_beam_decode, ctc_greedy_decode, ctc_loss\n"
        "for rows, steps, labels in itertools.product((0, 1, 3), (0, 2), (0, 1)):\n"
        "    x = torch.randn(steps, rows, 4, requires_grad=True)\n"
        "    y = torch.ones(rows, labels, dtype=torch.int32)\n"
        "    try:\n"
        "        loss = tf1.ctc_loss_v2(y, x, [labels] * rows, [steps] * rows)\n"
        "        loss.sum().backward()\n"
        "        print('loss', rows, steps, labels, bool(loss.isfinite().all()))\n"
        "    except ArgumentError as error:\n"
        "        print('error', rows, steps, labels, 'row' in str(error))\n"
        "    for decode in (tf1.ctc_greedy_decoder, tf1.ctc_beam_search_decoder):\n"
        "        decode(x, [steps] * rows)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    wanted = {
        (rows, steps, labels): "error" if rows and labels > steps else "loss"
        for rows, steps, labels in itertools.product((0, 1, 3), (0, 2), (0, 1))
    }
    found = [line.split() for line in done.stdout.splitlines()]
    assert {tuple(map(int, line[1:4])): line[0] for line in found} == wanted
    assert {line[4] for line in found} == {"True"}


def test_an_impossible_row_is_named_and_the_other_rows_keep_their_gradients():
    logits = batch([3, 6])
    labels = [[1, 1, 2], [1, 1, 2]]  # three steps, where four are needed
    with pytest.raises(ArgumentError, match=r"row 0 .* 3 steps and needs 4"):
        ctc_loss(logits, labels)
    loss = ctc_loss(logits, labels, reduction="sum", unalignable="skip")
    found = torch.autograd.grad(loss, logits.values)[0]
    alone = ctc_loss(logits[[1]], labels[1:], reduction="sum")
    assert torch.equal(found, torch.autograd.grad(alone, logits.values)[0])
    assert not found[:3].any()


def test_a_target_as_long_as_the_input_is_finite():
    logits = batch([4])
    loss = ctc_loss(logits, [[1, 2, 3, 1]])
    path = logits.values.log_softmax(-1)[range(4), [1, 2, 3, 1]].sum()
    torch.testing.assert_close(loss, -path)


def test_targets_of_any_integer_dtype_give_one_result():
    logits = batch([6])
    losses = [
        ctc_loss(logits, [torch.tensor([1, 1, 3], dtype=dtype)])
        for dtype in (torch.int32, torch.int64, torch.int16, torch.uint8)
    ]
    assert all(torch.equal(loss, losses[0]) for loss in losses)


def test_the_gradient_scales_with_what_comes_from_above():
    logits = batch([6])
    loss = ctc_loss(logits, [[1, 1, 3]])
    (whole,) = torch.autograd.grad(loss, logits.values, retain_graph=True)
    (half,) = torch.autograd.grad(loss * 0.5, logits.values)
    assert torch.equal(half, 0.5 * whole)


def test_the_gradient_is_true_for_log_probabilities_that_are_not_normalised():
    logits = batch([6])
    shifted = Ragged(logits.values.detach().abs().neg().requires_grad_(), logits.offsets)
    assert torch.autograd.gradcheck(
        lambda v: ctc_loss(shifted.with_values(v), [[1, 1, 3]]), (shifted.values,)
    )


@pytest.mark.parametrize(
    ("kind", "labels", "options"),
    [
        (ArgumentError, [[1, 4]], {}),  # a label of C
        (ArgumentError, [[1, 0]], {}),  # the blank
        (ArgumentError, [[1, -1]], {}),
        (ArgumentError, [[1], [1]], {}),
        (ArgumentError, [[1]], {"blank": 4}),
        (ArgumentTypeError, [[1.0]], {}),
    ],
)
def test_a_bad_argument_is_a_value_error_and_no_segfault(kind, labels, options):
    with pytest.raises(kind) as refused:
        ctc_loss(batch([3]), labels, **options)
    assert isinstance(refused.value, (ValueError, TypeError))


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(ArgumentError, match="add up"):
        ctc_loss(batch([3]), Ragged.from_lengths(torch.tensor([1, 2]), [3]))
    with pytest.raises(ArgumentError, match="add up"):
        Ragged.from_lengths(torch.randn(5, 4), [3, 3])
