"""Lines from files and pipes: the same lines however the bytes arrive."""

from __future__ import annotations

import io
import os

from hypothesis import given
from hypothesis import strategies as st

from unpad.data.lines import arriving, pieces


class Dribble(io.RawIOBase):
    """A pipe that hands over its bytes in the given parts."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def read1(self, size: int) -> bytes:
        return self.parts.pop(0) if self.parts else b""


@given(st.lists(st.binary(min_size=1, max_size=9).map(lambda b: b.replace(b"a", b"\n"))))
def test_lines_that_arrive_in_any_parts_are_those_of_a_file(parts: list[bytes]) -> None:
    expected = [
        (number, line.rstrip(b"\n"))
        for piece in pieces(io.BytesIO(b"".join(parts)), 3)
        for number, line in piece
    ]
    found = [line for piece in arriving(Dribble(list(parts))) for line in piece]  # pyright: ignore[reportArgumentType]
    assert found == expected


def test_a_line_is_there_before_the_pipe_ends() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as end:
        lines = arriving(pipe)
        end.write(b"one\ntw")
        assert next(lines) == [(1, b"one")]
        end.write(b"o\nthree\n")
        assert next(lines) == [(2, b"two"), (3, b"three")]
        end.close()
        assert next(lines, None) is None
