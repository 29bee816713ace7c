"""What the model reads: labels, normalisation, frames and ids, all measured on the training set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unpad.data import DataError, SequenceTable
from unpad.data.table import Source, make_table, number_lists, token_lists
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.tasks.frames import into_frames
from unpad.tasks.prepare import Preparation
from unpad.tasks.settings import ModelSettings, TrainingSettings

SOURCE = Source("data.jsonl", "line", "x")


def table_of(arrays: list[Any], labels: list[str | None] | None = None) -> SequenceTable:
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
    values = np.concatenate(arrays).astype(np.float32)
    places = range(1, len(arrays) + 1)
    return make_table("numbers", number_lists(values, offsets), SOURCE, places=places, label=labels)


def arrays_of(seed: int, features: int = 3, count: int = 20) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.normal(5, 3, (n, features)) for n in random.integers(0, 9, count)]


def alternating(count: int) -> list[str | None]:
    return ["ab"[i % 2] for i in range(count)]


@given(st.lists(st.integers(0, 13), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 2))
def test_frames_hold_every_step_and_only_steps_of_their_sequence(
    lengths: list[int], size: int, features: int
) -> None:
    offsets = np.cumsum([0, *lengths])
    values = np.arange(offsets[-1] * features, dtype=np.float32).reshape(-1, features)
    frames, bounds = into_frames(values, offsets, size)
    assert np.diff(bounds).tolist() == [-(-n // size) for n in lengths]
    for i, n in enumerate(lengths):
        own = frames[bounds[i] : bounds[i + 1]].reshape(-1, size, features)
        steps = values[offsets[i] : offsets[i + 1]]
        assert np.array_equal(np.unique(own), np.unique(steps))
        if n >= size:  # neighbours in a frame are neighbours in the series
            assert (np.diff(own[:, :, 0], axis=1) == features).all()


def test_numbers_are_standardised_by_the_training_set(seed: int) -> None:
    arrays = arrays_of(seed)
    preparation = Preparation.fit(table_of(arrays, alternating(20)), ModelSettings())
    steps = np.concatenate(arrays).astype(np.float32).astype(np.float64)
    other = arrays_of(seed + 1)
    values, offsets = preparation.encode(table_of(other))
    expected = (np.concatenate(other) - steps.mean(0)) / steps.std(0)
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-5)
    assert offsets.tolist() == np.cumsum([0, *map(len, other)]).tolist()
    assert preparation.input_size == 3


def test_a_feature_that_never_changes_is_zero(seed: int) -> None:
    arrays = arrays_of(seed, features=2)
    for array in arrays:
        array[:, 1] = 123.4
    table = table_of(arrays, alternating(20))
    values, _ = Preparation.fit(table, ModelSettings()).encode(table)
    assert values[:, 1].abs().max() < 1e-5


def test_series_of_wild_scales_are_taken_each_by_its_own(seed: int) -> None:
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.uniform(-4, 3, 30)
    arrays = [s * random.normal(1, 1, (int(random.integers(5, 30)), 1)) for s in scales]
    table = table_of(arrays, alternating(30))
    preparation = Preparation.fit(table, ModelSettings())
    assert preparation.per_series
    assert preparation.input_size == 3
    narrow = [array.astype(np.float32).astype(np.float64) for array in arrays]
    raw = np.concatenate([
        np.column_stack([
            (a - a.mean()) / a.std(),
            np.full(len(a), np.log10(a.std())),
            np.full(len(a), np.log10(np.abs(a).max())),
        ])
        for a in narrow
    ])  # fmt: skip
    values, _ = preparation.encode(table)
    np.testing.assert_allclose(values, (raw - raw.mean(0)) / raw.std(0), atol=2e-4)


def test_a_series_prepared_alone_is_the_series_in_the_crowd(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [s * random.normal(0, 1, (int(random.integers(0, 400)), 1)) for s in (1e-3, 1, 9, 1e3)]
    table = table_of(arrays, alternating(4))
    preparation = Preparation.fit(table, ModelSettings())
    assert preparation.frame > 1
    values, offsets = preparation.encode(table)
    for i in range(4):
        alone, _ = preparation.encode(table.take([i]))
        assert torch.equal(alone, values[offsets[i] : offsets[i + 1]])


def test_constant_and_zero_series_stay_finite() -> None:
    arrays = [np.zeros((5, 1)), np.full((3, 1), 7.0), np.zeros((0, 1)), np.array([[1e-6], [1e3]])]
    table = table_of(arrays, alternating(4))
    values, _ = Preparation.fit(table, ModelSettings(per_series=True)).encode(table)
    assert values.isfinite().all()


def test_labels_that_are_numbers_come_in_their_order() -> None:
    labels = ["10", "9", "-1", "b", "a", "2"]
    table = table_of([np.ones((1, 1))] * 6, labels)
    preparation = Preparation.fit(table, ModelSettings())
    assert preparation.labels == ("-1", "2", "9", "10", "a", "b")
    assert preparation.dataset(table).labels.tolist() == [3, 2, 0, 5, 4, 1]


def test_tokens_unseen_in_training_are_unknown() -> None:
    source = Source("t.jsonl", "line", "tokens")
    tables = [
        make_table("tokens", token_lists(rows), source, places=range(len(rows)), label=["a", "b"])
        for rows in ([["x", "y", "x"], []], [["z"], ["y", "x"]])
    ]
    preparation = Preparation.fit(tables[0], ModelSettings())
    assert preparation.encode(tables[1])[0].tolist() == [0, 2, 1]


def test_json_gives_the_same_preparation_back(seed: int) -> None:
    table = table_of(arrays_of(seed), alternating(20))
    preparation = Preparation.fit(table, ModelSettings(frame=2, per_series=True))
    again = Preparation.from_dict(preparation.to_dict(), None)
    assert again == preparation


def refusal(table: SequenceTable, settings: ModelSettings | None = None) -> str:
    with pytest.raises((DataError, ArgumentError)) as caught:
        Preparation.fit(table, settings or ModelSettings())
    return str(caught.value)


def test_data_that_cannot_be_trained_on_are_refused_in_words() -> None:
    ones = [np.ones((2, 1))] * 3
    assert "no column holds the label; name the column with --label" in refusal(table_of(ones))
    assert "line 2: the label is missing" in refusal(table_of(ones, ["a", None, "b"]))
    assert "all 3 labels are 'a'" in refusal(table_of(ones, ["a", "a", "a"]))
    empty = [np.ones((0, 1))] * 3
    assert "every sequence is empty" in refusal(table_of(empty, ["a", "b", "a"]))
    bad = [np.ones((2, 1)), np.array([[1.0], [np.inf]])]
    assert "line 2, column `x[0]`: step 1 holds inf" in refusal(table_of(bad, ["a", "b"]))


def test_data_unlike_the_training_set_are_refused_in_words(seed: int) -> None:
    preparation = Preparation.fit(table_of(arrays_of(seed), alternating(20)), ModelSettings())
    with pytest.raises(DataError, match="2 features a step; the model was trained on 3"):
        preparation.encode(table_of(arrays_of(seed, features=2)))
    words = make_table("text", token_lists([["a"]]).flatten(), SOURCE, places=[1])
    with pytest.raises(DataError, match="its sequences are text; the model was trained on numbers"):
        preparation.encode(words)
    strange = table_of([np.ones((1, 3))] * 2, ["a", "c"])
    with pytest.raises(DataError, match=r"line 2: label 'c' is not one of the model's: a, b"):
        preparation.dataset(strange)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ModelSettings, "cell", "transformer"),
        (ModelSettings, "hidden_size", 0),
        (ModelSettings, "dropout", 1.0),
        (ModelSettings, "word_dropout", 1.0),
        (ModelSettings, "frame", -1),
        (TrainingSettings, "epochs", 0),
        (TrainingSettings, "learning_rate", float("nan")),
        (TrainingSettings, "valid_fraction", 1.0),
        (TrainingSettings, "seed", -1),
    ],
)
def test_settings_out_of_range_are_named(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"argument `{name}`"):
        kind(**{name: value})


@pytest.mark.parametrize("value", ["3", True, 2.5])
def test_settings_of_a_wrong_type_are_named(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="argument `epochs`"):
        TrainingSettings(epochs=value)
