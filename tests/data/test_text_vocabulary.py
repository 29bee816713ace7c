"""Texts to ids and back: every text ends, and what can be written comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unpad.data.text_vocabulary import TextVocabulary, choose_kind
from unpad.errors import ArgumentError

TEXTS = ["the <unk> sat .", "", "the mat , N times"]


def test_every_text_ends_and_an_empty_one_is_its_end() -> None:
    vocabulary = TextVocabulary.of(TEXTS, "spaced")
    ids, offsets = vocabulary.encode(TEXTS)
    assert offsets.tolist() == [0, 5, 6, 12]
    assert [ids[end - 1] for end in offsets[1:]] == [vocabulary.end] * 3
    assert vocabulary.end == 1


def test_a_text_with_unk_in_it_keeps_it_as_the_unknown_word() -> None:
    vocabulary = TextVocabulary.of(TEXTS, choose_kind(TEXTS))
    assert vocabulary.encode(["the <unk> never"])[0].tolist() == [2, 0, 0, 1]
    assert vocabulary.decode([2, 0, 1, 2]) == "the <unk>\nthe"


def test_the_size_counts_the_unknown_and_the_end() -> None:
    vocabulary = TextVocabulary.of(["a a a b b c"], "spaced", max_size=4)
    assert len(vocabulary) == 4
    assert vocabulary.encode(["a b c"])[0].tolist() == [2, 3, 0, 1]


def test_characters_are_written_as_they_were_read() -> None:
    lines = ["To be,  or", "", "not to be"]
    vocabulary = TextVocabulary.of(lines, "characters")
    ids, _ = vocabulary.encode(lines)
    assert vocabulary.decode(ids.tolist()) == "\n".join(lines) + "\n"


SUBWORDS = TextVocabulary.of(["low lower lowest", "new newer newest"] * 9, "subwords", max_size=300)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=20))
def test_subwords_know_every_text(text: str) -> None:
    normal = SUBWORDS.tokenizer.normalizer.normalize_str(text)
    ids, _ = SUBWORDS.encode([text])
    assert SUBWORDS.decode(ids.tolist()) == normal + "\n" or "<unk>" in text or "<eos>" in text


def test_subwords_learn_what_is_frequent() -> None:
    assert len(SUBWORDS.encode(["lower newest"])[0]) < len("lower newest")


def test_half_a_character_waits_for_the_rest() -> None:
    ids = SUBWORDS.encode(["a☃b"])[0].tolist()
    assert list(SUBWORDS.pieces(ids)) == ["a", "☃", "b", "\n"]


@pytest.mark.parametrize("kind", ["characters", "words", "spaced", "subwords"])
def test_json_gives_the_same_vocabulary_back(kind: str) -> None:
    vocabulary = TextVocabulary.of(TEXTS, kind)
    again = TextVocabulary.from_json(vocabulary.to_json())
    assert (
        again.encode([*TEXTS, "new"])[0].tolist() == vocabulary.encode([*TEXTS, "new"])[0].tolist()
    )


def test_a_prompt_goes_on_where_a_text_has_not_ended() -> None:
    vocabulary = TextVocabulary.of(["a b"], "spaced")
    assert vocabulary.begin("a") == [2]
    assert vocabulary.begin("a\nb") == [2, 1, 3]
    assert vocabulary.begin("") == []


def test_rows_of_tokens_are_a_text_too() -> None:
    vocabulary = TextVocabulary.of([["New York", "is"], []], "given")
    assert vocabulary.encode([["is"], ["New York"]])[0].tolist() == [3, 1, 2, 1]


def test_what_is_no_kind_and_too_few_subwords_are_refused() -> None:
    with pytest.raises(ArgumentError, match="argument `tokens`: got letters"):
        TextVocabulary.of(TEXTS, "letters")
    with pytest.raises(ArgumentError, match="argument `vocabulary`: got 100; allowed: 258 or more"):
        TextVocabulary.of(TEXTS, "subwords", max_size=100)
