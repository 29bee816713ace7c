"""What a user can choose about a language model and its training, and presets of both."""

from __future__ import annotations

from dataclasses import dataclass

from unpad.data.text_vocabulary import KINDS
from unpad.errors import ArgumentError
from unpad.tasks.settings import CELLS, Course, Settings, integer, number, one_of

SOFTMAXES = ("full", "hierarchical", "adaptive")
CLASSES = ("frequency", "bigrams")
SEQUENCES = ("stream", "lines")
OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("cosine", "constant", "decay")
LOSSES = ("token", "sequence")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class LanguageSettings(Settings):
    """The model: tokens, sizes, softmax, and what a sequence is.

    ``tokens`` is "characters", "words" (runs of letters and digits, and single signs), "spaced"
    (whatever stands between blanks, as in the Penn Treebank and WikiText), "subwords" (byte pair
    encoding) or "auto" (`unpad.data.text_vocabulary.choose_kind`). ``vocabulary`` is the most
    tokens kept, ``<unk>`` and ``<eos>`` included; rarer than ``min_count`` is ``<unk>`` too.

    ``sequences`` is "stream" (all texts end to end; the state goes on from one to the next) or
    "lines" (each line or document by itself, from a state of zeros).

    ``embedding_size`` 0 means ``hidden_size``, which ``tied`` needs: the softmax then has the
    embedding's weight (Press & Wolf 2017, Inan et al. 2017). ``dropout`` acts on what goes into and
    comes out of every layer; ``same_mask`` takes one mask for all steps of a sequence or window
    (Gal & Ghahramani 2016), else each token has its own (Zaremba et al. 2014). ``softmax``
    "hierarchical" is `unpad.nn.HierarchicalSoftmax`, with ``classes`` of words about as frequent,
    or of words that follow the same ("bigrams"); "adaptive" is torch's. ``init``: all parameters
    uniform within plus and minus this (0: as torch draws them). ``precision`` "bfloat16" rounds the
    operands of products, in layers and softmax, and nothing else.
    """

    cell: str = "lstm"
    hidden_size: int = 256
    layers: int = 2
    embedding_size: int = 0
    dropout: float = 0.2
    same_mask: bool = True
    tied: bool = False
    softmax: str = "full"
    classes: str = "frequency"
    init: float = 0.0
    precision: str = "float32"
    tokens: str = "auto"
    lowercase: bool = False
    min_count: int = 1
    vocabulary: int = 50_000
    sequences: str = "stream"

    def __post_init__(self) -> None:
        one_of("cell", self.cell, CELLS)
        one_of("softmax", self.softmax, SOFTMAXES)
        one_of("classes", self.classes, CLASSES)
        one_of("precision", self.precision, PRECISIONS)
        one_of("tokens", self.tokens, ("auto", *KINDS))
        one_of("sequences", self.sequences, SEQUENCES)
        for name in ("hidden_size", "layers", "min_count"):
            integer(name, getattr(self, name), 1)
        integer("embedding_size", self.embedding_size, 0)
        integer("vocabulary", self.vocabulary, 3)
        number("dropout", self.dropout, 0.0, 1.0, below=True)
        number("init", self.init, 0.0, 10.0)
        if self.tied and self.embedding_size not in (0, self.hidden_size):
            raise ArgumentError(
                "embedding_size", self.embedding_size, f"{self.hidden_size} (hidden_size), or 0",
                "tied weights need it: the embedding is the softmax's weight",
            )  # fmt: skip
        if self.tied and self.softmax == "adaptive":
            raise ArgumentError(
                "tied", True, "False with the adaptive softmax, whose tail has narrower rows",
                "choose the full or the hierarchical softmax",
            )  # fmt: skip

    @property
    def width(self) -> int:
        """Features of an embedded token."""
        return self.embedding_size or self.hidden_size


@dataclass(frozen=True)
class LanguageTraining(Course):
    """The training: windows or lines, optimizer, learning rate.

    A stream is cut into ``batch`` rows of equal length, read ``steps`` tokens at a time with the
    state carried on: back-propagation goes no further than a window. Lines are read whole, at most
    ``batch_tokens`` tokens and ``batch`` lines at a time.

    ``optimizer`` "adam" is AdamW, its ``weight_decay`` on matrices alone; "sgd" is plain.
    ``schedule`` "cosine" warms up and falls along half a cosine, step by step; "decay" multiplies
    the rate by ``decay`` after each epoch from number ``flat`` on. ``loss_per`` "token" takes the
    mean over tokens, "sequence" sums over the steps of a row and takes the mean over rows, as
    Zaremba et al. (2014) do. ``sgd`` without tied weights updates only the embeddings of the tokens
    that it met. The rest is told by `Course`.
    """

    epochs: int = 10
    patience: int = 0
    batch: int = 32
    steps: int = 64
    batch_tokens: int = 2048
    optimizer: str = "adam"
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    schedule: str = "cosine"
    decay: float = 0.5
    flat: int = 4
    loss_per: str = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch", "steps", "batch_tokens", "flat"):
            integer(name, getattr(self, name), 1)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("loss_per", self.loss_per, LOSSES)
        number("learning_rate", self.learning_rate, 0.0, 1e3)
        number("weight_decay", self.weight_decay, 0.0, 1e3)
        number("decay", self.decay, 0.0, 1.0)


PRESETS: dict[str, tuple[LanguageSettings, LanguageTraining]] = {
    # Zaremba, Sutskever, Vinyals 2014 (arXiv 1409.2329), section 4.1, "non-regularized LSTM".
    "zaremba-small": (
        LanguageSettings(
            hidden_size=200, layers=2, dropout=0.0, init=0.1, tokens="spaced", vocabulary=10_000,
        ),
        LanguageTraining(
            epochs=13, batch=20, steps=20, optimizer="sgd", learning_rate=1.0, schedule="decay",
            decay=0.5, flat=4, clip=5.0, loss_per="sequence",
        ),
    ),
    # For a text of a million characters, such as tinyshakespeare: docs/language-models.md.
    "characters": (
        LanguageSettings(
            hidden_size=384, layers=2, embedding_size=64, dropout=0.25, tokens="characters",
            precision="bfloat16",
        ),
        LanguageTraining(epochs=11, batch=32, steps=64, learning_rate=4e-3),
    ),
}  # fmt: skip
"""Settings by name, for ``unpad train lm --preset``."""


def preset(name: str) -> tuple[LanguageSettings, LanguageTraining]:
    """The settings of a preset; an unknown name is an error that lists what there is."""
    one_of("preset", name, tuple(PRESETS))
    return PRESETS[name]
