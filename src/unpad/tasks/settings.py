"""What a user can choose about a classifier and its training, with defaults that need no tuning."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from unpad.errors import ArgumentError, ArgumentTypeError

CELLS = ("lstm", "gru", "rnn", "layernorm_lstm")
DEVICES = ("auto", "cpu", "cuda")
TOKENS = ("auto", "characters", "words", "given")
SUBWORDS = 10_000
"""Buckets of n-grams where the user names no number."""


@dataclass(frozen=True)
class ModelSettings:
    """The model: cell, sizes, and how sequences become its input.

    ``frame`` puts that many steps of a series into one (0: chosen by `Preparation`: long series of
    one feature are framed); ``per_series`` takes each series by its own mean and scale (None: where
    the scales differ widely). Both concern numbers only. Text alone has ``embedding_size``,
    ``tokens``, ``lowercase``, ``min_count`` (rarer tokens are ``<unk>``), ``word_dropout`` (the
    share of tokens that training reads as ``<unk>``, after Dai & Le 2015 and Iyyer et al. 2015) and
    ``subwords`` (buckets of hashed character n-grams that add to a word's vector, after Bojanowski
    et al. 2017; 0: none; None: `SUBWORDS` for words, none for characters).

    A folder that was written before a setting existed is read with that setting's default: a new
    default keeps the old behaviour, or is None and `Preparation` saves what it chose.
    """

    cell: str = "lstm"
    hidden_size: int = 128
    layers: int = 1
    bidirectional: bool = True
    dropout: float = 0.3
    embedding_size: int = 64
    tokens: str = "auto"
    lowercase: bool = False
    min_count: int = 1
    word_dropout: float = 0.02
    subwords: int | None = None
    frame: int = 0
    per_series: bool | None = None

    def __post_init__(self) -> None:
        _one_of("cell", self.cell, CELLS)
        _one_of("tokens", self.tokens, TOKENS)
        for name in ("hidden_size", "layers", "embedding_size", "min_count"):
            _integer(name, getattr(self, name), 1)
        _integer("frame", self.frame, 0)
        if self.subwords is not None:
            _integer("subwords", self.subwords, 0)
        for name in ("dropout", "word_dropout"):
            _number(name, getattr(self, name), 0.0, 1.0, below=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSettings:
        """Settings from a run's JSON; names that this version does not know are an error."""
        return cls(**_known(cls, data))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class TrainingSettings:
    """The training: Adam with warm-up and cosine decay, clipping, early stopping.

    A batch holds at most ``batch_tokens`` tokens (steps of the model's input) and
    ``batch_sequences`` sequences. ``clip`` is the largest norm of the gradient (0: any).
    ``patience`` epochs without a better validation loss end the training (0: never).
    ``valid_fraction`` of the training sequences validate where no validation data is given (0:
    none, the last epoch is kept).
    """

    epochs: int = 30
    batch_tokens: int = 1024
    batch_sequences: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.05
    clip: float = 1.0
    patience: int = 10
    valid_fraction: float = 0.1
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens", "batch_sequences"):
            _integer(name, getattr(self, name), 1)
        _one_of("device", self.device, DEVICES)
        _integer("patience", self.patience, 0)
        _integer("seed", self.seed, 0)
        _number("learning_rate", self.learning_rate, 0.0, 1e3)
        _number("weight_decay", self.weight_decay, 0.0, 1e3)
        _number("label_smoothing", self.label_smoothing, 0.0, 1.0, below=True)
        _number("clip", self.clip, 0.0, float("inf"))
        _number("valid_fraction", self.valid_fraction, 0.0, 1.0, below=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrainingSettings:
        """Settings from a run's JSON; names that this version does not know are an error."""
        return cls(**_known(cls, data))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    for name in data:
        if name not in names:
            raise ArgumentError(name, data[name], f"one of {', '.join(names)}", "update unpad")
    return data


def _one_of(argument: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ArgumentError(argument, value, ", ".join(allowed), "choose one of them")


def _integer(argument: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, value, f"an integer >= {least}", "pass an int")
    if value < least:
        raise ArgumentError(argument, value, f"an integer >= {least}", "raise it")


def _number(argument: str, value: object, least: float, most: float, below: bool = False) -> None:
    allowed = f"a number from {least:g} to {most:g}" + (" (excluded)" if below else "")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(argument, value, allowed, "pass a number")
    if not least <= value <= most or (below and value == most):
        raise ArgumentError(argument, value, allowed, "choose a value in that range")
