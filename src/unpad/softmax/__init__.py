"""Softmaxes over many words: in two levels, and a full one without its logits."""

from unpad.softmax.classes import (
    classes_by_bigrams,
    classes_by_embedding,
    classes_by_frequency,
    classes_in_order,
)
from unpad.softmax.functions import linear_cross_entropy
from unpad.softmax.hierarchical import HierarchicalSoftmax
from unpad.softmax.linear import LinearCrossEntropy

__all__ = [
    "HierarchicalSoftmax",
    "LinearCrossEntropy",
    "classes_by_bigrams",
    "classes_by_embedding",
    "classes_by_frequency",
    "classes_in_order",
    "linear_cross_entropy",
]
