"""Every format becomes the same table, and what cannot be read is named: file, place, column."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unpad.data import DataError, Roles, SequenceTable, read, stream


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def series(table: SequenceTable) -> list[Any]:
    values, offsets = table.numbers()
    return [values[i:j].tolist() for i, j in pairwise(offsets)]


@pytest.fixture
def rows(seed: int) -> list[dict[str, Any]]:
    """Sequences [T][2] of lengths 0 to 6 with a label each; values exact in float32."""
    random = np.random.default_rng(seed)
    lengths = [3, 0, 6, 1, 0, 2]
    return [
        {"id": f"s{i}", "label": "ab"[i % 2], "x": (random.integers(-99, 99, (n, 2)) / 8).tolist()}
        for i, n in enumerate(lengths)
    ]


def long_lines(rows: list[dict[str, Any]], separator: str = ",") -> list[str]:
    return [
        separator.join(map(str, (row["id"], t, *step, row["label"])))
        for row in rows
        for t, step in enumerate(row["x"])
    ]


def as_file(rows: list[dict[str, Any]], form: str, folder: Path) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path = folder / f"data.{form}"
    if form == "jsonl":
        path.write_text(lines)
    elif form == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        text = "\n".join(["id,t,u,v,label", *long_lines(rows)]) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_a_sequence_a_row_reads_back_as_written(
    rows: list[dict[str, Any]], form: str, tmp_path: Path
) -> None:
    table = read(as_file(rows, form, tmp_path))
    assert series(table) == [row["x"] for row in rows]
    assert table.strings("label") == [row["label"] for row in rows]
    assert table.strings("id") == [row["id"] for row in rows]
    assert table.lengths().tolist() == [3, 0, 6, 1, 0, 2]
    assert table.feature_count == 2


@pytest.mark.parametrize("form", ["csv", "csv.gz"])
def test_a_step_a_row_reads_back_as_written_but_for_empty_ones(
    rows: list[dict[str, Any]], form: str, tmp_path: Path
) -> None:
    filled = [row for row in rows if row["x"]]
    table = read(as_file(rows, form, tmp_path))
    assert series(table) == [row["x"] for row in filled]
    assert table.strings("label") == [row["label"] for row in filled]
    assert table.source.features == ("u", "v")


def test_steps_in_any_order_are_gathered_and_sorted_by_time(
    rows: list[dict[str, Any]], tmp_path: Path, seed: int
) -> None:
    lines = long_lines(rows)
    np.random.default_rng(seed).shuffle(lines)
    table = read(write(tmp_path / "a.csv", "\n".join(["id,t,u,v,label", *lines])))
    found = dict(zip(table.strings("id"), series(table), strict=True))
    assert found == {row["id"]: row["x"] for row in rows if row["x"]}


def test_times_may_be_dates(tmp_path: Path) -> None:
    text = "time,value\n2026-01-02 00:00:00,2\n2026-01-01 12:00:00,1\n"
    assert series(read(write(tmp_path / "a.csv", text))) == [[[1.0], [2.0]]]
    zones = "time,value\n2026-01-01T00:00:00Z,3\n2026-01-01T01:00:00+02:00,2\n"
    assert series(read(write(tmp_path / "b.csv", zones))) == [[[2.0], [3.0]]]


def test_semicolons_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"id;u;v\r\na;1;2\r\na;3;4\r\nb;5;6\r\n")
    assert series(read(path)) == [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]


def test_a_univariate_series_is_one_feature(tmp_path: Path) -> None:
    table = read(write(tmp_path / "a.jsonl", '{"x": []}\n{"x": [1, 2.5]}\n'))
    assert series(table) == [[], [[1.0], [2.5]]]
    assert table.column("label") is None


def test_empty_rows_before_the_first_full_one_take_its_width(tmp_path: Path) -> None:
    lines = ['{"x": []}'] * 1500 + ['{"x": [[1, 2, 3]]}']
    table = read(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert (len(table), table.feature_count, table.lengths().sum()) == (1501, 3, 1)


def test_a_tsv_is_label_and_text_with_or_without_a_header(tmp_path: Path) -> None:
    bare = read(write(tmp_path / "a.tsv", 'up\tso "good\ndown\t\n'))
    headed = read(write(tmp_path / "b.tsv", 'label\ttext\nup\tso "good\ndown\t\n'))
    assert bare.texts() == headed.texts() == ['so "good', ""]
    assert bare.strings("label") == headed.strings("label") == ["up", "down"]


def test_a_csv_of_texts_finds_its_label_and_its_splits(tmp_path: Path) -> None:
    text = 'name,nationality,split\n"Le, Bon",French,train\nÖz,Turkish,test\n'
    table = read(write(tmp_path / "a.csv", text))
    assert table.texts() == ["Le, Bon", "Öz"]
    assert table.strings("label") == ["French", "Turkish"]
    assert table.splits() == ["train", "test"]
    assert table.of_split("test").texts() == ["Öz"]


def test_tokens_are_kept_and_a_second_list_is_no_label(tmp_path: Path) -> None:
    row = {"tokens": ["don't", "go"], "slots": ["O", "O"], "intent": "Stay"}
    table = read(write(tmp_path / "a.jsonl", json.dumps(row)))
    assert (table.kind, table.tokens()[0], table.strings("label")) == (
        "tokens", ["don't", "go"], ["Stay"],
    )  # fmt: skip


def test_options_choose_columns(tmp_path: Path) -> None:
    row = {"a": [1, 2], "b": [[3], [4]], "kind": "k", "note": "n"}
    path = write(tmp_path / "a.jsonl", json.dumps(row))
    roles = Roles(sequence="b", label="note")
    table = read(path, roles)
    assert (series(table), table.strings("label")) == ([[[3.0], [4.0]]], ["n"])
    joined = read(path, Roles(features=("a", "b"), label="kind"))
    assert series(joined) == [[[1.0, 3.0], [2.0, 4.0]]]


def test_whole_numbers_and_flags_are_labels(tmp_path: Path) -> None:
    lines = ['{"x": [1], "y": 3}', '{"x": [1], "y": 3.0}', '{"x": [1], "y": true}']
    table = read(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert table.strings("label") == ["3", "3", "true"]


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet", "csv"])
def test_a_stream_gives_the_same_sequences_in_pieces(form: str, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = [
        {"id": f"s{i}", "label": "a", "x": (random.integers(-99, 99, (n, 2)) / 8).tolist()}
        for i, n in enumerate(random.integers(1, 5, 2500))
    ]
    path = as_file(rows, form, tmp_path)
    pieces = list(stream(path))
    assert [s for piece in pieces for s in series(piece)] == [row["x"] for row in rows]
    if form != "csv":  # a CSV of this size is one block
        assert max(len(piece) for piece in pieces) <= 1024


def test_sequences_across_blocks_of_a_stream_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unpad.data.delimited.BLOCK_BYTES", 64)
    lines = [f"s{i},{t}" for i in range(9) for t in range(i * 3)]
    pieces = list(stream(write(tmp_path / "a.csv", "\n".join(["id,v", *lines]))))
    assert len(pieces) > 2
    assert [len(s) for piece in pieces for s in series(piece)] == [3 * i for i in range(1, 9)]


def refusal(path: Path, roles: Roles | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(path, roles)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(str(path)).lstrip(",: ")


@pytest.mark.parametrize(
    ("name", "text", "start"),
    [
        ("a.jsonl", '{"x": [1]}\n{"x": [1\n', "line 2: not valid JSON"),
        ("a.jsonl", '{"x": ' + "[" * 100_000, "line 1: not valid JSON"),
        ("a.jsonl", "[1, 2]\n", "line 1: the line is a list, not an object"),
        ("a.jsonl", '{"x": [1]}\n\n{"y": 1}\n', "line 3, column `x`: the sequence is missing"),
        ("a.jsonl", '{"x": [[1, 2], [3]]}', "line 1, column `x`: step 1 has 1 features"),
        ("a.jsonl", '{"x": [[1, 2]]}\n{"x": [[1]]}', "line 2, column `x`: 1 features a step"),
        ("a.jsonl", '{"x": [1, "2"]}', "line 1, column `x`: "),
        ("a.jsonl", '{"x": ["a"]}\n{"x": [1]}', "line 2, column `x`: 1 is no token"),
        ("a.jsonl", '{"x": ["a"]}\n{"x": ["\\ud83d"]}', "line 2: not valid JSON"),
        ("a.jsonl", '{"x": [1], "label": 0.5}', "line 1, column `label`: 0.5 is no label"),
        ("a.jsonl", '{"a": [1], "b": [2]}', "the columns a, b could all be the sequence"),
        ("a.jsonl", '{"label": 1}', "no column holds sequences (columns: label)"),
        ("a.jsonl", "", "no sequence in the file"),
        ("a.csv", "", "the file is empty"),
        ("a.csv", "id,u\na,1\na,x\n", "column `u`: it holds text"),
        ("a.csv", "id,u,label\na,1,k\na,2,l\n", "line 3, column `label`: the label changes"),
        ("a.csv", "id,u\na,1\na,2,3\n", "cannot be read"),
        ("a.csv", "id,time,u\na,noon,1\na,two,1\n", "column `time`: the times (such as 'noon')"),
        ("a.parquet", "PAR", "no Parquet file"),
        ("a.xml", "<a/>", "unknown format"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_their_place(
    name: str, text: str, start: str, tmp_path: Path
) -> None:
    assert refusal(write(tmp_path / name, text)).startswith(start)


def test_a_word_among_features_names_its_line(tmp_path: Path) -> None:
    lines = [f"a,{i}" for i in range(2000)] + ["a,oops"]
    path = write(tmp_path / "a.csv", "\n".join(["id,u", *lines]))
    assert refusal(path).startswith("line 2002, column `u`: 'oops' is not a number")


def test_an_unknown_column_lists_those_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"x": [1], "label": "a"}')
    assert "no column `z`; choose one of x, label" in refusal(path, Roles(label="z"))


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.jsonl")
    assert "is a folder" in refusal(tmp_path)


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": [1, 2, 3]}\n' * 1000)[:-20])
    assert "broken gzip file" in refusal(path)


def test_a_stream_gives_what_stands_before_a_bad_row(tmp_path: Path) -> None:
    steps = [f"s{i // 2},{i}" for i in range(1100)]  # columns are told by the first 1000 rows
    steps[1050] = "s525,x"
    long = tmp_path / "a.csv"
    long.write_text("\n".join(["id,u", *steps]))
    whole = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [[1.0], [], None, [2.0]], "label": ["a"] * 4}), whole)
    # Whether s524 goes on is not known: the bad row is not read far enough to tell its id.
    for path, place, count in ((long, "line 1052", 524), (whole, "row 2", 2)):
        tables, found = stream(path), 0
        while found < count:
            found += len(next(tables))
        assert found == count
        with pytest.raises(DataError, match=place):
            next(tables)
        with pytest.raises(DataError, match=place):
            read(path)


def test_a_stream_refuses_an_id_that_comes_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,u\na,1\nb,2\na,3\n")
    assert series(read(path)) == [[[1.0], [3.0]], [[2.0]]]
    with pytest.raises(DataError, match="line 4, column `id`: sequence 'a' comes back"):
        list(stream(path))


BEYOND = "line 1, column `x[0]`: step 1 holds inf, or a number that does not fit float32"


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.jsonl", '{"x": [[1, 2]]}\n{"x": [[1, 2], [3, NaN]]}', "line 2, column `x[1]`: step 1"),
        ("a.jsonl", '{"x": [[1, 2]]}\n{"x": [[1, null]]}\n', "line 2, column `x[1]`: step 0"),
        ("a.csv", "id,u,v\na,1,2\nb,3,4\nb,,5\n", "line 3, column `u`: step 1 holds nan"),
        ("a.jsonl", '{"x": [1, 1e300]}', BEYOND),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_found_with_their_step(
    name: str, text: str, place: str, tmp_path: Path
) -> None:
    path = write(tmp_path / name, text)
    table = read(path)
    with pytest.raises(DataError) as caught:
        table.check_finite()
    assert str(caught.value).startswith(f"{path}, {place}")


def test_parquet_columns_of_unequal_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [[1.0], [1.0, 2.0]], "b": [[1.0], [2.0]]}), path)
    assert refusal(path, Roles(features=("a", "b"))).startswith("row 1, column `b`: its length")


def test_parquet_nulls_and_uneven_steps_name_their_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [[1.0], None]}), path)
    assert refusal(path).startswith("row 1, column `x`: the sequence is null")
    pq.write_table(pa.table({"x": [[[1.0, 2.0]], [[1.0, 2.0], [3.0]]]}), path)
    assert refusal(path).startswith("row 1, column `x`: step 1 has 1 features, not 2")


def test_parquet_list_columns_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    kind = pa.list_(pa.list_(pa.float32(), 3))
    pq.write_table(pa.table({"x": pa.array([[[1, 2, 3]], [], [[4, 5, 6]]], kind)}), path)
    values, offsets = read(path).numbers()
    assert values.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert offsets.tolist() == [0, 1, 1, 2]
    assert not values.flags.owndata


def test_taking_rows_keeps_places(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    table = read(as_file(rows, "jsonl", tmp_path)).take([5, 1, 2])
    assert series(table) == [rows[i]["x"] for i in (5, 1, 2)]
    assert [table.place(i) for i in range(3)] == ["line 6", "line 2", "line 3"]


@pytest.mark.parametrize("long", [False, True])
def test_whole_numbers_in_a_parquet_float_column_are_labels_and_ids_as_in_json(
    long: bool, tmp_path: Path
) -> None:
    numbers = [2.0, None, -1.0, 1e18]
    x = [1.0, 2.0, 3.0, 4.0] if long else [[1.0], [], [2.0], [3.0]]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [5.0, 6.0, 7.0, 8.0], "x": x, "label": numbers}), path)
    table = read(path)
    assert table.strings("label") == ["2", None, "-1", "1000000000000000000"]
    assert table.strings("id") == ["5", "6", "7", "8"]


@pytest.mark.parametrize("role", ["label", "id", "split"])
@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (0.5, pa.float64()),
        (float("nan"), pa.float32()),
        (float("inf"), pa.float64()),
        (0.5, pa.dictionary(pa.int8(), pa.float64())),
        ([1], pa.list_(pa.int64())),
        ({"a": 1}, pa.struct({"a": pa.int64()})),
        (b"\xff", pa.binary()),
    ],
)
def test_a_parquet_label_that_is_none_is_named_and_no_arrow_error_shows(
    role: str, cell: Any, kind: pa.DataType, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    cells = pa.array([*[None] * 1030, cell], kind)
    pq.write_table(pa.table({"x": pa.array([[1.0]] * 1031), role: cells}), path)
    message = refusal(path, Roles(sequence="x"))
    assert message.startswith(f"row 1030, column `{role}`: {cell!r} is no label; ")


def test_a_step_of_no_sequence_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ["a", None], "u": [1.0, 2.0]}), path)
    assert refusal(path).startswith("row 1, column `id`: the id is null")


def test_a_token_that_is_null_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [["a"], [], ["b", "c", None]]
    pq.write_table(pa.table({"tokens": rows, "label": ["x", "y", "x"]}), path)
    assert refusal(path).startswith("row 2, column `tokens`: token 2 is null")
