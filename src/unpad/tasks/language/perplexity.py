"""Perplexity of a mean loss."""

from __future__ import annotations

import math

LARGEST_LOSS = 50.0
"""Nats above which a perplexity is infinite: it would mean nothing."""


def perplexity(loss: float) -> float:
    """The exponential of a mean loss in nats.

    >>> round(perplexity(4.0), 2), perplexity(1e9)
    (54.6, inf)
    """
    return math.inf if loss >= LARGEST_LOSS else math.exp(loss)
