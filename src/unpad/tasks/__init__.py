"""Tasks: from sequences to a trained model."""

from unpad.tasks.classify import Job, Scores, evaluate, predict, train_classifier
from unpad.tasks.estimator import SequenceClassifier
from unpad.tasks.run_error import RunError
from unpad.tasks.saved import Classifier
from unpad.tasks.settings import ModelSettings, TrainingSettings

__all__ = [
    "Classifier",
    "Job",
    "ModelSettings",
    "RunError",
    "Scores",
    "SequenceClassifier",
    "TrainingSettings",
    "evaluate",
    "predict",
    "train_classifier",
]
