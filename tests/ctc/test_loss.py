"""`ctc_loss` against every path spelled out, and its behaviour at the edges."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from ctc.brute_force import loss as brute_loss
from unpad import ArgumentError, ArgumentTypeError, Ragged, UnpadError
from unpad.ctc import lattice
from unpad.functional import ctc_loss, ctc_unalignable

LENGTHS = [4, 0, 3, 5, 1]
LABELS = [[1, 1], [], [2], [0, 1, 2], []]  # the blank is 3


def batch(lengths, classes, dtype=torch.float64, scale=2.0):
    rows = [scale * torch.randn(n, classes, dtype=torch.float64).to(dtype) for n in lengths]
    ragged = Ragged.from_list(rows, like=torch.zeros(0, classes, dtype=dtype))
    return ragged.with_values(ragged.values.requires_grad_())


def gradient(loss, ragged):
    return torch.autograd.grad(loss, ragged.values)[0]


@pytest.mark.parametrize("merge_repeated", [True, False])
@pytest.mark.parametrize("blank", [0, 1, 2])
def test_every_row_of_labels_costs_what_its_paths_add_up_to(blank, merge_repeated):
    classes = [c for c in range(3) if c != blank]
    logits = batch([4], 3)
    for count in range(4):
        for labels in itertools.product(classes, repeat=count):
            wanted = brute_loss(logits.values, list(labels), blank, merge_repeated)
            if wanted.isinf():
                with pytest.raises(ArgumentError, match="row 0 that cannot be aligned"):
                    ctc_loss(logits, [list(labels)], blank=blank, merge_repeated=merge_repeated)
                continue
            found = ctc_loss(logits, [list(labels)], blank=blank, merge_repeated=merge_repeated)
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(
                gradient(found, logits), gradient(wanted, logits), rtol=1e-10, atol=1e-12
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_of_unequal_rows_gives_each_row_its_loss_and_gradient(dtype):
    logits = batch(LENGTHS, 4, dtype)
    losses = ctc_loss(logits, LABELS, blank=3, reduction="none")
    wanted = torch.stack(
        [brute_loss(row, y, 3) for row, y in zip(logits.to_list(), LABELS, strict=True)]
    )
    weights = torch.randn(5, dtype=torch.float64)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    assert losses.dtype == dtype
    torch.testing.assert_close(losses.double(), wanted, **tolerance)
    torch.testing.assert_close(
        gradient((losses.double() * weights).sum(), logits),
        gradient((wanted * weights).sum(), logits),
        **tolerance,
    )


@given(st.data())
def test_any_batch_equals_the_brute_force(data):
    blank = data.draw(st.integers(0, 2))
    lengths = data.draw(st.lists(st.integers(0, 5), max_size=4))
    classes = st.sampled_from([c for c in range(3) if c != blank])
    labels = [data.draw(st.lists(classes, max_size=n)) for n in lengths]
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    logits = batch(lengths, 3)
    wanted = [brute_loss(row, y, blank) for row, y in zip(logits.to_list(), labels, strict=True)]
    rows = [n for n, loss in enumerate(wanted) if loss.isinf()]
    assert ctc_unalignable(logits, labels).tolist() == rows
    losses = ctc_loss(logits, labels, blank=blank, reduction="none", unalignable="skip")
    for n, loss in enumerate(wanted):
        expected = 0.0 if n in rows else loss.item()
        assert losses[n].item() == pytest.approx(expected, abs=1e-10)
    kept = sum((loss for loss in wanted if not loss.isinf()), torch.zeros(()))
    if kept.requires_grad and losses.requires_grad:
        found = gradient(losses.sum(), logits)
        torch.testing.assert_close(found, gradient(kept, logits), rtol=1e-9, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    logits = batch(LENGTHS, 4)
    run = lambda v, how: ctc_loss(logits.with_values(v), LABELS, blank=3, reduction=how)  # noqa: E731
    for reduction in ("none", "sum", "mean"):
        assert torch.autograd.gradcheck(lambda v, how=reduction: run(v, how), (logits.values,))


def test_the_gradient_is_that_of_the_logits_even_where_they_are_normalised_already():
    """F.ctc_loss gives another gradient there: it takes its input for a log softmax's output."""
    logits = batch([4, 3], 4)
    normal = Ragged(logits.values.detach().log_softmax(-1).requires_grad_(), logits.offsets)
    assert torch.autograd.gradcheck(
        lambda v: ctc_loss(normal.with_values(v), [[1], [2, 1]]), (normal.values,)
    )


def test_half_of_the_loss_has_half_of_the_gradient():
    logits = batch(LENGTHS, 4)
    loss = ctc_loss(logits, LABELS, blank=3)
    whole = torch.autograd.grad(loss, logits.values, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss * 0.5, logits.values)[0], whole * 0.5)


def test_an_empty_row_of_labels_costs_minus_the_sum_of_the_blanks():
    logits = batch([5, 2], 4)
    losses = ctc_loss(logits, [[], [1, 2]], reduction="none")
    wanted = -logits.to_list()[0].log_softmax(-1)[:, 0].sum()
    torch.testing.assert_close(losses[0], wanted)
    found = torch.autograd.grad(losses[0], logits.values)[0]
    torch.testing.assert_close(found[:5], gradient(wanted, logits)[:5])


def test_a_row_of_length_0_without_labels_costs_nothing():
    logits = batch([0, 0], 4)
    losses = ctc_loss(logits, [[], []], reduction="none")
    assert losses.tolist() == [0.0, 0.0]
    assert not torch.signbit(losses).any()
    losses.sum().backward()
    assert logits.values.grad.shape == (0, 4)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_an_empty_batch_has_a_loss_and_a_gradient(reduction):
    logits = batch([], 4)
    loss = ctc_loss(logits, [], reduction=reduction)
    assert loss.sum() == 0
    assert loss.shape == ((0,) if reduction == "none" else ())
    loss.sum().backward()
    assert logits.values.grad.shape == (0, 4)


def test_a_row_alone_equals_the_row_in_a_crowd_bit_for_bit():
    logits = batch([7, 3, 30, 12], 5, torch.float32)
    labels = [[1, 2, 2], [3], [1, 4, 1, 4, 2, 2], []]
    crowd = ctc_loss(logits, labels, reduction="none")
    of_crowd = logits.with_values(gradient(crowd.sum(), logits)).to_list()
    for n, y in enumerate(labels):
        alone = Ragged.from_list([logits.to_list()[n].detach()])
        alone.values.requires_grad_()
        loss = ctc_loss(alone, [y], reduction="none")
        assert torch.equal(loss[0], crowd[n])
        assert torch.equal(gradient(loss.sum(), alone), of_crowd[n])


def test_long_rows_and_extreme_logits_stay_finite_and_right():
    """Probabilities of e ** -20000: no number but a logarithm holds them."""
    logits = batch([400, 90], 6, scale=200.0)
    labels = [torch.randint(1, 6, (150,)).tolist(), torch.randint(1, 6, (40,)).tolist()]
    losses = ctc_loss(logits, labels, reduction="none")
    padded = logits.to_padded(batch_first=False).log_softmax(-1)
    sizes = torch.tensor([400, 90]), torch.tensor([150, 40])
    wanted = F.ctc_loss(padded, torch.tensor(labels[0] + labels[1]), *sizes, reduction="none")
    assert losses.min() > 1000
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(
        gradient(losses.sum(), logits), gradient(wanted.sum(), logits), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("window", [1, 7, 100])
def test_the_gradient_does_not_depend_on_how_many_cells_it_takes_at_a_time(window, monkeypatch):
    logits = batch(LENGTHS, 4)
    loss = ctc_loss(logits, LABELS, blank=3)
    monkeypatch.setattr(lattice, "_WINDOW", window)
    again = ctc_loss(logits, LABELS, blank=3)
    torch.testing.assert_close(gradient(again, logits), gradient(loss, logits), rtol=0, atol=1e-15)


def test_float32_is_as_exact_as_float32_can_be_on_long_rows():
    double = batch([1000], 30)
    labels = [torch.randint(1, 30, (200,)).tolist()]
    single = Ragged(double.values.detach().float().requires_grad_(), double.offsets)
    exact = Ragged(single.values.detach().double().requires_grad_(), double.offsets)
    losses = [ctc_loss(logits, labels) for logits in (single, exact)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    found, wanted = (gradient(*pair) for pair in zip(losses, (single, exact), strict=True))
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize("blank", [0, 2, 5])
def test_torch_agrees_on_a_larger_batch(blank):
    lengths = torch.randint(10, 60, (12,)).tolist()
    logits = batch(lengths, 6)
    allowed = torch.tensor([c for c in range(6) if c != blank])
    labels = [allowed[torch.randint(0, 5, (n // 3,))].tolist() for n in lengths]
    losses = ctc_loss(logits, labels, blank=blank, reduction="none")
    wanted = F.ctc_loss(
        logits.to_padded(batch_first=False).log_softmax(-1),
        torch.tensor([label for row in labels for label in row]),
        torch.tensor(lengths),
        torch.tensor([len(y) for y in labels]),
        blank=blank,
        reduction="none",
    )
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(gradient(losses.sum(), logits), gradient(wanted.sum(), logits))


def test_reductions_add_and_average_the_rows():
    logits = batch(LENGTHS, 4)
    losses = ctc_loss(logits, LABELS, blank=3, reduction="none")
    assert ctc_loss(logits, LABELS, blank=3, reduction="sum") == losses.sum()
    assert ctc_loss(logits, LABELS, blank=3) == losses.mean()


def test_labels_come_as_ragged_lists_arrays_or_tensors_of_any_integer():
    logits = batch([4, 3], 4)
    rows = [[1, 1], [2]]
    wanted = ctc_loss(logits, rows)
    forms = [Ragged.from_list([torch.tensor(row, dtype=kind) for row in rows])
             for kind in (torch.int32, torch.int64, torch.uint8)]  # fmt: skip
    forms += [[torch.tensor(row) for row in rows], [torch.tensor(row).numpy() for row in rows]]
    for labels in forms:
        assert ctc_loss(logits, labels) == wanted


def test_half_precision_is_widened():
    logits = batch([4, 3], 4, torch.bfloat16)
    loss = ctc_loss(logits, [[1, 1], [2]])
    assert loss.dtype == torch.float32
    assert gradient(loss, logits).dtype == torch.bfloat16


def test_without_a_gradient_the_loss_is_the_same_and_keeps_nothing():
    logits = batch(LENGTHS, 4)
    wanted = ctc_loss(logits, LABELS, blank=3)
    with torch.no_grad():
        loss = ctc_loss(logits, LABELS, blank=3)
    assert not loss.requires_grad
    assert torch.equal(loss, wanted.detach())


def test_a_second_derivative_is_refused_in_words():
    logits = batch([3], 4)
    first = torch.autograd.grad(ctc_loss(logits, [[1]]), logits.values, create_graph=True)[0]
    with pytest.raises(UnpadError, match="first derivative alone"):
        first.square().sum().backward()


def test_the_backward_may_run_twice():
    logits = batch([3], 4)
    loss = ctc_loss(logits, [[1]])
    loss.backward(retain_graph=True)
    once = logits.values.grad.clone()
    loss.backward()
    assert torch.equal(logits.values.grad, 2 * once)


def test_torch_compile_takes_a_model_that_ends_in_it():
    linear = torch.nn.Linear(3, 4)
    batch = Ragged(torch.randn(7, 3), [0, 4, 7])

    def run(batch):
        return ctc_loss(batch.with_values(linear(batch.values)), [[1, 1], [2]])

    compiled = torch.compile(run, backend="eager")
    assert torch.equal(compiled(batch), run(batch))


MISTAKES = [
    (ArgumentTypeError, {"logits": torch.zeros(2, 3, 4)}, "from_padded"),
    (ArgumentTypeError, {"logits": Ragged(torch.zeros(5, 4).long(), [0, 5])}, "floating point"),
    (ArgumentError, {"logits": Ragged(torch.zeros(5), [0, 5])}, r"tokens of shape \[\]"),
    (ArgumentTypeError, {"labels": torch.zeros(2, 3).long()}, "from_padded"),
    (ArgumentTypeError, {"labels": [[1.5], [1]]}, r"labels\[0\]"),
    (ArgumentTypeError, {"labels": [[True], [1]]}, r"labels\[0\]"),
    (ArgumentTypeError, {"labels": [1, 2]}, r"labels\[0\]"),
    (ArgumentError, {"labels": [[1]]}, "got 1 rows"),
    (ArgumentError, {"labels": [[1], [2, 4]]}, "4 in row 1"),
    (ArgumentError, {"labels": [[1], [-1]]}, "-1 in row 1"),
    (ArgumentError, {"labels": [[1], [2, 0]]}, "0 in row 1, which is the blank"),
    (ArgumentError, {"blank": 4}, "0 to 3"),
    (ArgumentError, {"blank": -1}, "blank"),
    (ArgumentTypeError, {"blank": 0.0}, "blank"),
    (ArgumentError, {"reduction": "average"}, "reduction"),
    (ArgumentError, {"unalignable": "ignore"}, "unalignable"),
]


@pytest.mark.parametrize(("kind", "changed", "message"), MISTAKES)
def test_a_mistake_is_refused_by_its_name(kind, changed, message):
    arguments = {"logits": Ragged(torch.zeros(5, 4), [0, 3, 5]), "labels": [[1], [2]], **changed}
    with pytest.raises(kind, match=message):
        ctc_loss(arguments.pop("logits"), arguments.pop("labels"), **arguments)
