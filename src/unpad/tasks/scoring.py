"""From a trained classifier to scores and labels. Needs no Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unpad.data import Roles, SequenceTable, stream
from unpad.tasks.saved import Classifier


@dataclass(frozen=True)
class Scores:
    """How a classifier does on labelled sequences.

    ``confusion`` [classes, classes] counts true (rows) against predicted (columns) labels.
    """

    sequences: int
    accuracy: float
    loss: float
    labels: tuple[str, ...]
    confusion: list[list[int]]

    def by_label(self) -> list[dict[str, Any]]:
        """Sequences, precision, recall and F1 of each label (0 where undefined)."""
        table = np.array(self.confusion)
        rows: list[dict[str, Any]] = []
        for i, label in enumerate(self.labels):
            hit, true, said = int(table[i, i]), int(table[i].sum()), int(table[:, i].sum())
            rows.append({
                "label": label,
                "sequences": true,
                "precision": hit / said if said else 0.0,
                "recall": hit / true if true else 0.0,
                "f1": 2 * hit / (true + said) if true + said else 0.0,
            })  # fmt: skip
        return rows


def evaluate(classifier: Classifier, table: SequenceTable) -> Scores:
    """Score a classifier on a labelled table. Raises `DataError` for a label it does not know."""
    labels = classifier.preparation.labels
    truth = classifier.preparation.dataset(table).labels.numpy()
    chances = classifier.probabilities(table)
    said = chances.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(confusion, (truth, said), 1)
    likelihood = np.log(np.maximum(chances[np.arange(len(truth)), truth], 1e-38))
    return Scores(
        len(table), float((said == truth).mean()), float(-likelihood.mean()), labels,
        confusion.tolist(),
    )  # fmt: skip


def predict(
    classifier: Classifier, path: str | Path, roles: Roles, *, probabilities: bool = False
) -> Iterator[dict[str, Any]]:
    """Label the sequences of a file one after the other, in constant memory.

    Gives ``{"id", "label", "probability"}`` (and all ``"probabilities"`` by label on request); the
    id is the file's, or the number of the sequence from 0 on. Sequences before one that cannot be
    read are labelled before its `DataError`.
    """
    labels, done = classifier.preparation.labels, 0
    for table in _finite_first(stream(path, roles)):
        chances = classifier.probabilities(table)
        for row, (name, chance) in enumerate(zip(table.strings("id"), chances, strict=True)):
            best = int(chance.argmax())
            line: dict[str, Any] = {
                "id": done + row if name is None else name,
                "label": labels[best],
                "probability": round(float(chance[best]), 6),
            }
            if probabilities:
                line["probabilities"] = {
                    label: round(float(p), 6) for label, p in zip(labels, chance, strict=True)
                }
            yield line
        done += len(table)


def _finite_first(tables: Iterator[SequenceTable]) -> Iterator[SequenceTable]:
    """The tables, cut before the first sequence that is refused for its numbers."""
    for table in tables:
        bad = table.first_non_finite()
        row = 0 if bad is None else bad[0]
        if row:
            yield table.take(range(row))
        yield table.take(range(row, len(table))) if row else table


def merge_roles(asked: Roles, saved: Roles) -> Roles:
    """The user's columns, filled up by those that the classifier was trained on."""
    if asked.sequence or asked.features:
        return asked
    return replace(
        asked,
        sequence=saved.sequence,
        features=saved.features,
        id=asked.id or saved.id,
        time=asked.time or saved.time,
    )
