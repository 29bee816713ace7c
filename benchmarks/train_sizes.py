"""How near to the machine's peak does a layer train, by hidden size, batch and threads?

Forward and backward of LSTM, GRU and RNN, H -> H, on lengths uniform from 10 to 100 and on equal
ones of 100. The share of peak counts the products on useful tokens only, at the peak that
`unpad.machine_peak` measures right after the row. torch.nn's layer, padded and packed, stands
beside it. Batches of 4 and 8 with H = 512 are the sizes where splitting the work by rows would
lose.
"""

from __future__ import annotations

import itertools

from measure import arguments, heading, save, start, table_line

from unpad.bench import Task, compare, draw

RIVALS = ("unpad", "padded", "packed")
SPREADS = ["uniform 10-100", "equal 100"]


def main() -> None:
    parser = arguments(
        __doc__,
        seconds=3.0,
        pieces=True,
        cells=["LSTM"],
        widths=[32, 64, 128, 256, 512],
        batches=[32, 128],
        small=[4, 8],
        threads=[1, 2],
        spreads=SPREADS,
    )
    options = parser.parse_args()
    start()
    print(f"{'lengths':15}{'cell':5}{'H':>4}{heading(RIVALS)}")
    wanted = [*itertools.product(options.cells, options.spreads, options.widths, options.batches)]
    largest = [max(options.widths)]
    wanted += itertools.product(options.cells, options.spreads[-1:], largest, options.small)
    rows = []
    for (cell, spread, width, batch), threads in itertools.product(wanted, options.threads):
        lengths, task = draw(spread, batch), Task(cell, width)
        row = compare(task, lengths, threads=threads, seconds=options.seconds, least=3)
        rows.append({"lengths": spread, **row})
        print(f"{spread:15}{cell:5}{width:4}{table_line(row, RIVALS)}", flush=True)
    if not options.no_save:
        by = ("lengths", "cell", "width", "batch", "threads")
        save("train_sizes", rows, keep=options.keep, by=by)


if __name__ == "__main__":
    main()
