"""Words by their characters: n-grams hashed into buckets, so that an unseen word has a view too."""

from __future__ import annotations

from zlib import crc32

SIZES = (2, 3, 4)
"""Characters of an n-gram. 2 to 4 had the best validation accuracy and loss on Snips."""


def ngrams(word: str, buckets: int) -> list[int]:
    """The buckets (0 to ``buckets`` - 1) of the n-grams of ``<word>``, in order, repeats included.

    The signs < and > mark where a word begins and ends (Bojanowski et al. 2017, section 3.2); the
    hash is CRC-32 of the UTF-8 bytes, the same in every process and on every machine. An empty
    word is its two marks.

    >>> ngrams("it", 10_000)  # <i it t> <it it> <it>
    [5564, 5620, 1798, 4797, 3556, 2851]
    """
    marked = f"<{word}>"
    parts = (marked[i : i + n] for n in SIZES for i in range(len(marked) - n + 1))
    return [crc32(part.encode()) % buckets for part in parts]
