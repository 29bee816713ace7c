"""Rows, windows and levels: each against a plain list of rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError
from unpad.ragged import Ragged

LENGTHS = [[2, 0, 3, 1], [0, 0], [], [1], [0, 4, 0, 2], [5, 1, 3]]
any_lengths = st.lists(st.integers(0, 6), max_size=6)


def counted(lengths: list[int]) -> Ragged:
    """Token k of the batch holds the number k."""
    return Ragged.from_lengths(torch.arange(sum(lengths)), lengths)


def lists(ragged: Ragged) -> list[list[int]]:
    return [row.tolist() for row in ragged]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_an_int_gives_a_row_and_iterating_gives_all(lengths: list[int]) -> None:
    ragged = counted(lengths)
    rows = lists(ragged)
    assert [ragged[i].tolist() for i in range(len(ragged))] == rows
    assert [ragged[i].tolist() for i in range(-len(ragged), 0)] == rows
    assert [ragged[np.int64(i)].tolist() for i in range(len(ragged))] == rows
    assert [ragged[torch.tensor(i)].tolist() for i in range(len(ragged))] == rows
    for outside in (len(ragged), -len(ragged) - 1, 2**70):
        with pytest.raises(RowIndexError, match=f"got {outside}"):
            ragged[outside]
    assert issubclass(RowIndexError, IndexError)


@given(any_lengths, st.slices(8))
def test_a_slice_is_the_slice_of_the_list(lengths: list[int], index: slice) -> None:
    ragged = counted(lengths)
    assert lists(ragged[index]) == lists(ragged)[index]


def test_a_slice_with_step_one_is_a_view() -> None:
    ragged = counted([2, 0, 3, 1])
    assert ragged[1:3].values.data_ptr() == ragged.values[2:].data_ptr()


@given(any_lengths, st.data())
def test_rows_are_picked_by_integers_in_every_form(lengths: list[int], data: st.DataObject) -> None:
    ragged = counted(lengths)
    size = len(lengths)
    picked = data.draw(st.lists(st.integers(-size, size - 1), max_size=6)) if size else []
    expected = [lists(ragged)[i] for i in picked]
    assert lists(ragged[picked]) == expected
    assert lists(ragged[np.array(picked, dtype=np.int32)]) == expected
    assert lists(ragged[torch.tensor(picked, dtype=torch.int64)]) == expected
    assert lists(ragged.index_select(picked)) == expected
    assert lists(ragged.index_select(0, torch.tensor(picked, dtype=torch.int64))) == expected
    assert lists(torch.index_select(ragged, 0, torch.tensor(picked, dtype=torch.int64))) == expected


@given(any_lengths, st.data())
def test_a_mask_picks_the_rows_that_are_true(lengths: list[int], data: st.DataObject) -> None:
    ragged = counted(lengths)
    mask = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    expected = list(itertools.compress(lists(ragged), mask))
    assert lists(ragged[torch.tensor(mask, dtype=torch.bool)]) == expected
    assert lists(ragged[np.array(mask, dtype=bool)]) == expected
    assert lists(ragged[mask]) == expected


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (5, RowIndexError, "-3 to 2"),
        ([0, 3], RowIndexError, "got 3"),
        (torch.tensor([True, False]), ArgumentError, r"shape \[2\].*shape \[3\]"),
        ((0, 1), ArgumentTypeError, "ragged.map"),
        (1.5, ArgumentTypeError, "a bool mask"),
        (torch.tensor([0.5]), ArgumentTypeError, "integers"),
        (None, ArgumentTypeError, "one index over rows"),
        ("a", ArgumentTypeError, "a bool mask"),
    ],
)
def test_a_bad_index_is_refused_in_words(
    index: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        counted([2, 0, 3])[index]  # type: ignore[call-overload]


def test_an_empty_batch_has_no_row_to_index() -> None:
    with pytest.raises(RowIndexError, match="no rows"):
        counted([])[0]
    with pytest.raises(ArgumentError, match="rows"):
        counted([1]).index_select(1, [0])


@given(st.lists(any_lengths, min_size=1, max_size=3))
def test_cat_joins_rows(parts: list[list[int]]) -> None:
    batches = [counted(lengths) for lengths in parts]
    expected = [row for batch in batches for row in lists(batch)]
    assert lists(Ragged.cat(batches)) == expected
    assert lists(torch.cat(batches)) == expected


@given(any_lengths, st.data())
def test_cat_in_time_puts_row_behind_row(lengths: list[int], data: st.DataObject) -> None:
    others = [data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))]
    batches = [counted(lengths), *(counted(other) for other in others)]
    expected = [a + b for a, b in zip(*map(lists, batches), strict=True)]
    assert lists(Ragged.cat(batches, dim=1)) == expected


def test_cat_of_features_keeps_lengths() -> None:
    a = Ragged(torch.randn(3, 2), [0, 1, 3])
    b = Ragged(torch.randn(3, 4), [0, 1, 3])
    joined = torch.cat([a, b], dim=-1)
    assert torch.equal(joined[1], torch.cat([a[1], b[1]], -1))
    first, second = torch.chunk(joined, 2, dim=-1)
    assert torch.equal(first.values, joined.values[:, :3])
    assert torch.equal(second.values, joined.values[:, 3:])


@pytest.mark.parametrize(
    ("batches", "dim", "message"),
    [
        ([], 0, "at least one"),
        (counted([1]), 0, "wrap them in a list"),
        ([counted([1]), torch.zeros(1)], 0, "Ragged batches only"),
        ([counted([1]), Ragged(torch.zeros(1, 2), [0, 1])], 0, r"features \[2\]"),
        ([counted([1]), counted([1, 2])], 1, "same number of rows"),
        ([counted([1]), counted([2])], -1, "equal lengths"),
        ([counted([1]), counted([1])], -1, "feature dimension"),
        ([counted([1])], 2, "count features from -1"),
    ],
)
def test_batches_that_do_not_fit_are_not_joined(batches: object, dim: int, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        Ragged.cat(batches, dim)  # type: ignore[arg-type]


@given(any_lengths, st.integers(1, 8))
def test_chunk_cuts_rows_as_torch_cuts_a_tensor(lengths: list[int], chunks: int) -> None:
    ragged = counted(lengths)
    sizes = [len(part) for part in torch.arange(len(lengths)).chunk(chunks)]
    parts = ragged.chunk(chunks)
    assert [len(part) for part in parts] == sizes
    assert lists(Ragged.cat(parts)) == lists(ragged)
    assert [lists(part) for part in torch.chunk(ragged, chunks)] == [lists(part) for part in parts]


@given(any_lengths, st.integers(1, 8))
def test_chunks_are_windows_in_time_with_all_rows(lengths: list[int], steps: int) -> None:
    ragged = counted(lengths)
    windows = list(ragged.chunks(steps))
    assert len(windows) == -(-max(lengths, default=0) // steps)
    for i, window in enumerate(windows):
        expected = [row[i * steps : (i + 1) * steps] for row in lists(ragged)]
        assert lists(window) == expected
    if windows:
        assert Ragged.cat(windows, dim=1).equal(ragged)


@pytest.mark.parametrize("steps", [0, -1, True, 2.0])
def test_chunks_of_no_steps_are_refused_at_once(steps: int) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="steps"):
        counted([3]).chunks(steps)
    with pytest.raises(ArgumentError, match="chunks"):
        counted([3]).chunk(0)


def split_by_hand(rows: list[list[int]], resets: set[int]) -> list[list[int]]:
    pieces: list[list[int]] = []
    for row in rows:
        pieces.append([])
        for token in row:
            if token in resets and pieces[-1]:
                pieces.append([])
            pieces[-1].append(token)
    return pieces


@given(any_lengths, st.data())
def test_a_reset_starts_a_new_sequence(lengths: list[int], data: st.DataObject) -> None:
    ragged = counted(lengths)
    tokens = ragged.num_tokens
    flags = data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens))
    positions = [i for i, flag in enumerate(flags) if flag]
    expected = split_by_hand(lists(ragged), set(positions))
    mask = torch.tensor(flags, dtype=torch.bool)
    for resets in (mask, ragged.with_values(mask), positions, torch.tensor(positions), flags):
        pieces = ragged.split_at(resets)
        assert lists(pieces) == expected
        assert pieces.values.data_ptr() == ragged.values.data_ptr()
        assert pieces.with_offsets_of(ragged).equal(ragged)


@pytest.mark.parametrize(
    ("resets", "message"),
    [
        (torch.zeros(4), "resets"),
        (torch.zeros(3, dtype=torch.bool), r"\[4\], one flag a token"),
        ([4], "positions from 0 to 3"),
        ([-1], "positions from 0 to 3"),
        (counted([1, 3]) > 0, r"lengths \[1, 3\]"),
        (counted([3, 1]), "compare it with 0"),
    ],
)
def test_resets_that_do_not_fit_are_refused(resets: object, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        counted([3, 1]).split_at(resets)  # type: ignore[arg-type]


@given(any_lengths, st.data())
def test_keep_drops_tokens_and_no_rows(lengths: list[int], data: st.DataObject) -> None:
    ragged = counted(lengths)
    limit = data.draw(st.integers(0, max(ragged.num_tokens, 1)))
    expected = [[token for token in row if token % 3 and token < limit] for row in lists(ragged)]
    mask = (ragged % 3 != 0) & (ragged < limit)
    assert lists(ragged.keep(mask)) == expected
    assert lists(ragged.keep(mask.values)) == expected


@given(st.lists(any_lengths, max_size=5))
def test_characters_in_words_become_characters_in_sentences(sentences: list[list[int]]) -> None:
    words = counted([length for sentence in sentences for length in sentence])
    rows = iter(lists(words))
    expected = [[c for _ in sentence for c in next(rows)] for sentence in sentences]
    joined = words.regroup([len(sentence) for sentence in sentences])
    assert lists(joined) == expected
    assert joined.values.data_ptr() == words.values.data_ptr()
    levels = Ragged.from_lengths(torch.zeros(len(words)), [len(s) for s in sentences])
    assert words.regroup(levels).equal(joined)


def test_lengths_that_do_not_count_the_rows_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"add up to 3.*add up to 2"):
        counted([1, 5]).regroup([3])
    with pytest.raises(ArgumentError, match=r"add up to 4.*add up to 3"):
        Ragged.from_lengths(torch.zeros(3), [3, 1])
    with pytest.raises(ArgumentError, match="3 tokens"):
        counted([1, 2]).with_offsets_of(counted([4])).with_offsets_of(counted([3]))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_repeat_like_gives_each_step_its_rows_vector(lengths: list[int]) -> None:
    codes = torch.randn(len(lengths), 3)
    expected = [code.expand(length, 3) for code, length in zip(codes, lengths, strict=True)]
    for like in (lengths, torch.tensor(lengths, dtype=torch.int32), counted(lengths)):
        repeated = Ragged.repeat_like(codes, like)
        assert repeated.lengths.tolist() == lengths
        assert all(torch.equal(a, b) for a, b in zip(repeated, expected, strict=True))


def test_repeat_like_names_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"`lengths`.*2 sequences"):
        Ragged.repeat_like(torch.zeros(2, 3), [1, 2, 3])
    with pytest.raises(ArgumentTypeError, match="rows"):
        Ragged.repeat_like(torch.tensor(1.0), [1])


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [3, 1]])
def test_gradients_are_exact_through_every_way_to_pick_and_cut(lengths: list[int]) -> None:
    offsets = Ragged.from_lengths(torch.zeros(sum(lengths)), lengths).offsets
    values = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    codes = torch.randn(len(lengths), 2, dtype=torch.float64, requires_grad=True)

    def through(values: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        ragged = Ragged(values, offsets)
        return (
            ragged[0],
            ragged[1:].values,
            ragged[[1, 0, 1]].values,
            ragged[ragged.lengths > 0].values,
            Ragged.cat([ragged, ragged]).values,
            Ragged.cat(list(ragged.chunks(2)) or [ragged], dim=1).values,
            ragged.keep(torch.arange(len(values)) % 2 == 0).values,
            Ragged.repeat_like(codes, lengths).values,
            ragged.split_at([0] if len(values) else []).sum(),
        )

    assert torch.autograd.gradcheck(through, (values, codes))


def test_words_and_sentences_train_at_both_levels() -> None:
    """Two levels: characters in words in sentences, with words and sentences of nothing."""
    sentences = [[[1, 2, 3, 4], [5], []], [], [[], [6, 7]], [[8, 9, 1]]]
    words = Ragged.from_list([word for sentence in sentences for word in sentence]).long()
    embed, encode, score = nn.Embedding(10, 4), nn.Linear(4, 5), nn.Linear(5, 1)

    def by_hand() -> Tensor:
        scores = []
        for sentence in sentences:
            vectors = [torch.zeros(5)]
            for word in sentence:
                tokens = torch.tensor(word, dtype=torch.int64)
                inside = torch.tanh(encode(embed(tokens)))
                vectors.append(inside.mean(0) if word else torch.zeros(5))
            last = vectors[-1]
            scores.append(score(last))
        return torch.stack(scores)

    inside = torch.tanh(encode(embed(words)))
    sentence_batch = Ragged.from_lengths(inside.mean(), [len(s) for s in sentences])
    scores = score(sentence_batch.last())
    torch.testing.assert_close(scores, by_hand())
    parameters = [*embed.parameters(), *encode.parameters(), *score.parameters()]
    mine = torch.autograd.grad(scores.square().sum(), parameters)
    theirs = torch.autograd.grad(by_hand().square().sum(), parameters)
    torch.testing.assert_close(mine, theirs)
