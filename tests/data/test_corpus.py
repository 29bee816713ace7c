"""Where the texts of a language model come from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from unpad.data import DataError, Roles
from unpad.data.corpus import held_out, read_corpus, text_file


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_folder_as_the_penn_treebank_has_it(tmp_path: Path) -> None:
    write(tmp_path, ptb__train__txt="a\nb\n", ptb__valid__txt="c\n", ptb__test__txt="d\n\n")
    (tmp_path / "README").write_text("no text")
    corpus = read_corpus(tmp_path)
    assert corpus.train.rows == ["a", "b"]
    assert corpus.valid is not None
    assert corpus.valid.rows == ["c"]
    assert corpus.test is not None
    assert corpus.test.rows == ["d", ""]


def test_other_names_and_formats_are_known(tmp_path: Path) -> None:
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"a\n"))
    (tmp_path / "dev.jsonl").write_text(json.dumps({"text": "b"}) + "\n")
    corpus = read_corpus(tmp_path)
    assert corpus.valid is not None
    assert (corpus.train.rows, corpus.valid.rows, corpus.test) == (["a"], ["b"], None)


def test_two_files_for_one_part_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, train__txt="a\n", ptb__train__txt="b\n")
    with pytest.raises(DataError, match=r"more than one file for train \(ptb.train.txt, train.txt"):
        read_corpus(tmp_path)


def test_a_folder_without_a_text_says_what_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no training text; name it train.txt"):
        read_corpus(tmp_path)
    with pytest.raises(DataError, match=r"no test text in this folder; name it test.txt"):
        text_file(tmp_path, "test")


def test_the_last_lines_validate_where_nothing_else_does(tmp_path: Path) -> None:
    lines = [str(i % 10) * 9 for i in range(50)]
    (tmp_path / "book.txt").write_text("\n".join(lines) + "\n")
    corpus = read_corpus(tmp_path / "book.txt")
    assert corpus.valid is not None
    assert (corpus.train.rows, corpus.valid.rows) == (lines[:45], lines[45:])
    alone = read_corpus(tmp_path / "book.txt", valid_fraction=0)
    assert (alone.train.rows, alone.valid) == (lines, None)
    one = write(tmp_path, one__txt="a single line\n") / "one.txt"
    with pytest.raises(DataError, match="one line cannot be split"):
        read_corpus(one)


def test_a_split_column_says_what_is_what(tmp_path: Path) -> None:
    rows = [("a", "train"), ("b", "test"), ("c", "train"), ("d", "val")]
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps({"text": t, "split": s}) + "\n" for t, s in rows))
    corpus = read_corpus(path)
    assert corpus.valid is not None
    assert corpus.test is not None
    assert (corpus.train.rows, corpus.valid.rows, corpus.test.rows) == (["a", "c"], ["d"], ["b"])


def test_lists_of_tokens_are_texts_and_numbers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text('{"words": ["New York", "is"]}\n{"words": []}\n')
    corpus = read_corpus(path, Roles(sequence="words"), valid_fraction=0)
    assert corpus.train.rows == [["New York", "is"], []]
    path.write_text('{"x": [1, 2]}\n')
    with pytest.raises(DataError, match="the sequences are numbers; a language model reads text"):
        read_corpus(path)


def test_nothing_is_held_out_of_nothing() -> None:
    assert held_out([], 0.1) == ([], [])
