"""What a user can choose about a classifier and its training, with defaults that need no tuning."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from unpad.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from typing_extensions import Self

CELLS = ("lstm", "gru", "rnn", "layernorm_lstm")
DEVICES = ("auto", "cpu", "cuda")
TOKENS = ("auto", "characters", "words", "given")
SUBWORDS = 10_000
"""Buckets of n-grams where the user names no number."""


@dataclass(frozen=True)
class Settings:
    """Settings of one kind, to and from the JSON of a run."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Settings from a run's JSON; names that this version does not know are an error."""
        return cls(**_known(cls, data))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Course(Settings):
    """What the training of every task has: epochs, clipping, stopping, seed and device.

    ``clip`` is the largest norm of the gradient (0: any). ``patience`` epochs without a better
    validation loss end the training (0: never). ``valid_fraction`` of the training data validates
    where no validation data is given (0: none, the last epoch is kept).
    """

    epochs: int = 30
    clip: float = 1.0
    patience: int = 10
    valid_fraction: float = 0.1
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        integer("epochs", self.epochs, 1)
        one_of("device", self.device, DEVICES)
        integer("patience", self.patience, 0)
        integer("seed", self.seed, 0)
        number("clip", self.clip, 0.0, float("inf"))
        number("valid_fraction", self.valid_fraction, 0.0, 1.0, below=True)


@dataclass(frozen=True)
class ModelSettings(Settings):
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
        one_of("cell", self.cell, CELLS)
        one_of("tokens", self.tokens, TOKENS)
        for name in ("hidden_size", "layers", "embedding_size", "min_count"):
            integer(name, getattr(self, name), 1)
        integer("frame", self.frame, 0)
        if self.subwords is not None:
            integer("subwords", self.subwords, 0)
        for name in ("dropout", "word_dropout"):
            number(name, getattr(self, name), 0.0, 1.0, below=True)


@dataclass(frozen=True)
class TrainingSettings(Course):
    """The training: Adam with warm-up and cosine decay, clipping, early stopping.

    A batch holds at most ``batch_tokens`` tokens (steps of the model's input) and
    ``batch_sequences`` sequences. The rest is told by `Course`.
    """

    batch_tokens: int = 1024
    batch_sequences: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    label_smoothing: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_tokens", "batch_sequences"):
            integer(name, getattr(self, name), 1)
        number("learning_rate", self.learning_rate, 0.0, 1e3)
        number("weight_decay", self.weight_decay, 0.0, 1e3)
        number("label_smoothing", self.label_smoothing, 0.0, 1.0, below=True)


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(kind)]
    for name in data:
        if name not in names:
            raise ArgumentError(name, data[name], f"one of {', '.join(names)}", "update unpad")
    return data


def one_of(argument: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not one of those allowed."""
    if value not in allowed:
        raise ArgumentError(argument, value, ", ".join(allowed), "choose one of them")


def integer(argument: str, value: object, least: int) -> None:
    """Refuse what is no integer of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(argument, value, f"an integer >= {least}", "pass an int")
    if value < least:
        raise ArgumentError(argument, value, f"an integer >= {least}", "raise it")


def number(argument: str, value: object, least: float, most: float, below: bool = False) -> None:
    """Refuse what is no number within the bounds, ``below`` the upper one."""
    allowed = f"a number from {least:g} to {most:g}" + (" (excluded)" if below else "")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(argument, value, allowed, "pass a number")
    if not least <= value <= most or (below and value == most):
        raise ArgumentError(argument, value, allowed, "choose a value in that range")
