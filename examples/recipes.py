"""The options that give good accuracy on four public sets, and a command that runs them.

    python examples/recipes.py SET FOLDER [OUT]

SET is japanese_vowels, plaid, snips or names; FOLDER holds its files (see FILES). The defaults of
``unpad train classify`` do well on all four: the options here save time or add a little.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

# train, valid (None: part of train or a share of it), test
FILES: dict[str, tuple[str, str | None, str]] = {
    "japanese_vowels": ("train.jsonl.gz", None, "test.jsonl.gz"),
    "plaid": ("train.jsonl.gz", None, "test.jsonl.gz"),
    "snips": ("train.jsonl", "valid.jsonl", "test.jsonl"),
    "names": ("names.csv", None, "names.csv"),
}
OPTIONS: dict[str, list[str]] = {
    "japanese_vowels": [],
    "plaid": ["--epochs", "40"],
    "snips": ["--epochs", "5", "--min-count", "2"],
    "names": ["--epochs", "12", "--batch-sequences", "128"],
}


def commands(name: str, folder: Path, run: Path) -> list[list[str]]:
    """The command lines of a set: train, then evaluate."""
    train, valid, test = FILES[name]
    options = OPTIONS[name] + ([] if valid is None else ["--valid", str(folder / valid)])
    return [
        ["train", "classify", str(folder / train), "--out", str(run), *options],
        ["evaluate", str(run), str(folder / test)],
    ]


def main() -> None:
    from unpad.cli import main as unpad

    if len(sys.argv) not in (3, 4) or sys.argv[1] not in FILES:
        sys.exit(__doc__)
    out = Path(sys.argv[3]) if len(sys.argv) == 4 else Path(tempfile.mkdtemp()) / "run"
    for command in commands(sys.argv[1], Path(sys.argv[2]), out):
        print("$ unpad", *command, flush=True)
        try:
            unpad(command)
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    main()
