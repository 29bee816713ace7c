"""The public class: the parts put together, and made known to torch's loaders."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from unpad.ragged.arithmetic import Arithmetic
from unpad.ragged.arrow import ArrowConversion
from unpad.ragged.convert import Conversion
from unpad.ragged.reduce import Reduction
from unpad.ragged.regroup import Regrouping
from unpad.ragged.transfer import Transfer


class Ragged(Reduction, Regrouping, Conversion, ArrowConversion, Arithmetic, Transfer):
    """A batch of sequences of any lengths, end to end, with no padding.

    Args:
        values: [T, *features], the tokens of all sequences.
        offsets: [B + 1] integers from 0 to T that never decrease; sequence i is
            `values[offsets[i]:offsets[i + 1]]`. Kept as int64 on the CPU.

    Attributes:
        values, offsets: as above. lengths: [B], int64 on the CPU.

    Raises:
        ArgumentTypeError, ArgumentError: values without a token dimension, offsets that do not
            fit them.

    It acts like a tensor where tokens stay by themselves: operators, elementwise functions,
    `nn.Linear` and the others listed in docs/ragged.md apply to the values; everything else is
    refused, and so are batches of different lengths in one operation. Length 0 and a batch of no
    rows are ordinary values everywhere. Gradients flow through the values.

    It is a dataset of its rows: `DataLoader(ragged, batch_size=3)` gives batches of three. In any
    other dataset's items, default collation joins batches row under row, also in workers.

    >>> ragged = Ragged(torch.tensor([1., 2., 3.]), [0, 2, 2, 3])
    >>> ragged
    Ragged(3 sequences, 3 tokens, features=[], float32, lengths=[2, 0, 1])
    >>> (ragged * 2 + 1).to_list()
    [tensor([3., 5.]), tensor([]), tensor([7.])]
    """


def _collate(samples: list[Ragged], *, collate_fn_map: Any = None) -> Ragged:
    """Join what a dataset returned, each a batch of one row or more, into one batch."""
    return type(samples[0]).cat(samples)


default_collate_fn_map[Ragged] = _collate
# Built from a tensor and checked offsets, so it is safe to read with torch.load(weights_only=True).
torch.serialization.add_safe_globals([Ragged])
