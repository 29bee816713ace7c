"""The one error of importing: it names the file, what is wrong in it and what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from unpad.errors import UnpadError

DAMAGED = "the file is damaged or no such file: copy or download it again"


class ArtefactError(UnpadError, ValueError):
    """A saved model that cannot be read, or not be mapped to Unpad's layers.

    ``path`` is the file or folder; the message says what is wrong with it and what to do next.

    >>> print(ArtefactError("model.index", "its magic number is wrong", "download it again"))
    model.index: its magic number is wrong; download it again
    """

    def __init__(self, path: str | Path, problem: str, remedy: str = DAMAGED) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path, self.problem, self.remedy = str(path), problem, remedy

    def __reduce__(self) -> tuple[type[ArtefactError], tuple[str, str, str]]:
        return ArtefactError, (self.path, self.problem, self.remedy)


class MalformedError(Exception):
    """What a reader of bytes raises; the door that knows the file's name makes it our error."""

    def __init__(self, problem: str, remedy: str = DAMAGED) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn what the system says of a file that cannot be written into the error that names it."""
    if path.is_dir():
        remedy = f"name a file in it, such as {path / 'model.safetensors'}"
        raise ArtefactError(path, "it is a folder, not a file to write", remedy)
    if not path.parent.is_dir():
        remedy = f"make it (mkdir -p {path.parent}), or write elsewhere"
        raise ArtefactError(path, f"its folder {path.parent} does not exist", remedy)
    try:
        yield
    except OSError as error:
        problem = f"it cannot be written ({error.strerror or error})"
        raise ArtefactError(path, problem, "check the folder's rights and free space") from error


@contextmanager
def naming(path: str | Path) -> Generator[None]:
    """Turn what the readers of bytes raise into the error that names the file."""
    try:
        yield
    except MalformedError as error:
        raise ArtefactError(path, error.problem, error.remedy) from error
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error})"
        raise ArtefactError(path, problem, "check the path and its rights") from error
