"""How speed is measured here: rivals in turn in one run, at their best, the error beside the time.

`unpad bench` and everything in ``benchmarks/`` are written with these parts. Needs psutil
(``unpad[bench]``, and ``unpad[train]`` with the command line).
"""

from unpad.bench.accuracy import relative_error, rms_error
from unpad.bench.lengths import DISTRIBUTIONS, draw, padding_gain, typical_batch
from unpad.bench.machine import best_peak, machine, place, share_of_peak, tuned_malloc
from unpad.bench.rivals import CELLS, Rivals, Task, compare, operations
from unpad.bench.timing import ForeignLoad, Milliseconds, Timing, alternate, milliseconds

__all__ = [
    "CELLS",
    "DISTRIBUTIONS",
    "ForeignLoad",
    "Milliseconds",
    "Rivals",
    "Task",
    "Timing",
    "alternate",
    "best_peak",
    "compare",
    "draw",
    "machine",
    "milliseconds",
    "operations",
    "padding_gain",
    "place",
    "relative_error",
    "rms_error",
    "share_of_peak",
    "tuned_malloc",
    "typical_batch",
]
