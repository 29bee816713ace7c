"""What do the recipes of docs/language-models.md reach on real text, and in what time?

python benchmarks/language_models.py zaremba --softmax hierarchical
python benchmarks/language_models.py characters
python benchmarks/language_models.py softmaxes --minutes 3

The texts are made from the data sets beside the repository (``--data``), in a temporary folder.
The Penn Treebank is not among them: "zaremba" trains on a text of its size, 929,589 + 73,760 +
82,430 tokens (to the end of a line) and 10,000 words, of sentences of War and Peace and WikiText-2
mixed by blocks. Its time is the treebank's, its perplexity is not. Each training is the command
line's own, in a process of its own; what it wrote in ``run.json`` is saved, a row a training; with
``--keep`` in the place of the row of the same text, softmax and threads, and
a row says on which machine it was measured.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import machine, place, save

from unpad.bench import ForeignLoad

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"
TREEBANK = {"train": 929_589, "valid": 73_760, "test": 82_430}
WORDS = 10_000
BLOCK = 200  # lines that stay together
WORD = re.compile(r"\w+|[^\w\s]")
EQUAL = ("--hidden", "200", "--layers", "1", "--dropout", "0.4", "--steps", "35", "--lr", "0.004")


def main() -> None:
    """Make the texts, train, print."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        rows = {"zaremba": zaremba, "characters": characters, "softmaxes": softmaxes}[options.what](
            made, options
        )
    for row in rows:
        print(json.dumps(row))
    print(place(machine()))
    if not options.no_save:
        also = {"threads": options.threads, "machine": place(machine())}
        rows = [{**also, **row} for row in rows]
        by = ("text", "softmax", "threads")
        save("language_models", rows, keep=options.keep, by=by)


def zaremba(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The preset, 13 epochs on a text of the treebank's size."""
    treebank_sized(options.data, folder / "text")
    more = [
        "--preset",
        "zaremba-small",
        *(["--epochs", str(options.epochs)] * bool(options.epochs)),
    ]
    return [
        train("treebank-sized", folder, softmax, folder / "text", *more, "--softmax", softmax)
        for softmax in options.softmax
    ]


def characters(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """tinyshakespeare's characters, the last tenth held out."""
    text = options.data / "tinyshakespeare" / "input.txt"
    return [train("tinyshakespeare", folder, "run", text, "--preset", "characters")]


def softmaxes(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The three softmaxes for the same time of training: as many epochs as fit, two at least."""
    texts = {"war_and_peace": war_and_peace(options.data, folder / "wp"),
             "wikitext2": wikitext(options.data, folder / "wt")}  # fmt: skip
    rows: list[dict[str, Any]] = []
    for name, text in texts.items():
        for softmax in options.softmax:
            fixed = (*EQUAL, "--softmax", softmax)
            once = train(name, folder, f"{name}-{softmax}-1", text, *fixed, "--epochs", "1")
            epochs = max(2, round(60 * options.minutes / once["seconds"]))
            part = f"{name}-{softmax}"
            rows.append(train(name, folder, part, text, *fixed, "--epochs", str(epochs)))
    return rows


def train(kind: str, folder: Path, name: str, data: Path, *options: str) -> dict[str, Any]:
    """Run ``unpad train lm`` and give the results of its record, with the time of the command."""
    command = ["train", "lm", str(data), "--out", str(folder / f"run-{name}"), *options, "--json"]
    call = "import sys; from unpad.cli import main; main(sys.argv[1:])"
    began, foreign = time.perf_counter(), ForeignLoad()
    done = subprocess.run(
        [sys.executable, "-c", call, *command], check=True, capture_output=True, text=True
    )
    record = json.loads(done.stdout)
    return {
        "text": kind,
        "softmax": dict(itertools.pairwise(options)).get("--softmax", "full"),
        "options": " ".join(options),
        "vocabulary": record["vocabulary"],
        "command_seconds": round(time.perf_counter() - began, 1),
        **record["results"],
        "foreign load": foreign.share(),
    }


def treebank_sized(data: Path, folder: Path) -> None:
    """Write ``ptb.train.txt`` and so on: the treebank's size, its vocabulary's size, its form."""
    lines = [*sentences(paragraphs(data)), *wikitext_sentences(data)]
    blocks = [lines[i : i + BLOCK] for i in range(0, len(lines), BLOCK)]
    random.Random(0).shuffle(blocks)
    mixed, parts = iter([line for block in blocks for line in block]), dict[str, list[list[str]]]()
    for part, size in TREEBANK.items():
        taken, total = list[list[str]](), 0
        while total < size:
            taken.append(next(mixed))
            total += len(taken[-1]) + 1
        parts[part] = taken
    counts = collections.Counter(word for line in parts["train"] for word in line)
    del counts["<unk>"]
    known = {"<unk>", *(word for word, _ in counts.most_common(WORDS - 2))}  # and <eos>
    folder.mkdir()
    for part, taken in parts.items():
        text = [" ".join(w if w in known else "<unk>" for w in line) for line in taken]
        (folder / f"ptb.{part}.txt").write_text("\n".join(text) + "\n")


def paragraphs(data: Path) -> list[str]:
    """War and Peace, a paragraph each."""
    text = opened(data / "war_and_peace" / "warandpeace.txt.gz")
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def sentences(texts: Iterable[str]) -> list[list[str]]:
    """Words in lower case, cut after a sign that ends a sentence."""
    cut = (part for text in texts for part in re.split(r"(?<=[.!?])\s+", text))
    return [words for part in cut if (words := WORD.findall(part.lower()))]


def wikitext_sentences(data: Path) -> list[list[str]]:
    """Those of WikiText-2's two parts, whose words are cut already."""
    lines = [line for part in ("valid", "test") for line in wikitext_lines(data, part)]
    cut = (part for line in lines for part in re.split(r"(?<= [.!?]) ", line.strip()))
    return [words for part in cut if (words := part.lower().split())]


def war_and_peace(data: Path, folder: Path) -> Path:
    """80 % to train, 10 % to validate, 10 % to test, by paragraphs."""
    found = [" ".join(WORD.findall(text)) for text in paragraphs(data)]
    a, b = int(0.8 * len(found)), int(0.9 * len(found))
    return write(folder, train=found[:a], valid=found[a:b], test=found[b:])


def wikitext(data: Path, folder: Path) -> Path:
    """WikiText-2's validation part to train, its last tenth held out, and its test part to test."""
    return write(folder, train=wikitext_lines(data, "valid"), test=wikitext_lines(data, "test"))


def wikitext_lines(data: Path, part: str) -> list[str]:
    """The lines of a part, paragraphs and headings."""
    return opened(data / "wikitext2_valid_test" / f"{part}.txt.gz").split("\n")[:-1]


def write(folder: Path, **parts: list[str]) -> Path:
    """A folder with a text file for each part."""
    folder.mkdir()
    for part, lines in parts.items():
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def opened(path: Path) -> str:
    """A gzipped text."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("zaremba", "characters", "softmaxes"))
    parser.add_argument("--softmax", nargs="+", default=["hierarchical", "full", "adaptive"])
    parser.add_argument("--epochs", type=int, help="of the preset, fewer than its 13")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each training of softmaxes")
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--keep", action="store_true", help="keep the other rows that are saved")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    return options


if __name__ == "__main__":
    main()
