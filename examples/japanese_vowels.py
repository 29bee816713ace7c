"""The whole path on real sequences: nine speakers say vowels of 7 to 29 frames; who was it?

Reads the Japanese Vowels set (Kudo, Toyama & Shimbo 1999) out of an installed sktime wheel, without
importing sktime, and runs `unpad profile`, `unpad train classify` and `unpad evaluate` on it.

    python examples/japanese_vowels.py [FOLDER]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path


def read_ts(path: Path) -> list[dict[str, object]]:
    """The rows of a .ts file: channels and the label between colons, values between commas."""
    rows: list[dict[str, object]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines[lines.index("@data") + 1 :]:
        *channels, label = line.split(":")
        values = [[float(v) for v in channel.split(",")] for channel in channels]
        rows.append({"id": len(rows), "label": label, "x": list(zip(*values, strict=True))})
    return rows


def write_jsonl(folder: Path) -> list[Path]:
    """Write train.jsonl and test.jsonl into ``folder``; says what to do where sktime is missing."""
    found = find_spec("sktime")  # finds the folder; runs nothing of it
    if found is None or found.origin is None:
        sys.exit("sktime, which ships the data, is missing: pip install --no-deps sktime")
    source = Path(found.origin).parent / "datasets" / "data" / "JapaneseVowels"
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for part in ("train", "test"):
        rows = read_ts(source / f"JapaneseVowels_{part.upper()}.ts")
        paths.append(folder / f"{part}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return paths


def unpad(*arguments: str | Path) -> None:
    """Show a command of the command line, then run it."""
    print(f"\n$ unpad {' '.join(map(str, arguments))}", flush=True)
    call = "from unpad.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", call, *map(str, arguments)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    named = sys.argv[1:]
    folder = Path(named[0]) if named else Path(tempfile.gettempdir()) / "unpad-demo"
    train, test = write_jsonl(folder)
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    unpad("profile", train)
    unpad("train", "classify", train, "--out", run)
    unpad("evaluate", run, test)
    print(f"\nThe data, the model and all that made it are in {folder}")


if __name__ == "__main__":
    main()
