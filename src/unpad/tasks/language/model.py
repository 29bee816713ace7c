"""A language model: a network with its vocabulary, in memory and on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unpad.data.text_vocabulary import TextVocabulary, choose_kind
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.tasks.atomic import write_text
from unpad.tasks.language.generation import generate
from unpad.tasks.language.network import LanguageNetwork
from unpad.tasks.language.reading import Reader
from unpad.tasks.language.settings import LanguageSettings, LanguageTraining
from unpad.tasks.language.softmax import make_classes
from unpad.tasks.model_files import (
    LANGUAGE,
    VOCABULARY,
    broken,
    load_weights,
    read_config,
    read_text,
    save_weights,
    write_config,
)

Rows = Sequence[str] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class LanguageModel:
    r"""Tells the next token of a text: `train` makes one, or ``unpad train lm``.

    ``settings`` are a `LanguageSettings`. A text is a line or a document; rows of tokens (lists of
    strings) will do as well. Every text ends with ``<eos>``, which counts as a token.

    >>> model = LanguageModel.train(
    ...     ["to be or not to be"] * 40, hidden_size=16, epochs=10, batch=4, steps=10,
    ...     dropout=0.0, learning_rate=0.03, seed=1,
    ... )
    >>> "".join(model.generate("to be or", tokens=4, temperature=0))
    ' not to be\n'
    >>> model.perplexity(["to be or not to be"]) < model.perplexity(["be be be be to or"])
    True
    """

    network: LanguageNetwork
    vocabulary: TextVocabulary
    settings: LanguageSettings

    @classmethod
    def train(cls, texts: Rows, valid: Rows | None = None, **settings: Any) -> LanguageModel:
        """Train on texts, in their order; the weights of the best epoch are kept.

        ``settings`` are fields of `LanguageSettings` and `LanguageTraining`. Without ``valid`` the
        last ``valid_fraction`` of the texts validates. The same seed gives the same bits.
        """
        # Here, not above: Lightning takes seconds to import, and a loaded model does without.
        from unpad.data.corpus import held_out
        from unpad.tasks.language.training import encoded, fit_language, untrained

        model, training = _settings(settings)
        texts = _checked("texts", texts)
        if valid is None and training.valid_fraction > 0:
            kept, held = held_out(list(texts), training.valid_fraction)
            texts, valid = (kept, held) if kept and held else (texts, None)
        found = untrained(texts, model, training.seed)
        with tempfile.TemporaryDirectory() as folder:
            parts = encoded(found, texts), None if valid is None else encoded(found, valid)
            result = fit_language(found, *parts, training, Path(folder), tensorboard=False)
            if result.interrupted:
                raise KeyboardInterrupt
            load_weights(found.network, Path(folder))
        return found

    @classmethod
    def of(cls, texts: Rows, settings: LanguageSettings) -> LanguageModel:
        """A model with the vocabulary of ``texts``; weights from torch's global generator."""
        kind = settings.tokens
        given = len(texts) > 0 and not isinstance(texts[0], str)
        if given and kind not in ("auto", "given"):
            raise ArgumentError(
                "tokens", kind, "given, as the rows are lists of tokens", "leave it out"
            )
        if kind == "auto":
            kind = "given" if given else choose_kind([str(text) for text in texts])
        vocabulary = TextVocabulary.of(
            texts, kind,
            lowercase=settings.lowercase, min_count=settings.min_count,
            max_size=settings.vocabulary,
        )  # fmt: skip
        chosen = replace(settings, tokens=kind)
        classes = None
        if chosen.softmax == "hierarchical":
            ids, offsets = (torch.from_numpy(part) for part in vocabulary.encode(texts))
            classes = make_classes(chosen.classes, ids, offsets, len(vocabulary))
        return cls(LanguageNetwork(chosen, len(vocabulary), classes), vocabulary, chosen)

    def log_probabilities(self, texts: Rows) -> list[Tensor]:
        """Log probability in nats of every token of every text, the ``<eos>`` last: [T_i] each.

        In a "stream" model the state goes on from text to text. An unknown word counts as
        ``<unk>``.
        """
        reader = Reader(self.network, self.vocabulary, self.settings.sequences)
        return [found for _, found in reader.read(_checked("texts", texts))]

    def perplexity(self, texts: Rows) -> float:
        """The exponential of minus the mean log probability of all tokens."""
        found = torch.cat([torch.zeros(0), *self.log_probabilities(texts)])
        return float(found.double().mean().neg().exp())

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        top_k: int | None = None,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Go on from a prompt, piece by piece; `unpad.tasks.language.generation.generate`."""
        return generate(
            self.network, self.vocabulary, prompt,
            tokens=tokens, top_k=top_k, temperature=temperature, seed=seed,
            ends=self.settings.sequences == "lines",
        )  # fmt: skip

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder (made where missing); each file atomically."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.network.state_dict(), folder)
        self.save_config(folder)

    def save_config(self, folder: Path) -> None:
        """Write all but the weights."""
        write_text(folder / VOCABULARY, self.vocabulary.to_json())
        write_config(folder, LANGUAGE, {"model": self.settings.to_dict()})

    @classmethod
    def untrained(cls, folder: str | Path) -> LanguageModel:
        """Read what `save_config` wrote; fresh weights, drawn from torch's global generator.

        The classes of a hierarchical softmax come with the weights. Raises `RunError`.
        """
        folder = Path(folder)
        config = read_config(folder, LANGUAGE)
        try:
            settings = LanguageSettings.from_dict(config["model"])
            vocabulary = TextVocabulary.from_json(read_text(folder / VOCABULARY))
            vocabulary.kind = settings.tokens
            return cls(LanguageNetwork(settings, len(vocabulary)), vocabulary, settings)
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise broken(folder, error) from None

    @classmethod
    def load(cls, folder: str | Path) -> LanguageModel:
        """Read what `save` or ``unpad train lm`` wrote. Raises `RunError` where it is broken."""
        with torch.random.fork_rng():  # fresh weights draw numbers, and are thrown away here
            found = cls.untrained(folder)
        load_weights(found.network, Path(folder))
        return found


def _settings(given: dict[str, Any]) -> tuple[LanguageSettings, LanguageTraining]:
    names = LanguageSettings.__dataclass_fields__
    model = {name: value for name, value in given.items() if name in names}
    training = {name: value for name, value in given.items() if name not in names}
    return LanguageSettings(**model), LanguageTraining.from_dict(training)


def _checked(argument: str, texts: Any) -> Rows:
    allowed = "a list of texts, or of lists of tokens"
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ArgumentTypeError(argument, texts, allowed, "split a text into its lines")
    rows: list[Any] = list(texts)
    given = bool(rows) and not isinstance(rows[0], str)
    for number, row in enumerate(rows):
        right = isinstance(row, (list, tuple)) if given else isinstance(row, str)
        if not right:
            raise ArgumentTypeError(f"{argument}[{number}]", row, allowed, "give all in one form")
    return rows
