"""A scikit-learn classifier for sequences of unequal length."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from unpad.data import SequenceTable
from unpad.data.table import Source, make_table, number_lists, token_lists
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged
from unpad.ragged.lengths import refuse_masked
from unpad.tasks.atomic import write_json
from unpad.tasks.prepare import Preparation
from unpad.tasks.run_error import RunError
from unpad.tasks.saved import Classifier
from unpad.tasks.settings import ModelSettings, TrainingSettings

_Base: Any = object
_Mixin: Any = object
_NotFitted: Any = ValueError
with contextlib.suppress(ModuleNotFoundError):  # without scikit-learn, fit and predict still work
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError

    _Base, _Mixin, _NotFitted = BaseEstimator, ClassifierMixin, NotFittedError

_MODEL, _TRAINING = ModelSettings(), TrainingSettings()


class SequenceClassifier(*dict.fromkeys((_Mixin, _Base))):
    """Recurrent classifier with scikit-learn's ``fit``, ``predict``, ``predict_proba``, ``score``.

    X is a list of arrays [T_i, F] or [T_i] of unequal length (0 included), a `Ragged`, a padded
    array [N, T, F], a list of texts, or a list of lists of tokens. Labels are strings, integers
    or bools.
    The parameters are those of ``unpad train classify``: see `ModelSettings` and
    `TrainingSettings`. With ``random_state`` an integer, fits are reproducible to the bit; None
    draws a seed from NumPy's global generator. A label's last sequence always trains: where no
    label has one to spare for ``valid_fraction``, the training goes without validation.

    After ``fit``: ``classes_``, ``history_`` (a row an epoch), ``best_epoch_``, ``n_features_in_``.

    >>> X = [np.full((n, 2), float(n % 2)) for n in range(1, 21)]
    >>> y = [n % 2 for n in range(1, 21)]
    >>> model = SequenceClassifier(hidden_size=8, epochs=20, valid_fraction=0, random_state=0)
    >>> model.fit(X, y).score(X, y)
    1.0
    """

    def __init__(
        self,
        *,
        cell: str = _MODEL.cell,
        hidden_size: int = _MODEL.hidden_size,
        layers: int = _MODEL.layers,
        bidirectional: bool = _MODEL.bidirectional,
        dropout: float = _MODEL.dropout,
        embedding_size: int = _MODEL.embedding_size,
        tokens: str = _MODEL.tokens,
        lowercase: bool = _MODEL.lowercase,
        min_count: int = _MODEL.min_count,
        word_dropout: float = _MODEL.word_dropout,
        subwords: int | None = _MODEL.subwords,
        frame: int = _MODEL.frame,
        per_series: bool | None = _MODEL.per_series,
        epochs: int = _TRAINING.epochs,
        batch_tokens: int = _TRAINING.batch_tokens,
        batch_sequences: int = _TRAINING.batch_sequences,
        learning_rate: float = _TRAINING.learning_rate,
        weight_decay: float = _TRAINING.weight_decay,
        label_smoothing: float = _TRAINING.label_smoothing,
        clip: float = _TRAINING.clip,
        patience: int = _TRAINING.patience,
        valid_fraction: float = _TRAINING.valid_fraction,
        device: str = _TRAINING.device,
        random_state: int | None = None,
    ) -> None:
        self.cell = cell
        self.hidden_size = hidden_size
        self.layers = layers
        self.bidirectional = bidirectional
        self.dropout = dropout
        self.embedding_size = embedding_size
        self.tokens = tokens
        self.lowercase = lowercase
        self.min_count = min_count
        self.word_dropout = word_dropout
        self.subwords = subwords
        self.frame = frame
        self.per_series = per_series
        self.epochs = epochs
        self.batch_tokens = batch_tokens
        self.batch_sequences = batch_sequences
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.label_smoothing = label_smoothing
        self.clip = clip
        self.patience = patience
        self.valid_fraction = valid_fraction
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> SequenceClassifier:
        """Train on sequences X with labels y [N]; the weights of the best epoch are kept.

        Raises `ArgumentError` or `ArgumentTypeError` for sequences or labels that do not fit.
        """
        # Here, not above: Lightning takes seconds to import, and a loaded model does without.
        from unpad.tasks.training import split_off, train

        seed = self._seed()
        model, training = self._settings(seed)
        labels = _as_labels(y)
        table = _as_table(X, labels=[str(label) for label in labels.tolist()])
        self.classes_ = np.unique(labels)
        fitting, valid = split_off(table, training.valid_fraction, seed)
        preparation = Preparation.fit(fitting, model)
        data = preparation.dataset(fitting)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            classifier = Classifier.build(preparation, model)
        with tempfile.TemporaryDirectory() as folder:
            classifier.save_config(Path(folder))
            held = None if valid is None else preparation.dataset(valid)
            result = train(classifier, data, held, training, Path(folder), tensorboard=False)
            if result.interrupted:
                raise KeyboardInterrupt
            self.classifier_ = Classifier.load(folder)
        self.history_, self.best_epoch_ = result.rows, result.best_epoch
        self.n_features_in_ = preparation.features
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities [N, classes], columns in the order of ``classes_``."""
        fitted = self._fitted()
        found = fitted.probabilities(_as_table(X))
        return found[:, _order(fitted.preparation.labels, self.classes_)]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable label of each sequence [N], of the type of ``y``."""
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(axis=1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the sequences whose label is predicted, weighted by ``sample_weight`` [N]."""
        labels, found = _as_labels(y), self.predict(X)
        if len(labels) != len(found):
            raise _unequal(len(labels), len(found))
        return float(np.average(found == labels, weights=sample_weight))

    def save(self, folder: str | Path) -> None:
        """Write the fitted model into a folder (JSON and safetensors, no pickle)."""
        fitted = self._fitted()
        fitted.save(folder)
        kind = {"i": "int", "u": "int", "b": "bool"}.get(self.classes_.dtype.kind, "str")
        parameters = {name: getattr(self, name) for name in _PARAMETERS}
        write_json(Path(folder) / _FILE, {"parameters": parameters, "labels": kind})

    @classmethod
    def load(cls, folder: str | Path) -> SequenceClassifier:
        """Read what `save` wrote, or the folder of an ``unpad train classify`` run."""
        import json

        classifier = Classifier.load(folder)
        path = Path(folder) / _FILE
        try:
            saved = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            found = cls(**saved.get("parameters", classifier.settings.to_dict()))
        except (ValueError, TypeError) as error:
            raise RunError(f"{path}: broken ({error}); save the model again") from None
        found.classifier_ = classifier
        labels = classifier.preparation.labels
        read = _LABELS.get(saved.get("labels"), str)
        found.classes_ = np.unique(np.array([read(label) for label in labels]))
        found.n_features_in_ = classifier.preparation.features
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classifier_")

    def _fitted(self) -> Classifier:
        if not hasattr(self, "classifier_"):
            raise _NotFitted("this SequenceClassifier has no weights yet; call fit first")
        return self.classifier_

    def _seed(self) -> int:
        if self.random_state is None:
            return int(np.random.randint(2**31))  # noqa: NPY002 - scikit-learn's rule for None
        if isinstance(self.random_state, bool) or not isinstance(
            self.random_state, (int, np.integer)
        ):  # pyright: ignore[reportUnnecessaryIsInstance]
            allowed = "an integer >= 0, or None"
            raise ArgumentTypeError("random_state", self.random_state, allowed, "pass an int")
        return int(self.random_state)

    def _settings(self, seed: int) -> tuple[ModelSettings, TrainingSettings]:
        def chosen(kind: Any) -> dict[str, Any]:
            names = [n for n in kind.__dataclass_fields__ if n in _PARAMETERS]
            return {name: getattr(self, name) for name in names}

        model = ModelSettings(**chosen(ModelSettings))
        return model, TrainingSettings(**chosen(TrainingSettings), seed=seed)


_FILE = "estimator.json"
_LABELS_ALLOWED = "strings, integers or bools, [N]"
_LABELS: dict[Any, Callable[[str], Any]] = {"int": int, "bool": "True".__eq__}
_PARAMETERS = tuple(SequenceClassifier.__init__.__kwdefaults__ or ())


def _order(labels: Sequence[str], classes: npt.NDArray[Any]) -> list[int]:
    return [labels.index(str(c)) for c in classes.tolist()]


def _as_labels(y: Any) -> npt.NDArray[Any]:
    labels = np.asarray(y)
    if labels.size == 0:
        labels = labels.astype(str)
    if labels.ndim != 1 or labels.dtype.kind not in "iubUSO":
        raise ArgumentTypeError("y", labels, _LABELS_ALLOWED, "give one label a sequence")
    if labels.dtype.kind in "SO" and not all(isinstance(v, str) for v in labels.tolist()):
        raise ArgumentTypeError("y", labels, _LABELS_ALLOWED, "convert the labels")
    return labels


def _as_table(X: Any, labels: list[str] | None = None) -> SequenceTable:
    """Sequences of any accepted form as a table; labels must be as many."""
    kind, sequences = _as_arrow(X)
    if labels is not None and len(labels) != len(sequences):
        raise _unequal(len(labels), len(sequences))
    source = Source("X", "sequence", "X")
    return make_table(kind, sequences, source, places=range(len(sequences)), label=labels)


def _unequal(labels: int, sequences: int) -> ArgumentError:
    return ArgumentError("y", f"{labels} labels", f"{sequences}, one a sequence of X", "match them")


def _as_arrow(X: Any) -> tuple[Any, pa.Array]:
    if isinstance(X, Ragged):
        X = X.to_list()
    rows = _rows(X)
    texts = [isinstance(row, str) for row in rows]
    if any(texts) and not all(texts):
        at = texts.index(False)
        given = f"a {type(rows[at]).__name__}, X[{texts.index(True)}] is a text"
        raise ArgumentTypeError(f"X[{at}]", given, "texts or sequences throughout", "convert it")
    if any(texts):
        return "text", pa.array(rows, pa.string())
    if rows and all(_is_tokens(row) for row in rows) and any(len(row) for row in rows):
        return "tokens", token_lists(cast("list[list[str]]", rows))
    arrays = [_as_array(i, row) for i, row in enumerate(rows)]
    first = next((i for i, a in enumerate(arrays) if len(a)), None)
    width = 1 if first is None else arrays[first].shape[1]
    for i, array in enumerate(arrays):
        if len(array) and array.shape[1] != width:
            problem = f"{array.shape[1]} features a step, X[{first}] has {width}"
            raise ArgumentError(f"X[{i}]", problem, "the same in all", "check the sequence")
    full = [a for a in arrays if len(a)] or [np.zeros((0, width), np.float32)]
    offsets = np.cumsum([0, *(len(a) for a in arrays)], dtype=np.int64)
    return "numbers", number_lists(np.concatenate(full), offsets)


def _rows(X: Any) -> list[Any]:
    """The sequences one by one; by number, as iterating over a data frame gives its columns."""
    many = hasattr(X, "__len__") and hasattr(X, "__getitem__") and getattr(X, "ndim", 1) != 0
    if many and not isinstance(X, (str, Mapping)):
        with contextlib.suppress(KeyError):
            return [X[i] for i in range(len(X))]
    raise ArgumentTypeError(
        "X",
        X if isinstance(X, str) else f"a {type(X).__name__}",
        "a list of arrays [T_i, F] or [T_i], or of texts",
        "put sequences in a list",
    )


def _is_tokens(row: Any) -> bool:
    return isinstance(row, (list, tuple)) and all(
        isinstance(t, str) for t in cast("list[Any]", row)
    )


def _as_array(number: int, row: Any) -> npt.NDArray[np.float32]:
    argument, allowed = f"X[{number}]", "numbers, [T, F] or [T]"
    refuse_masked(row, argument)
    if isinstance(row, torch.Tensor):
        row = row.detach().cpu().numpy()
    try:
        array = np.asarray(row)
    except ValueError:
        raise ArgumentTypeError(
            argument, row, allowed, "give every step the same number of features"
        ) from None
    if array.size == 0:
        return np.zeros((0, 1), np.float32)
    if array.dtype.kind not in "iufb":
        raise ArgumentTypeError(argument, array, allowed, "convert it to numbers")
    if array.ndim not in (1, 2):
        shape = f"an array of shape {list(array.shape)}"
        raise ArgumentError(argument, shape, allowed, "flatten the features of a step")
    wide = array.reshape(len(array), -1)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    bad = np.argwhere(~np.isfinite(narrow))
    if len(bad):
        step, feature = bad[0].tolist()
        raise ArgumentError(
            argument,
            f"{wide[step, feature]} at step {step}, feature {feature}",
            "finite float32 numbers",
            "fill the gap or drop the step",
        )
    return narrow
