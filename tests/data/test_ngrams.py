"""n-grams of a word against those counted by hand, and their hash against another CRC-32."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unpad.data.ngrams import ngrams


def crc(data: bytes) -> int:
    """CRC-32 bit by bit, as the standard (ISO 3309) writes it."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_the_peer_is_crc_32_by_its_check_value() -> None:
    assert crc(b"123456789") == 0xCBF43926


def test_the_ngrams_of_a_word_are_its_parts_of_two_to_four_with_marks() -> None:
    parts = ["<n", "na", "aï", "ï>", "<na", "naï", "aï>", "<naï", "naï>"]
    assert ngrams("naï", 2**32) == [crc(part.encode()) for part in parts]


def test_an_empty_word_is_its_marks() -> None:
    assert ngrams("", 2**32) == [crc(b"<>")]


@given(st.text(max_size=9), st.integers(1, 50))
def test_buckets_are_the_rest_of_the_hash(word: str, buckets: int) -> None:
    assert ngrams(word, buckets) == [whole % buckets for whole in ngrams(word, 2**32)]


@given(st.text(max_size=20))
def test_a_word_of_n_characters_has_3n_parts_and_never_none(word: str) -> None:
    n = len(word)
    assert len(ngrams(word, 99)) == (n + 1) + n + max(n - 1, 0)
