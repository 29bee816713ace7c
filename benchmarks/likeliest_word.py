"""How fast is the likeliest of many words found exactly, beside the full product?

`HierarchicalSoftmax.predict` visits classes best first and stops where no word of the next one can
win; the peer is the arg-max of torch's `linear` with as many words, the least that a full softmax
has to do. How soon it may stop depends on how sure the softmax is: weights are scaled for given
entropies, from that of a trained language model to that of random weights. Equal: cases out of
10,000, in float64 with a tenth of the words, in which the word is the arg-max of all log
probabilities.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from measure import alternate, arguments, save, start
from torch.nn import functional as F

import unpad

WIDTH = 256


def softmax_of(vocabulary: int, scale: float) -> unpad.nn.HierarchicalSoftmax:
    torch.manual_seed(0)
    softmax = unpad.nn.HierarchicalSoftmax(WIDTH, vocabulary)
    with torch.no_grad():
        for parameter in softmax.parameters():
            parameter.mul_(scale)
    return softmax


@torch.no_grad()
def entropy(softmax: unpad.nn.HierarchicalSoftmax) -> float:
    found = softmax.log_prob(torch.randn(64, WIDTH))
    return float(-(found.exp() * found).sum(1).mean())


@torch.no_grad()
def equal(vocabulary: int, scale: float, cases: int) -> int:
    softmax = softmax_of(vocabulary, scale).double()
    found = 0
    for block in torch.randn(cases, WIDTH, dtype=torch.float64).split(1000):
        found += int((softmax.predict(block) == softmax.log_prob(block).argmax(1)).sum())
    return found


def measure(
    vocabulary: int, scale: float, threads: int, tokens: int, options: Any
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    softmax, hidden = softmax_of(vocabulary, scale), torch.randn(tokens, WIDTH)
    weight, bias = softmax.weight.detach(), softmax.bias.detach()
    rivals = {
        "unpad": lambda: softmax.predict(hidden),
        "theirs": lambda: F.linear(hidden, weight, bias).argmax(1),
    }
    times, foreign = alternate(rivals, seconds=options.seconds, least=3)
    return {
        "vocabulary": vocabulary,
        "threads": threads,
        "tokens": tokens,
        "entropy": entropy(softmax),
        "scale": scale,
        **times,
        "ratio": times["theirs"].median / times["unpad"].median,
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(
        __doc__,
        seconds=4.0,
        pieces=True,
        vocabularies=[50_000, 200_000],
        scales=[1.0, 4.0, 6.0, 8.0],
        threads=[1, 2],
        tokens=[1600, 32, 1],
    )
    parser.add_argument("--cases", type=int, default=10_000)
    options = parser.parse_args()
    start()
    rows: list[dict[str, Any]] = []
    for scale in options.scales:
        right = equal(options.vocabularies[0] // 10, scale, options.cases)
        print(f"scale {scale:g}: {right:,} of {options.cases:,} equal", flush=True)
        kinds = product(options.threads, options.tokens, options.vocabularies)
        for threads, tokens, vocabulary in kinds:
            row = measure(vocabulary, scale, threads, tokens, options)
            row |= {"cases": options.cases, "equal": right}
            rows.append(row)
            print(
                f"V {vocabulary:7,} {threads} threads {tokens:4} tokens, "
                f"entropy {row['entropy']:5.2f} nats | "
                f"{row['unpad'].median:8.1f} {row['theirs'].median:8.1f} ms "
                f"{row['ratio']:5.2f}x | {row['foreign load']:4.0%}",
                flush=True,
            )
    if not options.no_save:
        save(
            "likeliest_word",
            rows,
            keep=options.keep,
            by=("vocabulary", "threads", "tokens", "scale"),
        )


if __name__ == "__main__":
    main()
