"""From texts to ids and back, for language models: every text ends with ``<eos>``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from unpad.data.table import Integers
from unpad.data.vocabulary import UNKNOWN, Vocabulary, choose_tokens_of
from unpad.errors import ArgumentError

END = "<eos>"
KINDS = ("characters", "words", "spaced", "subwords", "given")
_BREAK = "\ufffd"


class TextVocabulary(Vocabulary):
    r"""A `Vocabulary` in which id 1 is ``<eos>``, the end of a text, and that can write.

    ``kind`` is "characters", "words", "spaced", "given" (see `Vocabulary`) or "subwords": pieces of
    words by byte pair encoding, trained on the texts (Sennrich et al. 2016), over bytes, so that
    nothing is unknown and every text comes back as it was. ``<eos>`` is written as a line end.

    >>> vocabulary = TextVocabulary.of(["to be", "or"], "characters")
    >>> ids, offsets = vocabulary.encode(["be", ""])
    >>> ids.tolist(), offsets.tolist()
    ([4, 5, 1, 1], [0, 3, 4])
    >>> vocabulary.decode(ids.tolist())
    'be\n\n'
    """

    kind: str = "given"

    @classmethod
    def of(
        cls,
        rows: Sequence[str] | Sequence[Sequence[str]],
        kind: str,
        *,
        lowercase: bool = False,
        min_count: int = 1,
        max_size: int = 50_000,
    ) -> TextVocabulary:
        """The vocabulary of the training texts, at most ``max_size`` tokens with the two."""
        if kind not in KINDS:
            raise ArgumentError("tokens", kind, ", ".join(KINDS), "choose one of them")
        if kind == "subwords":
            texts = cast("Sequence[str]", rows)
            found = cls(_subwords(texts, lowercase, min_count, max_size))
        else:
            found = cls.build(
                rows, cast("Any", kind),
                lowercase=lowercase, min_count=min_count, max_size=max_size, special=(END,),
            )  # fmt: skip
        found.kind = kind
        return found

    @property
    def end(self) -> int:
        """The id of ``<eos>``."""
        return self.id_of(END)

    def encode(self, rows: Sequence[str] | Sequence[Sequence[str]]) -> tuple[Integers, Integers]:
        """Ids [T] and offsets [B+1] of texts, each with its ``<eos>``: an empty one is that."""
        ids, offsets = super().encode(rows)
        return np.insert(ids, offsets[1:], self.end), offsets + np.arange(len(offsets))

    def begin(self, prompt: str) -> list[int]:
        """The ids of the beginning of a text; a line end in it is an ``<eos>``."""
        lines = prompt.split("\n") if self.kind != "given" else [prompt]
        rows: Any = [line.split() for line in lines] if self.kind == "given" else lines
        return self.encode(rows)[0][:-1].tolist() if prompt else []

    def token(self, number: int) -> str:
        """One token as text, for tables of scores."""
        if self.kind == "subwords" and number != self.end:
            return self.tokenizer.decode([number])
        return str(self.tokenizer.id_to_token(number))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; ``<eos>`` is a line end, words have a blank between them."""
        return "".join(self.pieces(ids))

    def pieces(self, ids: Iterable[int], *, continues: bool = False) -> Iterator[str]:
        """What each id adds to the text, as soon as it is known. Half a character waits.

        ``continues``: a line that was begun goes on, so that a blank comes before a word.
        """
        apart = " " if self.kind in ("words", "spaced", "given") else ""
        start, held = not continues, list[int]()
        for number in ids:
            if self.kind == "subwords" and number != self.end:
                held.append(number)
                piece = self.tokenizer.decode(held)
                if piece.endswith(_BREAK) and len(held) < 4:
                    continue
            elif number == self.end:
                piece = self.tokenizer.decode(held) + "\n" if held else "\n"
            else:
                piece = ("" if start else apart) + self.token(number)
            held.clear()
            start = number == self.end
            yield piece
        if held:
            yield self.tokenizer.decode(held)


def choose_kind(texts: Sequence[str]) -> str:
    """Tokens between blanks where a text has ``<unk>``, being cut already; else as it looks.

    >>> choose_kind(["the <unk> sat"]), choose_kind(["The cat sat."]), choose_kind(["Ann", "Bob"])
    ('spaced', 'words', 'characters')
    """
    return "spaced" if any(UNKNOWN in text for text in texts) else choose_tokens_of(texts)


def _subwords(texts: Sequence[str], lowercase: bool, min_count: int, max_size: int) -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if max_size < len(alphabet) + 2:
        raise ArgumentError(
            "vocabulary", max_size, f"{len(alphabet) + 2} or more for subwords", "raise it"
        )
    trainer = BpeTrainer(
        vocab_size=max_size, min_frequency=max(2, min_count), special_tokens=[UNKNOWN, END],
        initial_alphabet=alphabet, show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
