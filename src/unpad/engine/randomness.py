"""The random numbers of a run, drawn before it from torch's generator, whole or in few bytes.

A run that keeps little for its backward pass keeps a mask as bits, and what holds for a whole
sequence as one row; a stretch's rows are made of them when it is run, and again when it is run
again. Both forms are drawn in the same order, so the masks of a seed do not depend on the form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unpad.compiler.step import Noise
    from unpad.engine.stretches import Stretch

# Numbers drawn at once: they stay in a second-level cache until they are compared or packed.
_BLOCK = 1 << 16


def drawn(noise: Noise, x: Tensor, offsets: Tensor) -> Tensor:
    """All rows, one a token: [T, width] like ``x``."""
    numbers = x.new_empty(_rows(noise, x, offsets), noise.width)
    if noise.kind != "keep":
        return _over_time(_fill(numbers, noise), noise, offsets)
    for block in _blocks(numbers, noise):
        block.copy_(_mask(len(block), noise, x))
    return _over_time(numbers, noise, offsets)


def compact(noise: Noise, x: Tensor, offsets: Tensor) -> Tensor:
    """The same numbers in few bytes: uint8 [T, width / 8] for masks, else [T or B, width]."""
    rows = _rows(noise, x, offsets)
    if noise.kind != "keep":
        return _fill(x.new_empty(rows, noise.width), noise)
    bits = x.new_empty(rows, -(-noise.width // 8), dtype=torch.uint8)
    for block in _blocks(bits, noise):
        block.copy_(_packed(_mask(len(block), noise, x)))
    return bits


def rows(noise: Noise, kept: Tensor, stretch: Stretch, dtype: torch.dtype) -> Tensor:
    """The rows of a stretch's tokens, [t, width], out of what `compact` gave."""
    if noise.per_sequence:
        part = stretch.sequences_of(kept)
        whole = _unpacked(part, noise, dtype) if noise.kind == "keep" else part
        return _over_time(whole, noise, stretch.offsets)
    part = stretch.tokens_of(kept)
    return _unpacked(part, noise, dtype) if noise.kind == "keep" else part


def compact_bytes(noise: Noise, tokens: int, batch: int, element_size: int) -> int:
    """How many bytes `compact` keeps."""
    width = -(-noise.width // 8) if noise.kind == "keep" else noise.width * element_size
    return width * (batch if noise.per_sequence else tokens)


def _rows(noise: Noise, x: Tensor, offsets: Tensor) -> int:
    return len(offsets) - 1 if noise.per_sequence else len(x)


def _blocks(rows: Tensor, noise: Noise) -> Iterator[Tensor]:
    # A generator may give other numbers to one large call than to several: the blocks are fixed.
    return iter(rows.split(max(1, _BLOCK // noise.width)) if len(rows) else ())


def _mask(rows: int, noise: Noise, like: Tensor) -> Tensor:
    """Ones with probability 1 - drop, in float32.

    Uniform numbers compared: three times as fast as torch's bernoulli_ (5 and 17 ns a number).
    """
    uniform = like.new_empty(rows, noise.width, dtype=torch.float32).uniform_()
    return uniform.lt_(1 - noise.drop)


def _fill(numbers: Tensor, noise: Noise) -> Tensor:
    return numbers.uniform_() if noise.kind == "uniform" else numbers.normal_()


def _over_time(per_row: Tensor, noise: Noise, offsets: Tensor) -> Tensor:
    if not noise.per_sequence:
        return per_row
    lengths = offsets.diff().to(per_row.device)
    return per_row.repeat_interleave(lengths, 0, output_size=int(offsets[-1]))


# -- masks as bits ---------------------------------------------------------------------------------


def _packed(mask: Tensor) -> Tensor:
    """uint8 [rows, width / 8] of a mask in float32, the first column in the lowest bit."""
    spare = -mask.shape[1] % 8
    if spare:
        mask = torch.nn.functional.pad(mask, (0, spare))
    values = torch.tensor([1.0, 2, 4, 8, 16, 32, 64, 128], device=mask.device)
    return (mask.view(len(mask), -1, 8) @ values).to(torch.uint8)


def _unpacked(bits: Tensor, noise: Noise, dtype: torch.dtype) -> Tensor:
    # A look-up of 8 numbers by a byte: five times as fast as shifting each bit out.
    bytes_ = torch.arange(256, device=bits.device)
    table = (bytes_[:, None] >> bytes_[:8]).bitwise_and_(1).to(dtype)
    rows = table.index_select(0, bits.reshape(-1).int())
    return rows.view(len(bits), 8 * bits.shape[1])[:, : noise.width]
