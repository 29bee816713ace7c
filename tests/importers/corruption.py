"""Ways to break bytes."""

from __future__ import annotations

import random

_MEAN = (b"\xff" * 10, b"\0" * 8, b"\x80" * 10, b"\xff\xff\xff\x7f", b"\0\0\0\0\0\0\0\x10")


def corrupt(data: bytes, chance: random.Random) -> bytes:
    """Bytes with a few of them flipped, cut off, cut out, doubled, moved, or replaced."""
    broken = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        way = chance.randrange(7)
        at = chance.randrange(len(broken) + 1)
        span = min(chance.choice((1, 2, 8, 64, 1000)), len(broken) - at)
        if way <= 2:
            for place in range(at, min(at + chance.choice((1, 1, 3)), len(broken))):
                broken[place] ^= 1 << chance.randrange(8)
        elif way == 3:
            del broken[at:]
        elif way == 4:
            del broken[at : at + span]
        elif way == 5:
            to = chance.randrange(len(broken) + 1)
            broken[to:to] = broken[at : at + span]
        else:
            mean = chance.choice(_MEAN)
            broken[at : at + len(mean)] = mean
    return bytes(broken)
