"""scikit-learn's ways with sequences of unequal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tasks.conftest import sequences
from unpad.engine import choose
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged
from unpad.tasks import SequenceClassifier

QUICK: dict[str, Any] = {"hidden_size": 8, "epochs": 12, "learning_rate": 0.02, "random_state": 0}


def scale(X: Any) -> list[Any]:
    return [2 * x for x in X]


def test_fit_predict_and_score_agree(seed: int) -> None:
    X, y = sequences(seed, 90)
    model = SequenceClassifier(**QUICK).fit(X[:60], y[:60])
    chances = model.predict_proba(X[60:])
    assert chances.shape == (30, 3)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-6)
    assert np.array_equal(model.predict(X[60:]), model.classes_[chances.argmax(1)])
    score = model.score(X[60:], y[60:])
    assert score == (model.predict(X[60:]) == y[60:]).mean()
    assert score > 0.6
    assert len(model.history_) == 12


def test_the_same_seed_gives_the_same_bits_and_a_clone_does_too(seed: int) -> None:
    X, y = sequences(seed)
    model = SequenceClassifier(**{**QUICK, "epochs": 2})
    first = model.fit(X, y).predict_proba(X)
    assert np.array_equal(clone(model).fit(X, y).predict_proba(X), first)
    assert not np.array_equal(model.set_params(random_state=1).fit(X, y).predict_proba(X), first)


def test_it_is_a_classifier_that_clones_pipes_and_cross_validates(seed: int) -> None:
    X, y = sequences(seed)
    model = SequenceClassifier(**{**QUICK, "epochs": 2})
    assert is_classifier(model)
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, X, y, cv=2).shape == (2,)
    pipe = make_pipeline(FunctionTransformer(scale), model).fit(X, y)
    assert pipe.predict(X).shape == (60,)
    search = GridSearchCV(model, {"hidden_size": [2, 4]}, cv=2).fit(X, y)
    assert search.best_params_["hidden_size"] in (2, 4)


def test_labels_keep_their_type_and_order(seed: int) -> None:
    X, y = sequences(seed)
    quick = {**QUICK, "epochs": 1}
    numbers = SequenceClassifier(**quick).fit(X, [v + 9 for v in y])  # "10" < "9" as strings
    assert numbers.classes_.tolist() == [9, 10, 11]
    words = SequenceClassifier(**quick).fit(X, [f"w{v}" for v in y])
    assert words.classes_.tolist() == ["w0", "w1", "w2"]
    np.testing.assert_array_equal(numbers.predict_proba(X), words.predict_proba(X))


def test_every_form_of_the_same_sequences_is_the_same(seed: int) -> None:
    X, y = sequences(seed)
    model = SequenceClassifier(**{**QUICK, "epochs": 1}).fit(X, y)
    expected = model.predict_proba(X)
    ragged = Ragged.from_list([torch.tensor(x) for x in X])
    for form in (ragged, [x.tolist() for x in X], [torch.tensor(x) for x in X], tuple(X)):
        np.testing.assert_array_equal(model.predict_proba(form), expected)
    full = np.random.default_rng(seed).normal(size=(5, 4, 2))
    np.testing.assert_array_equal(model.predict_proba(full), model.predict_proba(list(full)))


def test_univariate_empty_text_and_tokens_are_sequences_too(seed: int) -> None:
    random = np.random.default_rng(seed)
    quick = {**QUICK, "epochs": 1}
    y = [0, 1] * 10
    series = [random.normal(size=n) for n in random.integers(0, 9, 20)]
    series[0] = []
    assert SequenceClassifier(**quick).fit(series, y).predict([[], [0.5]]).shape == (2,)
    texts = ["so it goes", "", "well"] * 6 + ["x", "y"]
    assert SequenceClassifier(**quick).fit(texts, y).predict(["", "unseen"]).shape == (2,)
    tokens = [text.split() for text in texts]
    assert SequenceClassifier(**quick).fit(tokens, y).predict([[], ["unseen"]]).shape == (2,)


def test_a_saved_model_predicts_the_same(seed: int, tmp_path: Path) -> None:
    X, y = sequences(seed)
    model = SequenceClassifier(**{**QUICK, "epochs": 2}).fit(X, [v + 9 for v in y])
    model.save(tmp_path / "m")
    again = SequenceClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.get_params() == model.get_params()
    assert not list((tmp_path / "m").glob("*.pkl"))


def test_labels_may_be_bools(seed: int, tmp_path: Path) -> None:
    X, y = sequences(seed, 20, classes=2)
    model = SequenceClassifier(**{**QUICK, "epochs": 1}).fit(X, np.array(y) == 1)
    assert model.classes_.tolist() == [False, True]
    assert model.predict(X).dtype == bool
    model.save(tmp_path / "m")
    again = SequenceClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.classes_.dtype == bool


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_with_no_sequence_to_spare_all_train_and_none_validates(fraction: float) -> None:
    X, y = [np.zeros((2, 1)), np.ones((2, 1))], [0, 1]
    model = SequenceClassifier(**{**QUICK, "epochs": 2, "valid_fraction": fraction}).fit(X, y)
    assert [row["epoch"] for row in model.history_] == [0, 1]
    assert not {name for row in model.history_ for name in row if name.startswith("valid")}
    assert model.predict(X).shape == (2,)


def test_prediction_before_fit_is_refused() -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        SequenceClassifier().predict([[1.0]])


ONE = np.ones((2, 3))


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([ONE, np.ones((2, 2))], [0, 1], ArgumentError, r"X\[1\].*2 features a step, X\[0\] has 3"),
        ([ONE, np.ones((2, 3, 1))], [0, 1], ArgumentError, r"X\[1\].*shape \[2, 3, 1\]"),
        ([ONE, [[1, 2, 3], [1]]], [0, 1], ArgumentTypeError, r"X\[1\]"),
        ([ONE, ["a", 1]], [0, 1], ArgumentTypeError, r"X\[1\]"),
        ([ONE, None], [0, 1], ArgumentTypeError, r"X\[1\]"),
        ([ONE, ONE * np.nan], [0, 1], ArgumentError, r"X\[1\].*nan at step 0, feature 0"),
        ([ONE, ONE], [0], ArgumentError, "`y`: got 1 labels; allowed: 2"),
        ([ONE, ONE], [0.5, 1.0], ArgumentTypeError, "`y`"),
        ([ONE, ONE], [0, 0], ValueError, "at least two different labels"),
        ("text", [0, 1], ArgumentTypeError, "`X`"),
        (3, [0, 1], ArgumentTypeError, "`X`"),
        ({"a": ONE, "b": ONE}, [0, 1], ArgumentTypeError, "`X`: got a dict; allowed: a list of"),
        ({0: ONE, 1: ONE}, [0, 1], ArgumentTypeError, "`X`: got a dict; allowed: a list of"),
        ([], [], ValueError, "no sequence to train on"),
        (["a", None], [0, 1], ArgumentTypeError, r"X\[1\].*NoneType, X\[0\] is a text"),
        (np.array(3.0), [0, 1], ArgumentTypeError, "`X`: got a ndarray"),
        ([ONE, np.ma.masked_less(np.arange(6.0), 2)], [0, 1], ArgumentError, r"X\[1\].*filled"),
    ],
)
def test_bad_input_is_refused_in_words(X: Any, y: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        SequenceClassifier(**QUICK).fit(X, y)


def test_a_machine_without_the_native_engine_is_told_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer is told to be quiet, and its lines are the nearest that are not ours."""
    monkeypatch.setattr(choose.native_engine, "_missing", "built without it")
    monkeypatch.setattr(choose, "_warned", set())
    with pytest.warns(RuntimeWarning, match="torch engine") as caught:
        SequenceClassifier(**QUICK).fit([ONE, ONE * 2] * 4, [0, 1] * 4)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_labels_to_score_are_as_many_as_the_sequences() -> None:
    fitted = SequenceClassifier(**QUICK).fit([ONE, ONE * 2] * 4, [0, 1] * 4)
    with pytest.raises(ArgumentError, match="`y`: got 2 labels; allowed: 3"):
        fitted.score([ONE] * 3, [0, 1])


def test_bad_parameters_are_refused_at_fit() -> None:
    for name, value in (("cell", "nope"), ("epochs", 0), ("random_state", "x"), ("device", "tpu")):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=f"argument `{name}`"):
            SequenceClassifier(**{**QUICK, name: value}).fit([ONE, ONE * 2] * 4, [0, 1] * 4)
