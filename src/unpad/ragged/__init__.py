"""Ragged batches: sequences end to end, with no padding."""

from unpad.ragged.batch import Ragged
from unpad.ragged.lengths import as_lengths

__all__ = ["Ragged", "as_lengths"]
