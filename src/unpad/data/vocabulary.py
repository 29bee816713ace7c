"""From characters or words to ids: a `tokenizers` word-level model, stored as JSON."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from unpad.data.table import Integers, SequenceTable
from unpad.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

Tokens = Literal["characters", "words", "spaced", "given"]
UNKNOWN = "<unk>"
_PATTERNS = {"characters": r"[\s\S]", "words": r"\w+|[^\w\s]", "spaced": r"\S+", "given": None}


class Vocabulary:
    """The tokens of the training set in order of frequency; id 0 is ``<unk>``, every other token.

    ``tokens`` is "characters" (every character of a text), "words" (runs of letters and digits, and
    single signs), "spaced" (whatever stands between blanks) or "given" (rows are lists of tokens
    already). An empty text or token has no ids.

    >>> vocabulary = Vocabulary.build(["ab", "b"], "characters")
    >>> ids, offsets = vocabulary.encode(["bx", ""])
    >>> ids.tolist(), offsets.tolist()
    ([1, 0], [0, 2, 2])
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def build(
        cls,
        rows: Sequence[str] | Sequence[Sequence[str]],
        tokens: Tokens,
        *,
        lowercase: bool = False,
        min_count: int = 1,
        max_size: int = 50_000,
        special: Sequence[str] = (),
    ) -> Self:
        """Count the tokens of texts, or of rows of tokens, and keep the frequent ones.

        ``special`` tokens come right after ``<unk>``, however rare.
        """
        if tokens not in _PATTERNS:
            raise ArgumentError("tokens", tokens, ", ".join(_PATTERNS), "choose one of them")
        empty = _tokenizer({UNKNOWN: 0}, tokens, lowercase)
        counts = Counter(t for row in rows for t in _split(empty, row))
        first = [UNKNOWN, *special]
        kept = [t for t, n in counts.items() if n >= min_count and t not in first]
        kept.sort(key=lambda t: (-counts[t], t))
        ids = {t: i for i, t in enumerate([*first, *kept][:max_size])}
        return cls(_tokenizer(ids, tokens, lowercase))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; never runs code. Raises `ValueError` for anything else."""
        try:
            return cls(Tokenizer.from_str(text))
        except Exception as error:  # the library raises no narrower one
            raise ValueError(f"no vocabulary: {error}") from None

    def to_json(self) -> str:
        """The vocabulary in the JSON form of the ``tokenizers`` library."""
        return self.tokenizer.to_str(pretty=True)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def id_of(self, token: str) -> int:
        """The id of one token, 0 where it is unknown."""
        return self.tokenizer.token_to_id(token) or 0

    def split(self, rows: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
        """The tokens of each row as `encode` cuts and normalises them, the unknown ones too.

        >>> vocabulary = Vocabulary.build(["on"], "words", lowercase=True)
        >>> vocabulary.split(["Turn it on!", ""])
        [['turn', 'it', 'on', '!'], []]
        """
        return [_split(self.tokenizer, row) for row in rows]

    def encode(self, rows: Sequence[str] | Sequence[Sequence[str]]) -> tuple[Integers, Integers]:
        """Ids [T] and offsets [B+1] of texts or of rows of tokens."""
        whole = len(rows) > 0 and not isinstance(rows[0], str)
        encoded: list[Any] = self.tokenizer.encode_batch_fast(
            list(rows), is_pretokenized=whole, add_special_tokens=False
        )
        ids = [e.ids for e in encoded]
        offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return np.fromiter(itertools.chain.from_iterable(ids), np.int64, offsets[-1]), offsets


def choose_tokens(table: SequenceTable) -> Tokens:
    """Words where most texts hold a blank inside, else characters; tokens of the file are given."""
    if table.kind == "tokens":
        return "given"
    return choose_tokens_of(table.texts())


def choose_tokens_of(texts: Iterable[str]) -> Tokens:
    """The rule of `choose_tokens` on plain texts."""
    filled = [t for t in texts if t.strip()]
    return "words" if sum(" " in t.strip() for t in filled) * 2 > len(filled) else "characters"


def text_lengths(table: SequenceTable, tokens: Tokens | None = None) -> Integers:
    """Lengths [B] of texts in characters or words (chosen by `choose_tokens` where None)."""
    splitter = _tokenizer({UNKNOWN: 0}, tokens or choose_tokens(table), False)
    return np.array([len(_split(splitter, t)) for t in table.texts()], dtype=np.int64)


def _tokenizer(ids: dict[str, int], tokens: Tokens, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    )
    if pattern := _PATTERNS[tokens]:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return tokenizer


def _split(tokenizer: Tokenizer, row: str | Sequence[str]) -> list[str]:
    normalise = tokenizer.normalizer.normalize_str
    if not isinstance(row, str):
        return [token for t in row if (token := normalise(t))]
    return [t for t, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalise(row))]
