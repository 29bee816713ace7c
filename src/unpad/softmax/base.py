"""What the two softmaxes share: the weight by words, the options, the call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_choice, check_dtype, check_flag, check_precision, check_size
from unpad.compiler.trace import without_autocast
from unpad.engine.choose import chooses_native, rounds
from unpad.engine.precision import autocast_rounds
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.jit import opaque, refuse_scripting
from unpad.ragged import Ragged
from unpad.softmax import loss, native, reference, search
from unpad.softmax.arguments import (
    REDUCTIONS,
    Rows,
    check_importance,
    check_index,
    check_k,
    check_temperature,
    open_hidden,
    open_target,
)
from unpad.softmax.reference import Head


class WordSoftmax(nn.Module):
    """A distribution over a vocabulary's words for each hidden row; not to be built itself."""

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        hidden_size: int,
        vocabulary: int,
        *,
        bias: bool,
        weight: Tensor | None,
        ignore_index: int,
        reduction: str,
        importance: Tensor | None,
        temperature: float,
        precision: str | None,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.vocabulary = check_size("vocabulary", vocabulary)
        self.ignore_index = check_index(ignore_index)
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        self.temperature = check_temperature(temperature)
        self.precision = check_precision(precision)
        check_flag("bias", bias)
        check_dtype(dtype)
        if weight is None:
            weight = nn.Parameter(torch.empty(vocabulary, hidden_size, device=device, dtype=dtype))
            self.register_parameter("weight", weight)
            uniform(weight, hidden_size)
        else:
            self.register_parameter("weight", _tied(weight, vocabulary, hidden_size))
            device, dtype = weight.device, weight.dtype
        made = nn.Parameter(torch.empty(vocabulary, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", made)
        if made is not None:
            uniform(made, hidden_size)
        self.register_buffer(
            "importance", check_importance(importance, vocabulary, self.weight), persistent=False
        )

    def extra_repr(self) -> str:
        """Return what `repr` shows."""
        return f"{self.hidden_size}, {self.vocabulary}, bias={self.bias is not None}"

    __prepare_scriptable__ = refuse_scripting

    def _head(self, *, temperature: float, rounds: bool) -> Head:
        raise NotImplementedError

    # The calls -----------------------------------------------------------------------------------

    @opaque
    def forward(self, hidden: Any, target: Any, *, reduction: str | None = None) -> Any:
        """Return the loss: minus the log probability of each target, reduced.

        Args:
            hidden: [..., H] of the weights' dtype, or a Ragged of tokens [H].
            target: integers [...], or a Ragged of the same lengths; ``ignore_index`` is none.
            reduction: "mean", "sum" or "none"; None: the module's own.

        Returns:
            A scalar; for "none" the losses in the form of ``target``, 0 for ignored tokens.
            float32 where the weights are narrower. Units: nats.

        Raises:
            ArgumentError: shapes that do not fit, a target out of range.
            ArgumentTypeError: what is no tensor, or of another dtype.

        A Ragged's rows may have length 0. The mean over no token is 0. Rows of ignored tokens are
        never read and get a gradient of 0.
        """
        rows = open_hidden(hidden, self.weight)
        words = open_target(target, rows, self.vocabulary, self.ignore_index)
        wanted = self.reduction if reduction is None else reduction
        check_choice("reduction", wanted, REDUCTIONS)
        if rows.values.is_meta:  # shapes are all there is
            found = rows.values.new_empty(words.shape if wanted == "none" else ())
            return rows.close(found) if wanted == "none" else found
        values, head = self._like_weight(rows.values), self._head_for(rows)  # asks autocast
        with without_autocast(values.device.type):
            found = loss.reduced(
                values,
                words,
                head,
                ignore_index=self.ignore_index,
                reduction=wanted,
                importance=self._buffers["importance"],
            )
        return rows.close(found) if wanted == "none" else found

    @opaque
    def log_prob(self, hidden: Any, *, temperature: float | None = None) -> Any:
        """Return the log probability of every word: [..., V], or a Ragged of tokens [V].

        Exact, and differentiable; it holds tokens times vocabulary numbers.
        """
        rows, head = self._opened(hidden, temperature)
        with without_autocast(rows.values.device.type):
            return rows.close(reference.log_prob(rows.values, head))

    @opaque
    def predict(self, hidden: Any) -> Any:
        """Return the likeliest word: int64 [...], or a Ragged of them. Exact; no gradient."""
        return self._topk(hidden, 1, None, squeeze=True)[1]

    @opaque
    def topk(self, hidden: Any, k: int, *, temperature: float | None = None) -> tuple[Any, Any]:
        """Return the k likeliest words of each row, best first: log probabilities, words.

        Both [..., k], or Raggeds of tokens [k]. Exact; no gradient.
        """
        return self._topk(hidden, k, temperature)

    @opaque
    @torch.no_grad()
    def sample(
        self,
        hidden: Any,
        *,
        k: int | None = None,
        temperature: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Draw a word for each row: int64 [...], or a Ragged of them.

        Args:
            hidden: [..., H], or a Ragged of tokens [H].
            k: draw from the k likeliest words alone; None: from all.
            temperature: what logits are divided by; None: the module's own.
            generator: of the random numbers; None: torch's own.
        """
        if k is not None:
            values, words = self._topk(hidden, k, temperature)
            flat = values.values if isinstance(values, Ragged) else values
            drawn = reference.draw(flat.reshape(-1, flat.shape[-1]), generator)
            places = drawn.reshape(flat.shape[:-1])[..., None]
            if isinstance(words, Ragged):
                return words.map(lambda found: found.gather(-1, places)[..., 0])
            return words.gather(-1, places)[..., 0]
        rows, head = self._opened(hidden, temperature)
        with without_autocast(rows.values.device.type):
            return rows.close(reference.sample(rows.values, head, generator))

    # What they share -----------------------------------------------------------------------------

    def _opened(self, hidden: Any, temperature: float | None) -> tuple[Rows, Head]:
        rows = open_hidden(hidden, self.weight)
        if temperature is not None:
            check_temperature(temperature)
        head = self._head_for(rows, temperature)
        return replace(rows, values=self._like_weight(rows.values)), head

    @torch.no_grad()
    def _topk(
        self, hidden: Any, k: int, temperature: float | None, *, squeeze: bool = False
    ) -> tuple[Any, Any]:
        rows, head = self._opened(hidden, temperature)
        count = check_k(k, self.vocabulary)
        with without_autocast(rows.values.device.type):
            engine = native if chooses_native(rows.values) else reference
            values, words = search.topk(rows.values, count, head, engine.best_of)
        if squeeze:
            values, words = values[:, 0], words[:, 0]
        return rows.close(values), rows.close(words)

    def _head_for(self, rows: Rows, temperature: float | None = None) -> Head:
        found = self.temperature if temperature is None else temperature
        return self._head(temperature=found, rounds=rounds(rows.values, self.precision))

    def _like_weight(self, values: Tensor) -> Tensor:
        """Rows of the weight's dtype, where autocast lets another one in."""
        narrow = autocast_rounds(values.device.type)
        return values.to(self.weight.dtype) if narrow else values


def uniform(parameter: Tensor, hidden_size: int) -> None:
    """Draw a start within ``± 1/sqrt(hidden_size)``, as torch.nn.Linear does."""
    bound = hidden_size**-0.5
    nn.init.uniform_(parameter, -bound, bound)


def _tied(weight: Any, vocabulary: int, hidden_size: int) -> nn.Parameter:
    allowed = f"a Parameter [{vocabulary}, {hidden_size}], such as an Embedding's weight"
    if not isinstance(weight, nn.Parameter):
        remedy = "give the Parameter itself, not its data"
        raise ArgumentTypeError("weight", type(weight).__name__, allowed, remedy)
    if weight.shape != (vocabulary, hidden_size):
        remedy = "project hidden to the embedding's width first"
        raise ArgumentError("weight", f"shape {list(weight.shape)}", allowed, remedy)
    return weight
