"""Ragged batches: sequences end to end, with no padding."""

from unpad.ragged.batch import Ragged
from unpad.ragged.functions import supported_functions
from unpad.ragged.lengths import as_lengths

__all__ = ["Ragged", "as_lengths", "supported_functions"]
