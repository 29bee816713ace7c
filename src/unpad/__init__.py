"""Recurrent networks over sequences of any length, with no padding."""

from importlib.metadata import PackageNotFoundError, version

from unpad import nn
from unpad.cells import Cell
from unpad.compiler.build import trace_count
from unpad.engine.choose import UncompiledCellWarning, engine
from unpad.engine.native_engine import machine_peak, trim
from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError, UnpadError
from unpad.explain import Explanation, explain
from unpad.functional import bidirectional_dynamic_rnn, dynamic_rnn, static_rnn
from unpad.ragged import Ragged
from unpad.states import select_rows
from unpad.stepper import Stepper

try:
    __version__ = version("unpad")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "Cell",
    "Explanation",
    "Ragged",
    "RowIndexError",
    "Stepper",
    "UncompiledCellWarning",
    "UnpadError",
    "__version__",
    "bidirectional_dynamic_rnn",
    "dynamic_rnn",
    "engine",
    "explain",
    "machine_peak",
    "nn",
    "select_rows",
    "static_rnn",
    "trace_count",
    "trim",
]
