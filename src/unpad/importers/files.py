"""Files from strangers: regular ones only, and none outside the folder that was named."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from unpad.importers.errors import MalformedError


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; a pipe or a device (which may never end) is refused unread."""
    # Without O_NONBLOCK a pipe that nobody writes to would block here for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise MalformedError("it is no regular file", "give a file or a folder of files")
    return os.fdopen(descriptor, "rb")


def size_of(file: BinaryIO) -> int:
    """The size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_whole(path: Path, most: int) -> bytes:
    """A file's bytes; one of more than ``most`` bytes is refused unread."""
    with open_regular(path) as file:
        size = size_of(file)
        if size > most:
            raise MalformedError(f"it has {size:,} bytes, more than the {most:,} allowed")
        return file.read(size)  # `most` would be set aside before a byte is read


def read_range(file: BinaryIO, offset: int, size: int) -> bytearray:
    """Bytes [offset, offset + size), which must lie in the file; memory follows the file."""
    end = size_of(file)
    if offset < 0 or size < 0 or offset + size > end:
        raise MalformedError(f"bytes {offset} to {offset + size} are wanted of a file of {end}")
    file.seek(offset)
    data = bytearray(file.read(size))
    if len(data) != size:
        raise MalformedError("it ended while it was read")
    return data


def inside(folder: Path, path: Path) -> Path:
    """The path, which with all links followed lies in the folder."""
    try:
        within = path.resolve().is_relative_to(folder.resolve())
    except RuntimeError as error:  # Python before 3.13 says so of links in a circle
        raise MalformedError(f"{path.name!r} is a link to itself") from error
    if not within:
        raise MalformedError(
            f"{path.name!r} leads outside of the folder {folder}",
            "copy the files themselves into the folder (cp -L)",
        )
    return path
