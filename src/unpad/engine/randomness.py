"""The random numbers of a run, drawn before it from torch's generator.

Of a mask, the generator gives a seed alone. The number of row r and column n is then a function of
the seed, r and n: a counter-based generator, Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011). Any rows can be drawn, in any order, by any thread, and
again: a run that keeps little for its backward pass keeps 8 bytes of a mask. The numbers are the
same on every device, whether the native engine draws them (``csrc/philox.h``) or torch does.

A one has the probability 1 - drop, rounded to a multiple of 2^-32: nearer than comparing torch's
uniform float32 numbers, which are multiples of 2^-24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unpad.engine import native_engine
from unpad.ragged.lengths import rows_of, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from unpad.compiler.step import Noise
    from unpad.engine.stretches import Stretch

    Alloc = Callable[[int, int, Tensor], Tensor]

# Numbers drawn at once in torch operations: they stay in a second-level cache.
_BLOCK = 1 << 15
_LOW = 0xFFFFFFFF


def drawn(noise: Noise, x: Tensor, offsets: Tensor, allocate: Alloc) -> Tensor:
    """All rows, one a token: [T, width] like ``x``; ``allocate(rows, width, like)`` gives them."""
    source = compact(noise, x, offsets)
    if noise.kind == "keep":
        numbers = rows_of(offsets) if noise.per_sequence else torch.arange(len(x), device="cpu")
        return _mask(noise, source, numbers, allocate(len(numbers), noise.width, x))
    return _over_time(source, offsets) if noise.per_sequence else source


def compact(noise: Noise, x: Tensor, offsets: Tensor) -> Tensor:
    """What the rows are made of: a seed for masks, int64 []; else the numbers, [T or B, width]."""
    if noise.kind == "keep":
        return torch.empty((), dtype=torch.int64, device=x.device).random_()
    numbers = x.new_empty(len(offsets) - 1 if noise.per_sequence else len(x), noise.width)
    return numbers.uniform_() if noise.kind == "uniform" else numbers.normal_()


def rows(noise: Noise, source: Tensor, stretch: Stretch, x: Tensor, allocate: Alloc) -> Tensor:
    """The rows of a stretch's tokens, [t, width] like ``x``, out of what `compact` gave."""
    if noise.kind == "keep":
        numbers = stretch.tokens()
        if noise.per_sequence:
            numbers = spread(stretch.sequences.cpu(), stretch.offsets)
        return _mask(noise, source, numbers, allocate(len(numbers), noise.width, x))
    if noise.per_sequence:
        return _over_time(stretch.sequences_of(source), stretch.offsets)
    return stretch.tokens_of(source)


def compact_bytes(noise: Noise, tokens: int, batch: int, element_size: int) -> int:
    """How many bytes `compact` keeps."""
    if noise.kind == "keep":
        return 8
    return noise.width * element_size * (batch if noise.per_sequence else tokens)


def _over_time(per_row: Tensor, offsets: Tensor) -> Tensor:
    lengths = offsets.diff().to(per_row.device)
    return per_row.repeat_interleave(lengths, 0, output_size=int(offsets[-1]))


# -- masks -----------------------------------------------------------------------------------------


def _mask(noise: Noise, seed: Tensor, numbers: Tensor, out: Tensor) -> Tensor:
    """Fill out [t, width] with the rows of these numbers, int64 [t]."""
    keep = round((1 - noise.drop) * 2**32)
    if native_engine.draws(out):
        native_engine.draw_mask(int(seed), keep, numbers, out)
        return out
    step = max(1, _BLOCK // max(1, noise.width))
    for part, some in zip(out.split(step), numbers.to(out.device).split(step), strict=True):
        part.copy_(uniform_words(seed, some, noise.width) < keep)
    return out


def uniform_words(seed: Tensor, numbers: Tensor, width: int) -> Tensor:
    """Return the numbers of these rows, from 0 to 2^32 - 1: int64 [rows, width].

    A row is four quarters, each of the words that counters 0, 1, ... have in one place.
    """
    quarter = -(-width // 4)
    row = numbers[:, None].expand(-1, quarter)
    column = torch.arange(quarter, device=row.device).expand_as(row)
    counter = (row & _LOW, row >> 32, column, torch.zeros_like(row))
    return torch.cat(philox(counter, (seed & _LOW, seed >> 32)), 1)[:, :width]


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Philox4x32-10 in int64: four words out of a counter of four words and a key of two.

    A product of two words may pass 2^63; its bits are right all the same.

    >>> zero = torch.tensor(0)
    >>> [f"{int(word):08x}" for word in philox((zero,) * 4, (zero,) * 2)]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    (a, b, c, d), (first, second) = counter, key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (q >> 32 & _LOW) ^ b ^ first, q & _LOW
        c, d = (p >> 32 & _LOW) ^ d ^ second, p & _LOW
        first, second = first + 0x9E3779B9 & _LOW, second + 0xBB67AE85 & _LOW
    return [a, b, c, d]
