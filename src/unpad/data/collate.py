"""From dataset items to ragged batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from unpad.errors import ArgumentError
from unpad.ragged import Ragged


def collate_ragged(items: Sequence[Any]) -> Any:
    """Make a batch of dataset items: the ``collate_fn`` of a `DataLoader`, with no padding.

    An item is a sequence, or a tuple or dict with sequences in it. Tensors and arrays of one
    dimension or more are sequences [T_i, ...] and become a `Ragged`; numbers and tensors without
    dimensions become one tensor [B]; anything else stays a list.

    >>> batch, labels = collate_ragged([(torch.ones(2, 3), 0), (torch.ones(0, 3), 1)])
    >>> batch.lengths, labels
    (tensor([2, 0]), tensor([0, 1]))
    """
    if not items:
        raise ArgumentError("items", items, "at least one item", "check the batch sampler")
    first = items[0]
    if isinstance(first, Mapping):
        rows = cast("Sequence[Mapping[str, Any]]", items)
        return {key: collate_ragged([row[key] for row in rows]) for key in rows[0]}
    if isinstance(first, tuple):
        return tuple(collate_ragged(list(field)) for field in zip(*items, strict=True))
    if isinstance(first, np.ndarray):
        items = [torch.as_tensor(item) for item in items]
    elif isinstance(first, (bool, int, float)):
        return torch.tensor(items)
    if not isinstance(items[0], Tensor):
        return list(items)
    return torch.stack(list(items)) if items[0].dim() == 0 else Ragged.from_list(items)


class RaggedDataset(Dataset[tuple[Tensor, int]]):
    """Sequences end to end with a label each: values [T, ...], offsets [N+1], labels [N].

    An item is ``(values of the sequence [T_i, ...], label)``; batches go through `collate_ragged`.

    >>> data = RaggedDataset(torch.arange(3.0), torch.tensor([0, 1, 3]), torch.tensor([5, 6]))
    >>> data[1]
    (tensor([1., 2.]), 6)
    """

    def __init__(self, values: Tensor, offsets: Tensor, labels: Tensor) -> None:
        self.values, self.offsets, self.labels = values, offsets, labels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> Tensor:
        """Lengths [N], int64."""
        return self.offsets.diff()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.sequence(index), int(self.labels[index])

    def collate(self, items: Sequence[Any]) -> Any:
        """Make a batch of items."""
        return collate_ragged(items)

    def sequence(self, index: int) -> Tensor:
        """The values [T_i, ...] of one sequence, a view."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]
