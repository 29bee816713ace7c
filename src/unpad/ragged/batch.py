"""The public class: the parts put together."""

from __future__ import annotations

from unpad.ragged.convert import Conversion


class Ragged(Conversion):
    """A batch of sequences of any lengths, end to end, with no padding."""
