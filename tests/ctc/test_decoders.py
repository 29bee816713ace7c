"""The decoders against every path spelled out."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctc.brute_force import best_paths, spell
from ctc.plain_beam import plain_beam
from unpad import ArgumentError, ArgumentTypeError, Ragged
from unpad.functional import ctc_beam_decode, ctc_greedy_decode, ctc_loss

LENGTHS = [4, 0, 5, 1]


def batch(lengths=LENGTHS, classes=3):
    like = torch.zeros(0, classes, dtype=torch.float64)
    rows = [2 * torch.randn(n, classes, dtype=torch.float64) for n in lengths]
    return Ragged.from_list(rows, like=like)


@pytest.mark.parametrize("merge_repeated", [True, False])
@pytest.mark.parametrize("blank", [0, 1, 2])
def test_greedy_spells_the_likeliest_path(blank, merge_repeated):
    logits = batch()
    labels, score = ctc_greedy_decode(logits, blank=blank, merge_repeated=merge_repeated)
    for n, row in enumerate(logits.to_list()):
        probabilities = row.softmax(-1)
        paths = itertools.product(range(3), repeat=len(row))
        likeliest = max(paths, key=lambda p: probabilities[range(len(p)), list(p)].prod())
        wanted = spell(likeliest, blank, merge_repeated)
        assert tuple(labels.to_list()[n].tolist()) == wanted
        chance = probabilities[range(len(likeliest)), list(likeliest)].prod()
        torch.testing.assert_close(score[n].exp(), chance)


@pytest.mark.parametrize("blank", [0, 1, 2])
def test_a_beam_that_holds_everything_is_exact(blank):
    logits = batch()
    paths, scores = ctc_beam_decode(logits, beam_width=1000, top_paths=12, blank=blank)
    for n, row in enumerate(logits.to_list()):
        wanted = best_paths(row, blank)[:12]
        found = [tuple(path.to_list()[n].tolist()) for path in paths]
        assert found[: len(wanted)] == [labels for labels, _ in wanted]
        assert scores[n, : len(wanted)].tolist() == pytest.approx([score for _, score in wanted])
        assert scores[n, len(wanted) :].eq(-torch.inf).all()
        assert found[len(wanted) :] == [()] * (12 - len(wanted))


@given(st.integers(0, 10_000), st.integers(0, 5), st.integers(0, 2))
def test_any_row_in_a_wide_beam_equals_the_brute_force(seed, length, blank):
    torch.manual_seed(seed)
    logits = batch([length])
    paths, scores = ctc_beam_decode(logits, beam_width=500, top_paths=3, blank=blank)
    wanted = best_paths(logits.values, blank)[:3]
    for n, (labels, score) in enumerate(wanted):
        assert tuple(paths[n].values.tolist()) == labels
        assert float(scores[0, n]) == pytest.approx(score)


@given(st.integers(0, 10_000), st.integers(0, 8), st.integers(2, 5), st.integers(1, 7), st.data())
def test_a_narrow_beam_prunes_in_tensorflows_order(seed, length, classes, width, data):
    torch.manual_seed(seed)
    logits, blank = batch([length], classes), data.draw(st.integers(0, classes - 1))
    wanted = plain_beam(logits.values, blank, width)
    paths, scores = ctc_beam_decode(logits, beam_width=width, top_paths=width, blank=blank)
    found = [tuple(path.values.tolist()) for path in paths[: len(wanted)]]
    assert found == [labels for labels, _ in wanted]
    assert scores[0, : len(wanted)].tolist() == pytest.approx([score for _, score in wanted])


def test_a_narrow_beam_never_overcounts_and_no_answer_comes_twice():
    for width in (1, 2, 3, 5):
        logits = batch([5] * 8)
        paths, scores = ctc_beam_decode(logits, beam_width=width, top_paths=width)
        for n, row in enumerate(logits.to_list()):
            truth = dict(best_paths(row, 0))
            found = [tuple(path.to_list()[n].tolist()) for path in paths]
            assert len(set(found)) == width
            assert scores[n].tolist() == sorted(scores[n].tolist(), reverse=True)
            for labels, score in zip(found, scores[n].tolist(), strict=True):
                assert score <= truth[labels] + 1e-12


def test_the_log_probability_is_minus_the_loss_of_the_answer():
    logits = batch([12, 9, 0], classes=5)
    paths, scores = ctc_beam_decode(logits, beam_width=4000, top_paths=1)
    losses = ctc_loss(logits, paths[0], reduction="none")
    torch.testing.assert_close(scores[:, 0], -losses, rtol=1e-3, atol=1e-6)


def test_a_beam_finds_what_the_best_path_misses():
    logits = Ragged.from_list([torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()])
    assert ctc_greedy_decode(logits)[0].to_list()[0].tolist() == []
    (best,), _ = ctc_beam_decode(logits)
    assert best.to_list()[0].tolist() == [1]


def test_rows_together_equal_rows_one_by_one():
    logits = batch([6, 3, 0, 9], classes=6)
    together, scores = ctc_beam_decode(logits, beam_width=5, top_paths=2)
    greedy = ctc_greedy_decode(logits)[0].to_list()
    for n in range(4):
        paths, score = ctc_beam_decode(logits[[n]], beam_width=5, top_paths=2)
        assert torch.equal(score[0], scores[n])
        for path, whole in zip(paths, together, strict=True):
            assert torch.equal(path.values, whole.to_list()[n])
        assert torch.equal(ctc_greedy_decode(logits[[n]])[0].values, greedy[n])


def test_a_forbidden_class_is_never_decoded_and_its_prefix_is_not_lost():
    """The prefix "1" must not vanish where its blank and its repeat have probability 0."""
    row = torch.tensor([[0.3, 0.7, 0.0], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0]]).log()
    paths, scores = ctc_beam_decode(Ragged.from_list([row]), beam_width=50, top_paths=3)
    wanted = [pair for pair in best_paths(row, 0) if pair[1] > -torch.inf]
    found = [tuple(path.values.tolist()) for path in paths]
    assert found[: len(wanted)] == [labels for labels, _ in wanted][:3]
    assert scores[0, : len(wanted)].tolist() == pytest.approx([s for _, s in wanted][:3], abs=1e-6)


def test_an_empty_batch_decodes_to_an_empty_batch():
    logits = batch([])
    labels, score = ctc_greedy_decode(logits)
    assert (len(labels), tuple(score.shape)) == (0, (0,))
    paths, scores = ctc_beam_decode(logits, top_paths=2)
    assert (len(paths), len(paths[0]), tuple(scores.shape)) == (2, 0, (0, 2))


def test_a_single_class_is_the_blank():
    logits = Ragged(torch.zeros(3, 1), [0, 3])
    assert ctc_greedy_decode(logits)[0].num_tokens == 0
    assert ctc_beam_decode(logits)[0][0].num_tokens == 0
    assert ctc_loss(logits, [[]]) == 0


def test_decoders_take_no_part_in_a_graph():
    logits = batch()
    logits = logits.with_values(logits.values.requires_grad_())
    assert not ctc_greedy_decode(logits)[1].requires_grad
    assert not ctc_beam_decode(logits)[1].requires_grad


def test_mistakes_are_refused_by_their_names():
    logits = batch()
    with pytest.raises(ArgumentError, match="top_paths"):
        ctc_beam_decode(logits, beam_width=2, top_paths=3)
    with pytest.raises(ArgumentError, match="beam_width"):
        ctc_beam_decode(logits, beam_width=0)
    with pytest.raises(ArgumentError, match="blank"):
        ctc_greedy_decode(logits, blank=3)
    with pytest.raises(ArgumentTypeError, match="from_padded"):
        ctc_greedy_decode(torch.zeros(2, 3, 4))
    bad = batch()
    bad.values[5, 0] = torch.nan
    for decode in (ctc_greedy_decode, ctc_beam_decode):
        with pytest.raises(ArgumentError, match="step 1 of row 2"):
            decode(bad)
