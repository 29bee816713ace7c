"""What do the lengths of the sequences make of a layer's speed in training, against torch's own?

Forward and backward of LSTM and GRU, 128 -> 128, and of three RNN layers of 128, on lengths that
are equal, uniform, log-normal as text is, on one long sequence among short ones, and on real data
sets: never on a best case alone. The peer is torch.nn's layer with the same weights, the faster of
padded and packed. The ratio is given in its two parts: the padding gain (padded steps over tokens)
and the loop gain (the rest). The batch of a data set is the one of median padding in a shuffled
epoch.
"""

from __future__ import annotations

import itertools

from measure import arguments, heading, save, start, table_line
from real_lengths import real_lengths

from unpad.bench import DISTRIBUTIONS, Task, compare, draw, typical_batch

RIVALS = ("unpad", "padded", "packed")
LAYERS = {"LSTM": 1, "GRU": 1, "RNN": 3}


def batches(size: int, real: dict[str, list[int]]) -> dict[str, list[int]]:
    """The lengths of a batch by the name of what they are like."""
    drawn = {name: draw(name, size) for name in DISTRIBUTIONS}
    return drawn | {name: typical_batch(lengths, size) for name, lengths in real.items()}


def main() -> None:
    parser = arguments(
        __doc__, seconds=3.0, pieces=True, cells=list(LAYERS), batches=[32, 128], threads=[2]
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lengths", nargs="+", help="only these of the tables' first column")
    options = parser.parse_args()
    start()
    print(f"{'lengths':33}{'cell':5}{heading(RIVALS)}")
    rows, real = [], real_lengths()
    for size in options.batches:
        # Long documents in large batches take torch minutes: real lengths at the smallest one only.
        found = batches(size, real if size == min(options.batches) else {})
        chosen = {name: found[name] for name in found if name in (options.lengths or found)}
        wanted = itertools.product(chosen.items(), options.cells, options.threads)
        for (name, lengths), cell, threads in wanted:
            task = Task(cell, options.width, LAYERS[cell])
            row = compare(task, lengths, threads=threads, seconds=options.seconds, least=3)
            rows.append({"lengths": name, **row})
            print(f"{name:33}{cell:5}{table_line(rows[-1], RIVALS)}", flush=True)
    if not options.no_save:
        save("train_lengths", rows, keep=options.keep, by=("lengths", "cell", "batch", "threads"))


if __name__ == "__main__":
    main()
