"""Where a cell stands in a model, by the name that its variables have."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

BOOKKEEPING = re.compile(
    r"(^|/)(beta[12]_power|global_step|save_counter|eval_step)(_\d+)?$"
    r"|/(Adam|AdamW|Adamax|Nadam|LazyAdam|adam_[mv]|Adagrad|AdagradDA|Adadelta|[Mm]omentum)(_\d+)?$"
    r"|/(RMSProp|RMSprop|Ftrl|ProximalAdagrad|LARSOptimizer|ExponentialMovingAverage)(_\d+)?$"
    r"|^(training/)?(Adam|AdamW|Adamax|Nadam|SGD|RMSprop|Adagrad|Adadelta|Ftrl)/"
    r"|(^|/)optimizer/|/(_iterations|_learning_rate)/\.ATTRIBUTES/|/\.OPTIMIZER_SLOT/"
    r"|^optimizer|^_?optimizer_weights/|^metrics/|^keras_api/"
)
BOOKKEPT = "optimizer, metric or counter"
_V1_CELL = re.compile(r"(basic_rnn_cell|basic_lstm_cell|lstm_cell)(_\d+)?")
UNKNOWN = -1_000_000  # the number of a cell whose place in its stack no file tells
_NUMBER = re.compile(r"\d{1,6}")
_NUMBERED = re.compile(r"cell_(\d{1,6})")
_KERAS_CELL = re.compile(r"(\w*_)?cell(_\d+)?|stacked_rnn_cells(_\d+)?")
OWN_NAME = re.compile(r"(.*/)?(rnn(_\d+)?|fw|bw|cell_\d+)/[^/]+")  # of a cell
_DIRECTION = re.compile(r"(forward|backward)(_(.*))?")


@dataclass(frozen=True)
class Place:
    """The layer's name; the direction ("" , "fw", "bw"); the numbers in the two kinds of stack.

    ``layer_number``: of a bidirectional layer on another. ``cell_number``: of a cell on another
    within one direction.
    """

    layer: str
    direction: str = ""
    layer_number: int | None = None
    cell_number: int | None = None


def v1_kind(path: str) -> str | None:
    """Which cell of TensorFlow 1 a scope names.

    >>> v1_kind("rnn/basic_lstm_cell_1"), v1_kind("dense")
    ('lstm', None)
    """
    match = _V1_CELL.fullmatch(path.rpartition("/")[2])
    return match and ("rnn" if "rnn" in match[1] else "lstm")


def v1_place(path: str) -> Place:
    """The place of a cell by its scope.

    >>> v1_place("tower/rnn/multi_rnn_cell/cell_1/lstm_cell")
    Place(layer='tower/rnn', direction='', layer_number=None, cell_number=1)
    >>> v1_place("stack_bidirectional_rnn/cell_0/bidirectional_rnn/bw/gru_cell")
    Place(layer='stack_bidirectional_rnn', direction='bw', layer_number=0, cell_number=None)
    """
    *scope, own = path.split("/")
    cell_number = _numbered(scope, "multi_rnn_cell")
    direction, layer_number = "", None
    if scope[-1:] in (["fw"], ["bw"]):
        direction = scope.pop()
        stacked = scope[:-1]
        layer_number = _numbered(stacked, "stack_bidirectional_rnn", keep=True)
        if layer_number is not None:
            scope = stacked
    if not scope:
        scope = [own] if cell_number is None else ["multi_rnn_cell"]
    return Place("/".join(scope), direction, layer_number, cell_number)


def _numbered(scope: list[str], above: str, *, keep: bool = False) -> int | None:
    """Take ``above/cell_<n>`` off the end of a scope and give n; ``keep``: leave ``above``."""
    if len(scope) < 2 or not re.fullmatch(rf"{above}(_\d+)?", scope[-2]):
        return None
    match = _NUMBERED.fullmatch(scope[-1])
    if match is None:
        return None
    del scope[-1 if keep else -2 :]
    return int(match[1])


def keras_place(path: str, taken: Counter[tuple[str, str]]) -> Place:
    """The place of a cell by its path. Stacked cells without numbers stand in the order met.

    ``taken``: how many of these were met, by layer and direction.

    >>> keras_place("enc/forward_lstm/lstm_cell", Counter())
    Place(layer='enc', direction='fw', layer_number=None, cell_number=None)
    >>> keras_place("rnn/stacked_rnn_cells/gru_cell", Counter([("rnn", "")]))
    Place(layer='rnn', direction='', layer_number=None, cell_number=1)
    """
    scope = path.split("/")
    number, in_turn = None, False
    while len(scope) > 1 and (_KERAS_CELL.fullmatch(scope[-1]) or scope[-2] == "cells"):
        if scope[-2] == "cells":
            number = int(scope[-1]) if _NUMBER.fullmatch(scope[-1]) else UNKNOWN
        elif scope[-1].startswith("stacked_rnn_cells"):
            in_turn = True
        del scope[-2 if scope[-2] == "cells" else -1 :]
    direction = ""
    if match := _DIRECTION.fullmatch(scope[-1]):
        direction = "fw" if match[1] == "forward" else "bw"
        scope = scope[:-1] or [match[3] or "bidirectional"]
    layer = "/".join(scope)
    if in_turn and number is None:
        number = taken[layer, direction]
        taken[layer, direction] += 1
    return Place(layer, direction, None, number)
