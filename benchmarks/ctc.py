"""How fast is `unpad.functional.ctc_loss` beside torch.nn.functional.ctc_loss, gradient included?

Logits of uniform random lengths from 10 to 100, a quarter as many labels, 50 classes; both give the
gradient of the sum of all rows' losses. torch takes the log softmax of the padded logits, ours
the logits end to end. The ratio is torch's time over ours; the error, next to torch in float64, is
of the gradient.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from measure import alternate, arguments, relative_error, save, start
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from unpad import Ragged
from unpad.bench import padding_gain
from unpad.functional import ctc_loss


def measure(batch: int, classes: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    lengths = torch.randint(10, 101, (batch,))
    rows = [torch.randint(1, classes, (int(n) // 4 + 1,)) for n in lengths]
    padded = torch.randn(int(lengths.max()), batch, classes).requires_grad_()
    labels, counts = pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])
    ragged = Ragged.from_padded(padded.detach(), lengths, batch_first=False)
    values, targets = ragged.values.clone().requires_grad_(), Ragged.from_list(rows)

    def theirs(x: Tensor = padded) -> Tensor:
        loss = F.ctc_loss(x.log_softmax(-1), labels, lengths, counts, reduction="sum")
        return torch.autograd.grad(loss, x)[0]

    def ours() -> Tensor:
        loss = ctc_loss(ragged.with_values(values), targets, reduction="sum")
        return torch.autograd.grad(loss, values)[0]

    def kept(gradient: Tensor) -> Tensor:
        return Ragged.from_padded(gradient, lengths, batch_first=False).values

    exact = [kept(theirs(padded.detach().double().requires_grad_()))]
    errors = relative_error([ours()], exact), relative_error([kept(theirs())], exact)
    times, foreign = alternate({"unpad": ours, "torch": theirs}, seconds=seconds)
    return {
        "batch": batch,
        "classes": classes,
        "threads": threads,
        "tokens": int(lengths.sum()),
        "padding gain": padding_gain(lengths.tolist()),
        **times,
        "ratio": times["torch"].median / times["unpad"].median,
        "error": errors[0],
        "peer error": errors[1],
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(__doc__, seconds=4.0, batches=[32, 128], classes=[50], threads=[1, 2])
    options = parser.parse_args()
    start()
    rows = []
    for batch, classes, threads in itertools.product(
        options.batches, options.classes, options.threads
    ):
        row = measure(batch, classes, threads, options.seconds)
        rows.append(row)
        print(
            f"{batch:4} rows, {classes} classes {threads} thr | "
            f"unpad {row['unpad'].median:7.2f} ms, torch {row['torch'].median:7.2f} ms "
            f"{row['ratio']:5.2f}x | "
            f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:3.0%}",
            flush=True,
        )
    if not options.no_save:
        save("ctc", rows)


if __name__ == "__main__":
    main()
