"""The public class: the parts put together."""

from __future__ import annotations

from unpad.ragged.arrow import ArrowConversion
from unpad.ragged.convert import Conversion
from unpad.ragged.reduce import Reduction
from unpad.ragged.regroup import Regrouping


class Ragged(Reduction, Regrouping, Conversion, ArrowConversion):
    """A batch of sequences of any lengths, end to end, with no padding."""
