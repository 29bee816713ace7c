"""`unpad.tf1`'s CTC against TensorFlow's own numbers, and where it is meant to differ."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from ctc.brute_force import loss as brute_loss
from tf1.golden_files import FOLDER, OWN, cases
from unpad import ArgumentError, ArgumentTypeError, Ragged, tf1

CASES = cases("ctc")
LOSSES = [case for case in CASES if case["function"].endswith("ctc_loss")]
DECODERS = [case for case in CASES if case not in LOSSES]
SECOND = "tf.nn.ctc_loss"


def of(found):
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


def load(case):
    with np.load(FOLDER / case["file"]) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def close(case, group, found, wanted):
    """The manifest's rule."""
    near = case.get("max_abs_float32_minus_float64", {})
    near = near.get(group, 0.0) if isinstance(near, dict) else 0.0
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=max(1e-5, 4 * near))


def sparse(arrays, prefix):
    return tf1.SparseTensor(*(arrays[f"{prefix}/{part}"] for part in tf1.SparseTensor._fields))


def run(case, arrays, logits, **options):
    """Call what TensorFlow was called with."""
    call = dict(case["call"])
    if case["function"] == SECOND:
        call.pop("use_unique", None)
        known = {"logits_time_major": call.pop("time_major"), **call, **options}
        if "labels" in arrays:
            labels, sizes = arrays["labels"], arrays["label_length"]
            return tf1.ctc_loss_v2(labels, logits, sizes, arrays["logit_length"], **known)
        labels = sparse(arrays, "labels")
        return tf1.ctc_loss_v2(labels, logits, None, arrays["logit_length"], **known)
    return tf1.ctc_loss(sparse(arrays, "labels"), logits, arrays["logit_length"], **call)


def unalignable(case, arrays):
    """The rows that no path spells, of which TensorFlow gives inf, 0 or some 708."""
    if case["call"].get("ctc_merge_repeated") is False:
        return []
    labels = case["label_rows"]
    if case["call"].get("preprocess_collapse_repeated"):
        labels = [[y for n, y in enumerate(row) if n == 0 or y != row[n - 1]] for row in labels]
    # A step for each label, and one for the blank between two equal ones.
    least = [len(row) + sum(a == b for a, b in itertools.pairwise(row)) for row in labels]
    lengths = arrays["logit_length"].tolist()
    return [n for n, pair in enumerate(zip(least, lengths, strict=True)) if pair[0] > pair[1]]


@of(LOSSES)
def test_the_golden_loss_and_its_gradient(case):
    arrays = load(case)
    logits = arrays["logits"].requires_grad_()
    rows = unalignable(case, arrays)
    options = {"unalignable": "skip"} if rows and case["function"] == SECOND else {}
    losses = run(case, arrays, logits, **options)
    (losses * arrays["cotangent/losses"]).sum().backward()
    kept = [n for n in range(len(losses)) if n not in rows]
    axis = 1 if case["call"]["time_major"] else 0
    close(case, "losses", losses[kept].detach(), arrays["losses"][kept])
    found, wanted = logits.grad.transpose(0, axis), arrays["grad/logits"].transpose(0, axis)
    close(case, "grad", found[kept], wanted[kept])
    assert not losses[rows].any()
    assert not found[rows].any()


@of([case for case in LOSSES if not case["call"].get("ignore_longer_outputs_than_inputs")])
def test_a_golden_row_that_cannot_be_aligned_is_an_error_that_names_it(case):
    arrays = load(case)
    rows = unalignable(case, arrays)
    if not rows:
        assert run(case, arrays, arrays["logits"]).isfinite().all()
        return
    with pytest.raises(ArgumentError, match=f"{', '.join(map(str, rows))} that cannot be aligned"):
        run(case, arrays, arrays["logits"])


@pytest.mark.skipif(FOLDER != OWN, reason="another folder may hold no such row")
def test_the_golden_cases_hold_rows_that_cannot_be_aligned():
    found = [case["id"] for case in LOSSES if unalignable(case, load(case))]
    assert found, "the cases of TensorFlow's silent rows are gone: the test above tests nothing"


@of(DECODERS)
def test_golden_decoded_paths_and_their_scores(case):
    arrays, call = load(case), dict(case["call"])
    if "greedy" in case["function"]:
        decode, score = tf1.ctc_greedy_decoder, "neg_sum_logits"
    else:
        first = case["function"].startswith("tf.compat.v1")
        decode = tf1.ctc_beam_search_decoder if first else tf1.ctc_beam_search_decoder_v2
        score = "log_probability"
    decoded, found = decode(arrays["inputs"], arrays["sequence_length"], **call)
    close(case, score, found, arrays[score])
    assert len(decoded) == call.get("top_paths", 1)
    for number, path in enumerate(decoded):
        for ours, theirs in zip(path, sparse(arrays, f"decoded/{number}"), strict=True):
            assert torch.equal(ours, theirs)


LENGTHS = [5, 0, 3]
ROWS = [[1, 1, 0], [], [2]]


def padded(dtype=torch.float64, pad=torch.nan):
    x = torch.full((6, 3, 4), pad, dtype=dtype)
    for n, length in enumerate(LENGTHS):
        x[:length, n] = torch.randn(length, 4, dtype=torch.float64).to(dtype)
    return x.requires_grad_()


def expected(x):
    rows = [x[:length, n] for n, length in enumerate(LENGTHS)]
    return torch.stack([brute_loss(row, y, 3) for row, y in zip(rows, ROWS, strict=True)])


def forms():
    indices = torch.tensor([[2, 0], [0, 2], [0, 0], [0, 1]])  # in any order
    values = torch.tensor([2, 0, 1, 1], dtype=torch.int32)
    return {
        "SparseTensor": tf1.SparseTensor(indices, values, torch.tensor([3, 3])),
        "arrays": tf1.SparseTensor(indices.numpy(), values.numpy(), np.array([3, 3])),
        "torch's sparse": torch.sparse_coo_tensor(indices.T, values, (3, 3), check_invariants=True),
        "Ragged": Ragged.from_list([torch.tensor(row, dtype=torch.int64) for row in ROWS]),
        "list": ROWS,
    }


@pytest.mark.parametrize("form", forms())
def test_labels_come_in_every_form_and_pads_are_never_read(form):
    x = padded()
    losses = tf1.ctc_loss(forms()[form], x, LENGTHS)
    torch.testing.assert_close(losses, expected(x))
    losses.sum().backward()
    wanted = torch.autograd.grad(expected(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, wanted)
    assert torch.equal(tf1.ctc_loss_v2(forms()[form], x, None, LENGTHS, blank_index=-1), losses)


def test_ragged_logits_know_their_lengths():
    x = padded()
    ragged = Ragged.from_padded(x, LENGTHS, batch_first=False)
    assert torch.equal(tf1.ctc_loss(ROWS, ragged), tf1.ctc_loss(ROWS, x, LENGTHS))
    for decode in (
        tf1.ctc_greedy_decoder,
        tf1.ctc_beam_search_decoder,
        tf1.ctc_beam_search_decoder_v2,
    ):
        ours, theirs = decode(ragged), decode(x, LENGTHS)
        assert torch.equal(ours[1], theirs[1])
        assert torch.equal(ours[0][0].values, theirs[0][0].values)
    with pytest.raises(ArgumentError, match="know their lengths"):
        tf1.ctc_loss(ROWS, ragged, LENGTHS)


def test_logits_are_another_name_for_inputs():
    x = padded()
    wanted = tf1.ctc_loss(ROWS, x, LENGTHS)
    assert torch.equal(tf1.ctc_loss(ROWS, sequence_length=LENGTHS, logits=x), wanted)
    for both in ({}, {"inputs": x, "logits": x}):
        with pytest.raises(ArgumentError, match="inputs"):
            tf1.ctc_loss(ROWS, sequence_length=LENGTHS, **both)


def test_batch_major_logits_give_the_same():
    x = padded()
    turned = x.transpose(0, 1)
    wanted = tf1.ctc_loss(ROWS, x, LENGTHS)
    assert torch.equal(tf1.ctc_loss(ROWS, turned, LENGTHS, time_major=False), wanted)
    second = tf1.ctc_loss_v2(ROWS, turned, None, LENGTHS, logits_time_major=False, blank_index=-1)
    assert torch.equal(second, wanted)


def test_an_empty_row_of_labels_is_no_error():
    """TensorFlow's sparse op: "Labels length is zero in batch 0"."""
    x = torch.randn(3, 1, 4)
    loss = tf1.ctc_loss([[]], x, [3])
    torch.testing.assert_close(loss[0], -x.log_softmax(-1)[:, 0, -1].sum())


def test_a_repeat_that_lacks_a_step_is_found():
    """TensorFlow counts labels alone, and gives inf for two equal labels in two steps."""
    x = torch.randn(2, 2, 4).requires_grad_()
    with pytest.raises(ArgumentError, match="row 1 that cannot be aligned"):
        tf1.ctc_loss([[0, 1], [1, 1]], x, [2, 2])
    losses = tf1.ctc_loss([[0, 1], [1, 1]], x, [2, 2], ignore_longer_outputs_than_inputs=True)
    losses.sum().backward()
    assert losses[1] == 0
    assert losses[0] > 0
    assert not x.grad[:, 1].any()


def test_collapsed_labels_are_counted_after_they_collapse():
    """TensorFlow counts them before, and refuses three equal labels in two steps."""
    x = torch.randn(2, 1, 4, dtype=torch.float64)
    loss = tf1.ctc_loss([[1, 1, 1]], x, [2], preprocess_collapse_repeated=True)
    torch.testing.assert_close(loss[0], brute_loss(x[:, 0], [1], 3))


@pytest.mark.parametrize("label", [3, 4, -1])
def test_a_label_out_of_range_is_refused_by_its_row(label):
    """TensorFlow drops trailing labels of C - 1 and more, and its dense path gives some number."""
    for call in (
        lambda: tf1.ctc_loss([[0], [1, label]], torch.zeros(4, 2, 4), [4, 4]),
        lambda: tf1.ctc_loss_v2(
            torch.tensor([[0, 0], [1, label]]), torch.zeros(4, 2, 4), [1, 2], [4, 4], blank_index=3
        ),
    ):
        with pytest.raises(ArgumentError, match=f"{label} in row 1"):
            call()


def test_dense_labels_past_their_length_are_not_read():
    x = torch.randn(4, 2, 4)
    labels = torch.tensor([[1, 2, 77], [-5, -5, -5]])
    losses = tf1.ctc_loss_v2(labels, x, [2, 0], [4, 4])
    assert torch.equal(losses, tf1.ctc_loss_v2([[1, 2], []], x, None, [4, 4]))


@pytest.mark.parametrize("length", [7, -1])
def test_lengths_out_of_range_are_refused(length):
    x = padded()
    with pytest.raises(ArgumentError, match="sequence_length"):
        tf1.ctc_loss(ROWS, x, [5, 0, length])
    with pytest.raises(ArgumentError, match="logit_length"):
        tf1.ctc_loss_v2(ROWS, x, None, [5, 0, length], blank_index=3)
    with pytest.raises(ArgumentError, match="sequence_length"):
        tf1.ctc_greedy_decoder(x, [5, 0, length])
    with pytest.raises(ArgumentError, match="sequence_length"):
        tf1.ctc_beam_search_decoder(x, [5, 0, length])


def test_a_row_has_no_more_answers_than_there_are():
    """TensorFlow: "Less leaves in the beam search than requested", without the row."""
    with pytest.raises(ArgumentError, match="row 1"):
        tf1.ctc_beam_search_decoder(padded(), LENGTHS, top_paths=2)


def test_an_empty_batch_has_losses_and_answers():
    x = torch.zeros(3, 0, 4, requires_grad=True)
    assert tf1.ctc_loss([], x, []).shape == (0,)
    decoded, score = tf1.ctc_greedy_decoder(x, [])
    assert decoded[0].dense_shape.tolist() == [0, 0]
    assert score.shape == (0, 1)
    assert tf1.ctc_beam_search_decoder_v2(x, [])[1].shape == (0, 1)


FULL, DENSE = [6] * 3, torch.zeros(3, 2, dtype=torch.int32)
MISTAKES = [
    (ArgumentError, "blank_index",
     lambda x: tf1.ctc_loss_v2(forms()["SparseTensor"], x, None, FULL)),
    (ArgumentError, "blank_index", lambda x: tf1.ctc_loss_v2(ROWS, x, None, FULL, blank_index=4)),
    (ArgumentError, "blank_index", lambda x: tf1.ctc_greedy_decoder(x, FULL, blank_index=-5)),
    (ArgumentError, "label_length", lambda x: tf1.ctc_loss_v2(DENSE, x, None, FULL)),
    (ArgumentTypeError, "labels", lambda x: tf1.ctc_loss_v2(torch.zeros(3, 2), x, [1] * 3, FULL)),
    (ArgumentError, "label_length", lambda x: tf1.ctc_loss_v2(ROWS, x, [1] * 3, FULL)),
    (ArgumentError, "label_length", lambda x: tf1.ctc_loss_v2(DENSE, x, [3] * 3, FULL)),
    (ArgumentTypeError, "labels", lambda x: tf1.ctc_loss_v2("abc", x, None, FULL)),
    (ArgumentError, "sequence_length", lambda x: tf1.ctc_loss(ROWS, x)),
    (ArgumentError, "inputs", lambda x: tf1.ctc_loss(ROWS, x[0], FULL)),
    (ArgumentTypeError, "inputs", lambda x: tf1.ctc_loss(ROWS, x.long(), FULL)),
    (ArgumentTypeError, "time_major", lambda x: tf1.ctc_loss(ROWS, x, FULL, time_major=1)),
    (ArgumentError, "an index twice", lambda x: tf1.ctc_loss(
        tf1.SparseTensor([[0, 0], [0, 0]], [1, 2], [3, 1]), x, FULL)),
    (ArgumentError, "rows from 0 to 2", lambda x: tf1.ctc_loss(
        tf1.SparseTensor([[3, 0]], [1], [3, 1]), x, FULL)),
    (ArgumentError, "top_paths", lambda x: tf1.ctc_beam_search_decoder(x, FULL, 2, 3)),
    (ArgumentTypeError, "labels.*labels come first", lambda x: tf1.ctc_loss(x, ROWS, FULL)),
    (ArgumentTypeError, "labels.*labels come first",
     lambda x: tf1.ctc_loss_v2(x, DENSE, FULL, [1] * 3)),
    (ArgumentError, "`label_length`: got 3 for row 1; allowed: 0 to 2, as many as the padded rows",
     lambda x: tf1.ctc_loss_v2(DENSE, x, [1, 3, 2], FULL)),
    (ArgumentError, "`inputs`: got NaN or inf at step 0 of row 0",
     lambda x: tf1.ctc_loss(ROWS, x / 0, FULL)),
    (ArgumentError, "`logits`: got NaN or inf at step 0 of row 0",
     lambda x: tf1.ctc_loss(ROWS, None, FULL, logits=x / 0)),
    (ArgumentError, "`inputs`: got NaN", lambda x: tf1.ctc_beam_search_decoder(x / 0, FULL)),
    (ArgumentError, "`inputs`: got NaN", lambda x: tf1.ctc_greedy_decoder(x / 0, FULL)),
    (ArgumentTypeError, r"`labels\.values`: got \['a'\]", lambda x: tf1.ctc_loss(
        tf1.SparseTensor([[0, 0]], ["a"], [3, 1]), x, FULL)),
    (ArgumentError, r"`labels`.*indices \[N, 2\]", lambda x: tf1.ctc_loss(
        tf1.SparseTensor([0, 1], [1, 2], [3]), x, FULL)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "argument", "call"), MISTAKES)
def test_a_mistake_is_refused_by_its_name(kind, argument, call):
    with pytest.raises(kind, match=argument):
        call(torch.zeros(6, 3, 4))


@pytest.mark.parametrize("convert", [torch.tensor, np.array, list], ids=["torch", "NumPy", "list"])
def test_the_parts_of_a_sparse_tensor_as_a_plain_tuple_are_refused_with_what_to_write(convert):
    parts = tuple(convert(part) for part in ([[0, 0], [1, 0]], [1, 2], [2, 1]))
    logits = torch.zeros(3, 2, 4)
    for run in (
        lambda: tf1.ctc_loss(parts, logits, [3, 3]),
        lambda: tf1.ctc_loss_v2(parts, logits, None, [3, 3], blank_index=0),
    ):
        with pytest.raises(ArgumentTypeError, match=r"tf1\.SparseTensor\(indices, values"):
            run()
    assert tf1.ctc_loss(tf1.SparseTensor(*parts), logits, [3, 3]).isfinite().all()
    assert tf1.ctc_loss([[0], [1, 2], []], torch.zeros(3, 3, 4), [3, 3, 3]).isfinite().all()
