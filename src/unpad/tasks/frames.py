"""Several steps of a long series in one: shorter recurrences over richer steps, nothing padded."""

from __future__ import annotations

import numpy as np

from unpad.data.table import Floats, Integers


def into_frames(values: Floats, offsets: Integers, size: int) -> tuple[Floats, Integers]:
    """Join ``size`` steps of each sequence: values [T, F] → [T', size*F], offsets [B+1].

    A length that is no multiple of ``size`` is not padded: its last frame is its last ``size``
    steps, overlapping the frame before. A sequence shorter than a frame repeats its last step; one
    of length 0 stays empty.

    >>> frames, offsets = into_frames(np.arange(5.0)[:, None], np.array([0, 5]), 2)
    >>> frames.tolist(), offsets.tolist()
    ([[0.0, 1.0], [2.0, 3.0], [3.0, 4.0]], [0, 3])
    """
    if size == 1:
        return values, offsets
    lengths = np.diff(offsets)
    counts = -(-lengths // size)
    frame_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(frame_offsets[-1]) - frame_offsets[sequence]
    first = np.minimum(number * size, np.maximum(lengths[sequence] - size, 0))
    steps = np.minimum(first[:, None] + np.arange(size), lengths[sequence][:, None] - 1)
    rows = offsets[sequence][:, None] + steps
    return values[rows].reshape(len(rows), size * values.shape[1]), frame_offsets
