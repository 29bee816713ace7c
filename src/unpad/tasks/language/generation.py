"""Writing texts with a trained network, token by token."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unpad.data.text_vocabulary import TextVocabulary
from unpad.stepper import Stepper
from unpad.tasks.language.network import LanguageNetwork
from unpad.tasks.settings import integer, number

HIGHEST = 100.0
"""Temperature above which all tokens are as good as alike."""


def generate(
    network: LanguageNetwork,
    vocabulary: TextVocabulary,
    prompt: str = "",
    *,
    tokens: int = 200,
    top_k: int | None = None,
    temperature: float = 1.0,
    seed: int | None = None,
    ends: bool = False,
) -> Iterator[str]:
    """Draw at most ``tokens`` tokens after a prompt and give each as text, as soon as it is drawn.

    Args:
        network, vocabulary: of a trained model, on the CPU.
        prompt: the beginning, which is read and not repeated. A line end in it is an ``<eos>``.
        tokens: how many to draw.
        top_k: draw among the k likeliest alone; None: among all.
        temperature: log probabilities are divided by it; 0 takes the likeliest token.
        seed: the same one gives the same text; None: chance.
        ends: stop at the first ``<eos>``.

    ``<unk>`` is never drawn. Raises `ArgumentError` at once.
    """
    integer("tokens", tokens, 0)
    number("temperature", temperature, 0.0, HIGHEST)
    if top_k is not None:
        integer("top_k", top_k, 1)
    generator = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else seed)
    draw = _Draw(network, top_k, temperature, generator)
    drawn = _ids(network, [vocabulary.end, *vocabulary.begin(prompt)], draw, tokens)
    continues = bool(prompt) and not prompt.endswith("\n")
    return vocabulary.pieces(_until(drawn, vocabulary.end if ends else None), continues=continues)


def _until(drawn: Iterator[int], end: int | None) -> Iterator[int]:
    for token in drawn:
        yield token
        if token == end:
            return


@torch.no_grad()
def _ids(network: LanguageNetwork, start: list[int], draw: _Draw, tokens: int) -> Iterator[int]:
    network.eval()
    steppers: list[Any] = [Stepper(layer) for layer in network.layers]

    def read(token: int) -> Tensor:
        x = network.embedding.weight[token].detach()
        for stepper in steppers:
            x = stepper(x)
        return x

    hidden = [read(token) for token in start][-1]
    for left in range(tokens, 0, -1):
        token = draw(hidden)
        yield token
        if left > 1:
            hidden = read(token)


class _Draw:
    def __init__(
        self,
        network: LanguageNetwork,
        top_k: int | None,
        temperature: float,
        generator: torch.Generator,
    ) -> None:
        self.softmax: Any = network.softmax
        self.words = network.embedding.num_embeddings
        self.top_k = 1 if temperature == 0 else top_k
        self.temperature, self.generator = temperature or 1.0, generator

    def __call__(self, hidden: Tensor) -> int:
        if self.top_k is None:
            chances, words = self.softmax.log_prob(hidden), None
            chances[0] = -torch.inf
        else:
            wanted = min(self.top_k + 1, self.words)  # one more, lest <unk> be among them
            chances, words = self.softmax.topk(hidden, wanted)
            known = words != 0
            chances, words = chances[known][: self.top_k], words[known][: self.top_k]
        weights = torch.softmax(chances.double() / self.temperature, 0)
        place = int(torch.multinomial(weights, 1, generator=self.generator))
        return place if words is None else int(words[place])
