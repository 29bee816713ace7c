"""From a table of sequences to the model's input; everything is measured on the training set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from unpad.data import DataError, RaggedDataset, SequenceTable, Vocabulary
from unpad.data.table import Floats, Integers
from unpad.data.vocabulary import Tokens, choose_tokens
from unpad.errors import ArgumentError
from unpad.tasks.frames import into_frames
from unpad.tasks.settings import SUBWORDS, ModelSettings
from unpad.tasks.words import WordDataset

LONG_SERIES = 100
"""Series of one feature with a median length above this are framed, unless the user says."""
FRAMES_PER_SERIES = 40
"""About how many frames the median of such series becomes."""
WILD_SCALES = 10.0
"""Ratio of the 95 % to the 5 % quantile of the series' scales above which each is its own."""
_TINY = 1e-12


@dataclass(frozen=True)
class Preparation:
    """How sequences become input: ``kind``, labels, and normalisation or vocabulary.

    Numbers are standardised by ``mean`` and ``scale`` [F] of the training set. With ``per_series``
    each series is first taken by its own mean and scale; the logarithms of its scale and of its
    largest value follow as two constant features, since they may tell classes apart. Then ``frame``
    steps make one. Text becomes ids of ``vocabulary`` and, with ``subwords``, n-grams in as many
    buckets.
    """

    kind: str
    labels: tuple[str, ...]
    features: int
    frame: int = 1
    per_series: bool = False
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    subwords: int = 0
    vocabulary: Vocabulary | None = None

    @classmethod
    def fit(cls, table: SequenceTable, settings: ModelSettings) -> Preparation:
        """Measure labels and vocabulary or normalisation on the training set ``table``."""
        labels = _labels_of(table)
        if table.kind != "numbers":
            tokens = _tokens(table, settings)
            return cls(
                table.kind, labels, 1,
                subwords=_subwords(tokens, settings),
                vocabulary=_vocabulary(table, tokens, settings),
            )  # fmt: skip
        table.check_finite()
        values, offsets = table.numbers()
        if len(values) == 0:
            raise DataError(
                table.source.path, "every sequence is empty", "give sequences with steps"
            )
        frame = settings.frame or _choose_frame(table.feature_count, offsets)
        per_series = settings.per_series
        if per_series is None:
            per_series = table.feature_count == 1 and _wild(values, offsets)
        bare = cls("numbers", labels, table.feature_count, frame, per_series)
        inputs = bare.own_scale(values, offsets)
        mean, deviation = inputs.mean(0, dtype=np.float64), inputs.std(0, dtype=np.float64)
        scale = np.where(deviation > _TINY * np.maximum(np.abs(mean), 1), deviation, 1.0)
        return replace(bare, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    @property
    def input_size(self) -> int:
        """Features of one step of the model's input; for text the number of ids."""
        return len(self.vocabulary) if self.vocabulary else len(self.mean) * self.frame

    def encode(self, table: SequenceTable) -> tuple[torch.Tensor, torch.Tensor]:
        """Values ([T, input_size] float32, or ids [T] int64) and offsets [B+1] of a table."""
        self._check_kind(table)
        if self.vocabulary is not None:
            ids, offsets = self.vocabulary.encode(_texts(table))
            return torch.from_numpy(ids), torch.from_numpy(offsets)
        table.check_finite()
        values, offsets = table.numbers()
        if len(values) == 0:
            return torch.zeros(0, self.input_size), torch.from_numpy(offsets.copy())
        inputs = self.own_scale(values, offsets)
        inputs = (inputs - np.asarray(self.mean, np.float32)) / np.asarray(self.scale, np.float32)
        framed, offsets = into_frames(inputs, offsets, self.frame)
        return torch.from_numpy(framed), torch.from_numpy(offsets.copy())

    def inputs(self, table: SequenceTable, labels: torch.Tensor) -> RaggedDataset:
        """What the model reads of a table, with label numbers [B]."""
        if self.vocabulary is None or not self.subwords:
            return RaggedDataset(*self.encode(table), labels)
        self._check_kind(table)
        return WordDataset.of(_texts(table), self.vocabulary, self.subwords, labels)

    def dataset(self, table: SequenceTable) -> RaggedDataset:
        """Input and label numbers of a labelled table; an unknown label is a `DataError`."""
        known = {label: i for i, label in enumerate(self.labels)}
        numbers: list[int] = []
        for row, label in enumerate(table.strings("label")):
            if label is None:
                raise _no_label(table, row)
            if label not in known:
                raise DataError(
                    table.source.path,
                    f"label {label!r} is not one of the model's: {', '.join(self.labels)[:200]}",
                    "correct it, leave the row out, or train with it",
                    place=table.place(row),
                )
            numbers.append(known[label])
        return self.inputs(table, torch.tensor(numbers, dtype=torch.int64))

    def own_scale(self, values: Floats, offsets: Integers) -> Floats:
        """Values [T, F], with ``per_series`` [T, 3F]: normalised, log scale, log peak."""
        if not self.per_series:
            return values
        lengths = np.diff(offsets)
        filled = lengths > 0
        starts = offsets[:-1][filled]
        count = lengths[filled][:, None]
        wide = values.astype(np.float64)
        mean = np.add.reduceat(wide, starts) / count
        sequence = np.repeat(np.arange(len(starts)), lengths[filled])
        centred = wide - mean[sequence]
        scale = np.sqrt(np.add.reduceat(centred**2, starts) / count)
        peak = np.maximum.reduceat(np.abs(wide), starts)
        normal = centred / np.where(scale > _TINY * np.maximum(peak, _TINY), scale, 1.0)[sequence]
        logs = [np.log10(np.maximum(x, _TINY))[sequence] for x in (scale, peak)]
        return np.concatenate([normal, *logs], axis=1).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the vocabulary has a file of its own."""
        return {
            "kind": self.kind,
            "labels": list(self.labels),
            "features": self.features,
            "frame": self.frame,
            "per_series": self.per_series,
            "subwords": self.subwords,
            "mean": list(self.mean),
            "scale": list(self.scale),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], vocabulary: Vocabulary | None) -> Preparation:
        """Read what `to_dict` wrote."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**plain, vocabulary=vocabulary)

    def _check_kind(self, table: SequenceTable) -> None:
        empty = table.kind == "numbers" and table.numbers()[1][-1] == 0
        if table.kind != self.kind and not (empty and self.kind == "tokens"):  # [] is either
            raise DataError(
                table.source.path,
                f"its sequences are {table.kind}; the model was trained on {self.kind}",
                "give data of the same form, or name the column with --sequence",
                column=table.source.column,
            )
        if not empty and table.feature_count != self.features:
            raise DataError(
                table.source.path,
                f"{table.feature_count} features a step; the model was trained on {self.features}",
                "give the same features in the same order",
                column=table.source.column,
            )


def _labels_of(table: SequenceTable) -> tuple[str, ...]:
    labels = table.strings("label")
    if not labels:
        raise DataError(table.source.path, "no sequence to train on", "give at least two")
    for row, label in enumerate(labels):
        if label is None:
            raise _no_label(table, row)
    names = sorted(set(cast("list[str]", labels)), key=_natural)
    if len(names) < 2:
        raise DataError(
            table.source.path,
            f"all {len(labels)} labels are {names[0]!r}",
            "classification needs at least two different labels",
        )
    return tuple(names)


def _natural(label: str) -> tuple[int, float, str]:
    """Numbers by value, then the rest by name."""
    return (0, int(label), "") if label.lstrip("-").isdecimal() else (1, 0, label)


def _no_label(table: SequenceTable, row: int) -> DataError:
    if table.column("label") is None:
        return DataError(
            table.source.path, "no column holds the label", "name the column with --label"
        )
    return DataError(
        table.source.path,
        "the label is missing",
        "fill it in or leave the row out",
        place=table.place(row),
    )


def _tokens(table: SequenceTable, settings: ModelSettings) -> Tokens:
    tokens = choose_tokens(table) if settings.tokens == "auto" else settings.tokens
    if (tokens == "given") != (table.kind == "tokens"):
        raise ArgumentError(
            "tokens",
            settings.tokens,
            "given for lists of tokens; characters or words for text",
            f"the file holds {table.kind}: leave it at auto",
        )
    return cast("Tokens", tokens)


def _subwords(tokens: Tokens, settings: ModelSettings) -> int:
    if settings.subwords is None:
        return 0 if tokens == "characters" else SUBWORDS
    return settings.subwords


def _vocabulary(table: SequenceTable, tokens: Tokens, settings: ModelSettings) -> Vocabulary:
    vocabulary = Vocabulary.build(
        _texts(table), tokens, lowercase=settings.lowercase, min_count=settings.min_count
    )
    if len(vocabulary) == 1:
        raise DataError(table.source.path, "every text is empty", "give texts with characters")
    return vocabulary


def _texts(table: SequenceTable) -> list[str] | list[list[str]]:
    if table.kind == "text":
        return table.texts()
    if table.kind == "numbers":  # rows of no tokens
        return [[]] * len(table)
    tokens, offsets = table.tokens()
    return [tokens[i:j] for i, j in pairwise(offsets.tolist())]


def _choose_frame(features: int, offsets: Integers) -> int:
    median = float(np.median(np.diff(offsets)))
    return (
        max(1, round(median / FRAMES_PER_SERIES)) if features == 1 and median > LONG_SERIES else 1
    )


def _wild(values: Floats, offsets: Integers) -> bool:
    scales = [
        float(values[i:j].std(dtype=np.float64)) for i, j in pairwise(offsets.tolist()) if j > i
    ]
    low, high = np.quantile(scales, [0.05, 0.95])
    return bool(high > WILD_SCALES * low)
