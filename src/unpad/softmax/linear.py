"""The full softmax: a linear layer and its cross entropy in one, with no logits in between."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unpad.softmax.arguments import check_smoothing
from unpad.softmax.base import WordSoftmax
from unpad.softmax.reference import Head


class LinearCrossEntropy(WordSoftmax):
    """The loss of a full softmax over many words: ``-log softmax(W h + b)[target]``.

    The product, the sum over all words and the gradients are taken together, some words at a time:
    no [tokens, vocabulary] tensor is kept. It has the methods of `HierarchicalSoftmax`, so that
    either can stand where the other does.

    Args:
        hidden_size: H, features of a hidden row.
        vocabulary: V, the number of words.
        bias: whether words have a bias.
        weight: a Parameter [V, H] to share, such as an Embedding's weight.
        ignore_index: a target whose loss is 0.
        reduction: "mean" over the tokens that are not ignored, "sum" or "none".
        label_smoothing: the share of a target that is spread over all words, as in
            ``torch.nn.functional.cross_entropy``.
        importance: [V], what a target's loss is multiplied by; the mean is over the sum of these,
            as with torch's ``weight`` of a class. (The smoothed part is multiplied alike, where
            torch multiplies it by each word's own.)
        temperature: what the logits are divided by.
        precision: "bfloat16" rounds the operands of products; None: as the tensors and autocast
            say, like `unpad.nn.LSTM`.
        device, dtype: of the parameters.

    Parameters: ``weight`` [V, H] and ``bias`` [V], named as in torch.nn.Linear, whose state_dict
    it loads.

    Raises:
        ArgumentError, ArgumentTypeError: sizes and options that are not allowed.

    A call takes ``(hidden, target)``, tensors [..., H] and [...] or Raggeds, and gives the loss.
    Second derivatives work, in torch operations.

    Source: Wijmans et al., "Cut your losses in large-vocabulary language models" (2024).

    >>> import torch
    >>> softmax = LinearCrossEntropy(8, 1000)
    >>> hidden, target = torch.randn(2, 5, 8), torch.randint(1000, (2, 5))
    >>> logits = torch.nn.functional.linear(hidden, softmax.weight, softmax.bias)
    >>> wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    >>> torch.allclose(softmax(hidden, target), wanted)
    True
    """

    def __init__(
        self,
        hidden_size: int,
        vocabulary: int,
        *,
        bias: bool = True,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        importance: Tensor | None = None,
        temperature: float = 1.0,
        precision: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            hidden_size,
            vocabulary,
            bias=bias,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            importance=importance,
            temperature=temperature,
            precision=precision,
            device=device,
            dtype=dtype,
        )
        self.label_smoothing = check_smoothing(label_smoothing)

    def _head(self, *, temperature: float, rounds: bool) -> Head:
        return Head(
            self.weight,
            self.bias,
            temperature=temperature,
            label_smoothing=self.label_smoothing,
            rounds=rounds,
        )
