"""Ids are the training tokens by frequency; whatever was not seen there is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpad.data import Vocabulary
from unpad.data.vocabulary import choose_tokens_of
from unpad.errors import ArgumentError

TEXTS = ["It's here, it's", "", "here  we\ngo: naïve"]


def test_words_are_runs_of_letters_and_single_signs() -> None:
    vocabulary = Vocabulary.build(TEXTS, "words", lowercase=True)
    known = ["it", "'", "s", "here", ",", "we", "go", ":", "naïve"]
    ids, offsets = vocabulary.encode([" ".join(known), "HERE unseen it"])
    assert sorted(ids[: len(known)].tolist()) == list(range(1, 10))
    assert offsets.tolist() == [0, 9, 12]
    assert ids[9:].tolist() == [ids[3], 0, ids[0]]


def test_characters_are_all_of_them_blanks_and_line_ends_too() -> None:
    vocabulary = Vocabulary.build(["a b\n", "aé"], "characters")
    ids, offsets = vocabulary.encode(["a b\n", "e\u0301", "", "xA"])
    assert offsets.tolist() == [0, 4, 5, 5, 7]
    assert len(set(ids[:4].tolist()) - {0}) == 4
    assert ids[4] not in (0, ids[0])  # e + accent is the é of the training text
    assert ids[5:].tolist() == [0, 0]


def test_given_tokens_are_not_cut_again() -> None:
    vocabulary = Vocabulary.build([["don't", "go"], ["go"]], "given")
    ids, offsets = vocabulary.encode([["don't"], [], ["don", "go"]])
    assert ids.tolist() == [2, 0, 1]
    assert offsets.tolist() == [0, 1, 1, 3]


def test_rare_tokens_are_unknown_and_frequent_ones_come_first() -> None:
    vocabulary = Vocabulary.build(["b b a a a c"], "words", min_count=2)
    assert vocabulary.encode(["a b c"])[0].tolist() == [1, 2, 0]
    assert len(Vocabulary.build(["b b a a a c"], "words", max_size=2)) == 2


def test_json_gives_the_same_vocabulary_back() -> None:
    for tokens in ("characters", "words"):
        vocabulary = Vocabulary.build(TEXTS, tokens, lowercase=True)
        again = Vocabulary.from_json(vocabulary.to_json())
        assert (
            again.encode([*TEXTS, "New"])[0].tolist()
            == vocabulary.encode([*TEXTS, "New"])[0].tolist()
        )


def test_sentences_are_read_by_word_and_names_by_character() -> None:
    assert choose_tokens_of(["play a song", "stop", "turn it up"]) == "words"
    assert choose_tokens_of(["Khoury", "El Tahan", "Daher", ""]) == "characters"


def test_an_unknown_kind_of_token_is_refused() -> None:
    with pytest.raises(ArgumentError, match="argument `tokens`"):
        Vocabulary.build(["a"], "syllables")  # type: ignore[arg-type]


@given(st.lists(st.text("aAé\u0301 .,'<k\n", max_size=12), min_size=1, max_size=5))
@pytest.mark.parametrize("tokens", ["characters", "words", "given"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_tokens_one_by_one_have_the_ids_that_whole_rows_have(
    tokens: Any, lowercase: bool, texts: list[str]
) -> None:
    rows: Any = [text.split(" ") for text in texts] if tokens == "given" else texts
    vocabulary = Vocabulary.build(rows[:2], tokens, lowercase=lowercase)
    ids, offsets = vocabulary.encode(rows)
    split = vocabulary.split(rows)
    assert [vocabulary.id_of(token) for row in split for token in row] == ids.tolist()
    assert [len(row) for row in split] == np.diff(offsets).tolist()


@pytest.mark.parametrize("text", ["", "{}", '{"version":', "[1]"])
def test_what_is_no_vocabulary_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="no vocabulary"):
        Vocabulary.from_json(text)
