"""The softmax in two levels: a class, then one of its words."""

from __future__ import annotations

import itertools
from typing import Any, cast

import torch
from torch import Tensor, nn

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.softmax.base import WordSoftmax, uniform
from unpad.softmax.grouping import Grouping, as_class_of
from unpad.softmax.reference import Head


class HierarchicalSoftmax(WordSoftmax):
    """The loss of a softmax over many words in two levels: ``p(w | h) = p(c(w) | h) p(w | c, h)``.

    ``p(c | h) = softmax(C h + d)[c]`` over all classes, ``p(w | c, h) = softmax(W_c h + b_c)[w]``
    over the words of class c. A token costs the products with the classes and with one class's
    words, some 2 √V rows where a full softmax has V. Nothing is padded to the largest class, no
    weights are gathered token by token, no [tokens, vocabulary] tensor is made.

    Args:
        hidden_size: H, features of a hidden row.
        vocabulary: V, the number of words.
        classes: [V], the class of each word; or a list of words for each class; None: about √V
            groups of equal size in the order of words. `unpad.functional.classes_by_frequency` and
            its like make them.
        bias: whether words and classes have a bias.
        weight: a Parameter [V, H] to share, such as an Embedding's weight; by words, whatever the
            classes are: nothing is copied or reordered.
        ignore_index: a target whose loss is 0.
        reduction: "mean" over the tokens that are not ignored, "sum" or "none".
        importance: [V], what a target's loss is multiplied by; the mean is over the sum of these,
            as with torch's ``weight`` of a class.
        temperature: what the logits of both levels are divided by.
        precision: "bfloat16" rounds the operands of products; None: as the tensors and autocast
            say, like `unpad.nn.LSTM`.
        device, dtype: of the parameters.

    Parameters: ``weight`` [V, H] and ``bias`` [V] by words, ``class_weight`` [C, H] and
    ``class_bias`` [C]; buffer ``classes`` [V]. At first uniform within ±1/√H, as in
    torch.nn.Linear.

    Raises:
        ArgumentError: classes that are empty, miss a word or have one twice, by name; sizes.
        ArgumentTypeError: arguments of another type.

    A call takes ``(hidden, target)``, tensors [..., H] and [...] or Raggeds, and gives the loss.
    Second derivatives work, in torch operations.

    Source: Goodman, "Classes for fast maximum entropy training" (ICASSP 2001), equation 3; Mikolov
    et al., "Extensions of recurrent neural network language model" (ICASSP 2011), section 4.

    >>> softmax = HierarchicalSoftmax(8, 1000)
    >>> hidden, target = torch.randn(2, 5, 8), torch.randint(1000, (2, 5))
    >>> softmax(hidden, target).shape, len(softmax.class_weight)
    (torch.Size([]), 32)
    >>> torch.allclose(softmax.log_prob(hidden).exp().sum(-1), torch.ones(2, 5))
    True
    """

    classes: Tensor
    class_weight: Tensor
    class_bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        vocabulary: int,
        classes: Any = None,
        *,
        bias: bool = True,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
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
        found = as_class_of(classes, self.vocabulary)
        device, dtype = self.weight.device, self.weight.dtype
        self.register_buffer("classes", found.to(device))
        count = int(found.max()) + 1
        made = torch.empty(count, self.hidden_size, device=device, dtype=dtype)
        self.class_weight = nn.Parameter(made)
        uniform(self.class_weight, self.hidden_size)
        if bias:
            self.class_bias = nn.Parameter(torch.empty(count, device=device, dtype=dtype))
            uniform(self.class_bias, self.hidden_size)
        else:
            self.register_parameter("class_bias", None)
        self._grouped: tuple[Tensor, int, Grouping] | None = None

    @classmethod
    def from_adaptive(cls, adaptive: Any, **options: Any) -> HierarchicalSoftmax:
        """Make one with the very probabilities of a `torch.nn.AdaptiveLogSoftmaxWithLoss`.

        A word of its shortlist becomes a class of one word, a cluster a class. A cluster's two
        matrices become their product, so that what they kept of low rank is free from then on.
        ``options``: as for the class, without sizes, classes and weight.

        >>> adaptive = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 50, [10, 30])
        >>> softmax = HierarchicalSoftmax.from_adaptive(adaptive)
        >>> hidden = torch.randn(4, 16)
        >>> torch.allclose(softmax.log_prob(hidden), adaptive.log_prob(hidden), atol=1e-5)
        True
        """
        if not isinstance(adaptive, nn.AdaptiveLogSoftmaxWithLoss):
            raise ArgumentTypeError(
                "adaptive",
                type(adaptive).__name__,
                "a torch.nn.AdaptiveLogSoftmaxWithLoss",
                "load a state_dict into one first",
            )
        head, short = adaptive.head, adaptive.shortlist_size
        cuts = [int(cut) for cut in adaptive.cutoffs]
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        clusters = [short + n for n, size in enumerate(sizes) for _ in range(size)]
        made: dict[str, Any] = {"device": head.weight.device, "dtype": head.weight.dtype, **options}
        found = cls(adaptive.in_features, adaptive.n_classes, [*range(short), *clusters], **made)
        with torch.no_grad():
            found.class_weight.copy_(head.weight)
            if found.class_bias is not None:
                bias = cast("Tensor | None", head.bias)
                found.class_bias.zero_() if bias is None else found.class_bias.copy_(bias)
            if found.bias is not None:
                found.bias.zero_()
            found.weight[:short] = 0
            for n, tail in enumerate(adaptive.tail):
                inner, outer = cast("Any", tail)
                found.weight[cuts[n] : cuts[n + 1]] = outer.weight @ inner.weight
        return found

    @property
    def grouping(self) -> Grouping:
        """The words class by class, worked out anew where ``classes`` has changed."""
        held, now = self._grouped, self.classes
        if held is None or held[0] is not now or held[1] != now._version:
            held = self._grouped = (now, now._version, Grouping.of(now))
        return held[2]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: Any,
        unexpected_keys: Any, error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Load; classes that are none leave everything as it was."""
        given = state_dict.get(f"{prefix}classes")
        if isinstance(given, Tensor) and not given.is_meta:
            try:
                count, wanted = int(as_class_of(given, self.vocabulary).max()) + 1, self.class_count
                if count != wanted:
                    remedy = "build the module with these classes, then load"
                    raise ArgumentError("classes", f"{count} classes", f"{wanted}", remedy)
            except (ArgumentError, ArgumentTypeError) as refused:
                error_msgs.append(f"{prefix or type(self).__name__}: {refused}")
                return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    @property
    def class_count(self) -> int:
        """C, the number of classes."""
        return len(self.class_weight)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_grouped": None}

    def extra_repr(self) -> str:
        """Return what `repr` shows."""
        return f"{super().extra_repr()}, classes={self.class_count}"

    def _head(self, *, temperature: float, rounds: bool) -> Head:
        return Head(
            self.weight,
            self.bias,
            self.class_weight,
            self.class_bias,
            self.grouping,
            temperature=temperature,
            rounds=rounds,
        )
