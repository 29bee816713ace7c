"""The lengths of real data sets, read from the files beside this repository where they are.

``../shared/data`` holds the sets, and ``lengths.json`` what their lengths must add up to: a set
whose file gives other numbers is an error, not a row.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "shared" / "data"


def _text(path: str) -> str:
    data = (DATA / path).read_bytes()
    return (gzip.decompress(data) if path.endswith(".gz") else data).decode()


def _json(path: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, _text(path).splitlines())


def _paragraphs(path: str) -> Iterator[str]:
    """Lines without a blank one between them."""
    runs = itertools.groupby(_text(path).split("\n"), key=lambda line: bool(line.strip()))
    return (" ".join(lines) for filled, lines in runs if filled)


def _names() -> list[int]:
    rows = csv.DictReader(_text("names/names.csv").splitlines())
    return [len(row["name"]) for row in rows if row["split"] == "train"]


def _cycles() -> list[int]:
    rows = csv.DictReader(_text("cmapss_fd001/train.csv.gz").splitlines())
    return list(Counter(row["unit"] for row in rows).values())


def _documents() -> list[int]:
    totals = Counter[str]()
    for row in _json("ud_en_ewt/train.jsonl.gz"):
        totals[row["doc"]] += len(row["tokens"])
    return list(totals.values())


def _tokens(path: str) -> Callable[[], list[int]]:
    return lambda: [len(row["tokens"]) for row in _json(path)]


def _steps(path: str) -> Callable[[], list[int]]:
    return lambda: [len(row["x"]) for row in _json(path)]


# What a row is called: where lengths.json has it, and how its lengths are read.
SETS: dict[str, tuple[str, str, Callable[[], list[int]]]] = {
    "names, characters": ("names", "train", _names),
    "Snips, words": ("snips", "train", _tokens("snips/train.jsonl")),
    "EWT sentences, words": ("ud_en_ewt", "train", _tokens("ud_en_ewt/train.jsonl.gz")),
    "EWT documents, words": ("ud_en_ewt (documents)", "train", _documents),
    "War and Peace paragraphs, words": (
        "war_and_peace (paragraphs)",
        "all",
        lambda: [len(text.split()) for text in _paragraphs("war_and_peace/warandpeace.txt.gz")],
    ),
    "WikiText-2 paragraphs, words": (
        "wikitext2_valid_test (paragraphs)",
        "valid",
        lambda: [
            len(line.split()) + 1
            for line in _text("wikitext2_valid_test/valid.txt.gz").splitlines()
            if line.strip()
        ],
    ),
    "Japanese Vowels, frames": (
        "japanese_vowels",
        "train",
        _steps("japanese_vowels/train.jsonl.gz"),
    ),
    "C-MAPSS FD001, cycles": ("cmapss_fd001", "train", _cycles),
    "AN4, frames": (
        "an4_mfcc",
        "train",
        lambda: [
            row["n_frames"] for row in _json("an4_mfcc/utterances.jsonl") if row["split"] == "train"
        ],
    ),
    "PLAID, samples": ("plaid", "train", _steps("plaid/train.jsonl.gz")),
    "JSB chorales, steps": (
        "jsb_chorales",
        "train",
        lambda: [
            row["T"] for row in _json("jsb_chorales/sequences.jsonl.gz") if row["split"] == "train"
        ],
    ),
}


def real_lengths() -> dict[str, list[int]]:
    """The lengths of every set; none, and a line that says why, where the data is not there."""
    table = DATA / "lengths.json"
    if not table.exists():
        print(f"left out, the real lengths: {DATA.parent.name}/{DATA.name} is not beside this tree")
        return {}
    facts = json.loads(table.read_text())
    return {
        name: _checked(name, facts[group][split], read())
        for name, (group, split, read) in SETS.items()
    }


def _checked(name: str, facts: dict[str, Any], lengths: list[int]) -> list[int]:
    wanted = (facts["n"], facts["total"], facts["min"], facts["max"])
    found = (len(lengths), sum(lengths), min(lengths), max(lengths))
    if found != wanted:
        raise ValueError(f"{name}: lengths.json says n, total, min, max = {wanted}; found {found}")
    return lengths
