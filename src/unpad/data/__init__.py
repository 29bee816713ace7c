"""Data for recurrent networks: readers, length profiles and batches by token budget."""

from unpad.data.collate import RaggedDataset, collate_ragged
from unpad.data.errors import DataError
from unpad.data.files import read, stream
from unpad.data.profile import LengthProfile, PaddingShare, padding_share, profile_lengths
from unpad.data.roles import Roles
from unpad.data.sampler import TokenBudgetBatchSampler
from unpad.data.table import SequenceTable
from unpad.data.vocabulary import Vocabulary

__all__ = [
    "DataError",
    "LengthProfile",
    "PaddingShare",
    "RaggedDataset",
    "Roles",
    "SequenceTable",
    "TokenBudgetBatchSampler",
    "Vocabulary",
    "collate_ragged",
    "padding_share",
    "profile_lengths",
    "read",
    "stream",
]
