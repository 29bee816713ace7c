"""Classes for the two-level softmax: by order, by frequency, by embeddings, by bigrams.

Each gives int64 [V], the class of each word. The classes decide the cost (tokens pay for the words
of their class), how well two levels model the text, and how soon `topk` may stop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unpad.cells.arguments import check_choice, check_size
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged
from unpad.ragged.lengths import as_integers
from unpad.softmax.bigrams import exchanged
from unpad.softmax.clusters import balanced_clusters
from unpad.softmax.grouping import default_count


def classes_in_order(vocabulary: int, count: int | None = None) -> Tensor:
    """Return ``count`` classes of equal size in the order of words: int64 [V].

    Args:
        vocabulary: V, the number of words.
        count: the number of classes; None: about √V.

    >>> classes_in_order(7, 3)
    tensor([0, 0, 0, 1, 1, 2, 2])
    """
    check_size("vocabulary", vocabulary)
    chosen = _checked_count(count, vocabulary)
    return torch.arange(vocabulary, device="cpu") * chosen // vocabulary


def classes_by_frequency(
    counts: Any, count: int | None = None, *, balance: str = "words"
) -> Tensor:
    """Return classes of words that are about as frequent, the most frequent first: int64 [V].

    Args:
        counts: [V], how often each word occurs: integers or real numbers, 0 or more.
        count: the number of classes; None: about √V.
        balance: "words": classes of equal size, so that every token costs the same and rare words'
            weights are seldom touched. "tokens": classes that occur equally often (Mikolov et al.,
            2011, section 4), of a few frequent words or many rare ones; the cost is the same on
            average.

    Raises:
        ArgumentError: a negative count, or more classes than words.

    >>> classes_by_frequency([5, 90, 3, 2], 2)
    tensor([0, 0, 1, 1])
    >>> classes_by_frequency([5, 90, 3, 2], 2, balance="tokens")
    tensor([1, 0, 1, 1])
    """
    found = _as_numbers(counts, "counts", 1)
    wrong = (found < 0) | ~found.isfinite()
    if bool(wrong.any()):
        word, allowed = int(wrong.nonzero()[0]), "finite numbers, 0 or more"
        raise ArgumentError("counts", f"{found[word]} of word {word}", allowed, "count anew")
    chosen = _checked_count(count, len(found))
    check_choice("balance", balance, ("words", "tokens"))
    order = found.argsort(descending=True, stable=True)
    classes = torch.empty_like(order)
    if balance == "words":
        classes[order] = classes_in_order(len(found), chosen)
    else:
        classes[order] = _by_mass(found[order], chosen)
    return classes


def classes_by_embedding(
    embeddings: Any, count: int | None = None, *, iterations: int = 10, seed: int = 0
) -> Tensor:
    """Return classes of words whose vectors are near each other: int64 [V].

    k-means with room for ⌈V / count⌉ words in each class, so that no class is large.

    Args:
        embeddings: [V, E], a vector for each word, such as a trained Embedding's weight.
        count: the number of classes; None: about √V.
        iterations: how often centres and members are chosen anew.
        seed: of the first centres.

    Raises:
        ArgumentError: vectors that are not finite, or more classes than words.

    >>> vectors = torch.tensor([[0.0], [9.0], [0.1], [9.1]])
    >>> classes = classes_by_embedding(vectors, 2)
    >>> bool(classes[0] == classes[2] and classes[1] == classes[3] and classes[0] != classes[1])
    True
    """
    vectors = _as_numbers(embeddings, "embeddings", 2)
    if not bool(vectors.isfinite().all()):
        word = int((~vectors.isfinite().all(1)).nonzero()[0])
        raise ArgumentError("embeddings", f"word {word}'s vector", "finite numbers", "train anew")
    check_size("iterations", iterations)
    chosen = _checked_count(count, len(vectors))
    return balanced_clusters(vectors, chosen, iterations, seed)


def classes_by_bigrams(
    tokens: Any, vocabulary: int, count: int | None = None, *, iterations: int = 3
) -> Tensor:
    """Return classes of words that follow the same words, from a text: int64 [V].

    Words change class one by one while that makes the text likelier under a class bigram model,
    ``p(w | v) = p(w | c(w)) p(c(w) | v)``, whose first factor is the second level's and whose
    second is the first level's: the classes that two levels predict best from the word before.

    Args:
        tokens: the text: integers [T], or a Ragged of words, across whose rows no bigram goes.
        vocabulary: V, the number of words.
        count: the number of classes; None: about √V. None has more than twice the average of
            words. Memory: V times ``count`` 32-bit numbers.
        iterations: how often every word is looked at.

    Raises:
        ArgumentError: a token that is no word, or more classes than words.

    Source: the exchange algorithm of Martin, Liermann and Ney, "Algorithms for bigram and trigram
    word clustering" (1998), with the one-sided model of Uszkoreit and Brants (ACL 2008), section 3;
    what Brown et al. (1992) cluster for.

    >>> text = [0, 2, 1, 3, 0, 3, 1, 2] * 9  # 0 and 1 stand before 2 or 3, and the other way round
    >>> classes = classes_by_bigrams(text, 4, 2)
    >>> bool(classes[0] == classes[1] and classes[2] == classes[3] and classes[0] != classes[2])
    True
    """
    check_size("vocabulary", vocabulary)
    check_size("iterations", iterations)
    chosen = _checked_count(count, vocabulary)
    ragged = isinstance(tokens, Ragged)
    words = as_integers(tokens.values if ragged else tokens, argument="tokens")
    wrong = ((words < 0) | (words >= vocabulary)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise ArgumentError(
            "tokens", f"{int(words[at])} at {at}", f"0 to {vocabulary - 1}", "check the vocabulary"
        )
    starts = tokens.offsets[1:-1] if ragged else torch.zeros(0, dtype=torch.int64, device="cpu")
    return exchanged(words, starts, vocabulary, chosen, iterations)


def _checked_count(count: int | None, vocabulary: int) -> int:
    if count is None:
        return default_count(vocabulary)
    if check_size("count", count) > vocabulary:
        raise ArgumentError(
            "count", count, f"at most {vocabulary}, the number of words", "ask for fewer classes"
        )
    return int(count)


def _as_numbers(numbers: Any, argument: str, rank: int) -> Tensor:
    try:
        found = torch.as_tensor(numbers).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            argument, numbers, "numbers: a tensor, an array or a list", "convert it to a tensor"
        ) from None
    if found.dim() != rank or len(found) == 0:
        raise ArgumentError(
            argument,
            f"shape {list(found.shape)}",
            "[V], a number for each word" if rank == 1 else "[V, E], a vector for each word",
            "give one for each word of the vocabulary",
        )
    return found.to(device="cpu", dtype=torch.float64 if rank == 1 else torch.float32)


def _by_mass(counts: Tensor, count: int) -> Tensor:
    """Cut sorted words where the sum reaches a share, with a word or more in each class."""
    before = counts.cumsum(0) - counts / 2
    wanted = (before * count / counts.sum().clamp_min(1e-300)).long().clamp_max(count - 1)
    # At most one more than the word before, and as many left as there are classes to come.
    found, last, size = wanted.tolist(), -1, len(counts)
    for place in range(size):
        least = count - (size - place)
        found[place] = last = max(last, min(found[place], last + 1), least)
    return torch.tensor(found, device="cpu")
