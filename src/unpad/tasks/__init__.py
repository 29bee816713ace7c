"""Tasks: from sequences to a trained model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unpad.tasks.classify import Job, train_classifier
    from unpad.tasks.estimator import SequenceClassifier
    from unpad.tasks.language.model import LanguageModel
    from unpad.tasks.language.settings import LanguageSettings, LanguageTraining
    from unpad.tasks.language.training import LanguageJob, train_language_model
    from unpad.tasks.run_error import RunError
    from unpad.tasks.saved import Classifier
    from unpad.tasks.scoring import Scores, evaluate, predict
    from unpad.tasks.settings import ModelSettings, TrainingSettings

__all__ = [
    "Classifier",
    "Job",
    "LanguageJob",
    "LanguageModel",
    "LanguageSettings",
    "LanguageTraining",
    "ModelSettings",
    "RunError",
    "Scores",
    "SequenceClassifier",
    "TrainingSettings",
    "evaluate",
    "predict",
    "train_classifier",
    "train_language_model",
]

_HOMES = {
    "Classifier": "saved",
    "Job": "classify",
    "LanguageJob": "language.training",
    "LanguageModel": "language.model",
    "LanguageSettings": "language.settings",
    "LanguageTraining": "language.settings",
    "ModelSettings": "settings",
    "RunError": "run_error",
    "Scores": "scoring",
    "SequenceClassifier": "estimator",
    "TrainingSettings": "settings",
    "evaluate": "scoring",
    "predict": "scoring",
    "train_classifier": "classify",
    "train_language_model": "language.training",
}


def __getattr__(name: str) -> Any:
    """Import on first use: Lightning and scikit-learn take seconds, and few names need them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"unpad.tasks.{_HOMES[name]}"), name)
