"""How fast does a recurrent layer train on ragged sequences, against torch's own layer?

One forward and one backward (gradients of the input and of every parameter) of LSTM, GRU and RNN,
128 -> 128, on lengths drawn uniformly from 10..100. The peer is torch.nn's layer with the same
weights, the faster of its two ways: padded to the longest, or packed. Padding and packing the data
is not charged to torch. The error is against torch in float64.
"""

from __future__ import annotations

import itertools

from measure import arguments, heading, save, start, table_line

from unpad.bench import CELLS, Task, compare, draw

RIVALS = ("unpad", "padded", "packed")


def main() -> None:
    parser = arguments(__doc__, seconds=4.0, cells=list(CELLS), batches=[32, 128], threads=[1, 2])
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    start()
    print(f"{'cell':5}{heading(RIVALS)}")
    rows = []
    for cell, batch, threads in itertools.product(options.cells, options.batches, options.threads):
        lengths = draw("uniform 10-100", batch)
        task = Task(cell, options.width)
        rows.append(compare(task, lengths, threads=threads, seconds=options.seconds))
        print(f"{cell:5}{table_line(rows[-1], RIVALS)}", flush=True)
    if not options.no_save:
        save("train_ragged", rows)


if __name__ == "__main__":
    main()
