from __future__ import annotations

import decimal

import numpy as np
import pytest

from tests.data.load.rows import failure, write
from tests.helpers.data_stages import table
from trnflow.tasks.data.load.columns import _numbered
from trnflow.tasks.errors import ConfigError, DataError


def test_missing_column_suggests_the_nearest(bench, tmp_path):
    path = str(write(tmp_path / "a.csv", {"text": ["x"], "label": ["a"]}))
    assert "did you mean label?" in failure(bench, ConfigError, source=path, label="labels")
    assert "data.text: a.csv has no column txt. Fix: did you mean text? It has text, label" in failure(
        bench, ConfigError, source=path, text="txt"
    )
    both = failure(bench, ConfigError, source=path, text=["title", "body"])
    assert "data.text: a.csv has no column title and no body. Fix: set data.text to what it has: text, label" in both
    assert "data.columns" in failure(bench, ConfigError, source=path, columns={"response": "answer"})


def test_no_column_is_suggested_that_another_setting_names(bench, tmp_path):
    """A source whose column was renamed over night: text is near to team, which is the label."""
    path = str(write(tmp_path / "a.csv", {"body": ["x"], "team": ["a"]}))
    told = failure(bench, ConfigError, source=path, text="text", label="team")
    assert "data.text: a.csv has no column text. Fix: set data.text to what it has: body, team" in told


def test_a_column_that_one_file_lacks_is_named_with_that_file(bench, tmp_path):
    write(tmp_path / "train.csv", {"body": ["x"], "team": ["a"]})
    write(tmp_path / "test.csv", {"text": ["x"], "team": ["a"]})
    told = failure(bench, ConfigError, source=str(tmp_path), text="text", label="team")
    assert "train.csv has no column text, which other files of the data have. Fix: rename a column of it" in told
    assert told.endswith("it has body, team")


def test_rows_without_text_or_label_are_dropped_and_counted_where_asked(bench, tmp_path):
    write(tmp_path / "train.jsonl", {"text": ["x", None, " \n", "y", "z"], "label": ["a", "a", "b", None, "b"]})
    write(tmp_path / "test.csv", {"text": ["v", "", "w"], "label": ["a", "b", ""]})
    rows = bench.rows(source=str(tmp_path), label="label", nulls="drop")
    assert table(rows, "train") == {"text": ["x", "z"], "label": [0, 1]}
    assert table(rows, "test") == {"text": ["v"], "label": [0]}
    assert rows.meta["dropped"] == {"null": 3, "empty": 2}
    assert "rows dropped: 3 null, 2 empty" in [said.get("info") for said in bench.said]


@pytest.mark.parametrize(
    ("name", "columns", "told"),
    [
        ("a.jsonl", {"text": ["x", None], "label": [0, 1]}, "a.jsonl row 2: the text column text is missing"),
        ("b.parquet", {"text": ["x", "y"], "label": [None, 1]}, "b.parquet row 1: the label is missing"),
        ("d.parquet", {"text": ["x"], "label": [0.5]}, "row 1: the label 0.5 is a fraction"),
        ("a.csv", {"text": ["x", "  "], "label": ["0", "1"]}, "a.csv row 2: the text is empty (column text)"),
        ("a.jsonl", {"text": ["x", ""], "label": [0, 1]}, "a.jsonl row 2: the text is empty (column text)"),
        (
            "a.csv",
            {"text": ["x", "y"], "label": ["0", " "]},
            "a.csv row 2: the label is missing (null, nan, or an empty cell)",
        ),
        ("a.parquet", {"text": ["x", "y"], "label": [1.0, float("nan")]}, "a.parquet row 2: the label is missing"),
        ("a.parquet", {"text": ["", "y"], "label": [1, None]}, "a.parquet row 1: the text is empty"),
    ],
)
def test_a_text_or_label_that_is_none_names_the_row(bench, tmp_path, name, columns, told):
    assert told in failure(bench, DataError, source=str(write(tmp_path / name, columns)), label="label")


def test_one_of_several_texts_may_be_blank(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"title": ["", "x", ""], "body": ["y", "", " "]})
    source = {"source": str(path), "text": ["title", "body"]}
    assert "a.csv row 3: the text is empty (column title, body)" in failure(bench, DataError, **source)
    assert bench.rows(**source, nulls="drop").meta["splits"] == {"train": 2}


def test_numbers_of_rows_count_those_that_were_dropped(bench, tmp_path):
    write(tmp_path / "set/train.csv", {"text": ["a", "b"], "label": ["x", "y"]})
    write(tmp_path / "set/test.csv", {"text": ["", "b", "c"], "label": ["x", "", "z"]})
    told = failure(bench, DataError, source=str(tmp_path / "set"), label="label", nulls="drop")
    assert "test.csv row 3: the label 'z' is outside the label set (x, y)" in told
    rule = failure(bench, DataError, source=str(tmp_path / "set"), label="label >= 2", nulls="drop")
    assert "row 1: label is 'x', which is no number" in rule


def test_nothing_left(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["", " "], "label": ["x", "y"]})
    told = failure(bench, DataError, source=str(path), label="label", nulls="drop")
    assert "the split train is empty: a.csv holds no rows but those dropped (2 empty)" in told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"text": "body", "columns": {"summary": "body"}}, "the column body is to be both body and summary"),
        ({"columns": {"a": "body", "b": "body"}}, "the column body is to be both a and b"),
        (
            {"text": "body", "label": "kind", "columns": {"topic": "kind"}},
            "the column kind is to be both the label and topic",
        ),
        ({"text": "body", "label": "kind", "columns": {"label": "body"}}, "`label` is the name of the label column"),
    ],
)
def test_no_column_is_two(bench, tmp_path, data, told):
    path = write(tmp_path / "a.csv", {"body": ["x", "y"], "kind": ["a", "b"]})
    assert f"data.columns: {told}" in failure(bench, ConfigError, source=str(path), **data)


def test_a_kept_column_may_be_what_a_rule_reads(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "stars": ["5", "1"]})
    rows = bench.rows(source=str(path), text="text", label="stars >= 3", columns={"score": "stars"})
    assert table(rows, "train") == {"text": ["x", "y"], "score": ["5", "1"], "label": [1, 0]}


def test_parquet_that_is_not_utf8_names_the_row(bench, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    offsets, data = pa.py_buffer(np.array([0, 4, 6], dtype=np.int32)), pa.py_buffer(b"fine\xff\xfe")
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    told = failure(bench, DataError, source=str(tmp_path / "a.parquet"), text="text")
    assert "a.parquet row 2: text is broken: Invalid UTF8" in told


def test_chosen_rows_of_types_that_arrow_does_not_filter_are_those_that_are_named() -> None:
    import pyarrow as pa

    texts = [["a", "b", "c"], ["d", "e", "f"]]
    batches = [pa.record_batch({"text": pa.array(each, pa.string_view())}) for each in texts]
    found = list(_numbered(iter(batches), np.array([True, False, True, False, False, True])))
    assert [(rows.column(0).to_pylist(), numbers.tolist()) for rows, numbers in found] == [
        (["a"], [1]), (["c"], [3]), (["f"], [6])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "kind", "kept"),
    [
        ([0.1, None], "float32", [0.1, None]),
        ([[1, None, 2], []], "list<int32>", ["[1, null, 2]", "[]"]),
        ([[decimal.Decimal("1E-8")], [decimal.Decimal("100")]], "list<decimal>", ["[0.00000001]", "[100.00000000]"]),
    ],
)
def test_a_kept_column_has_the_values_that_are_written_in_the_file(bench, tmp_path, values, kind, kept):
    import pyarrow as pa

    kinds = {
        "float32": pa.float32(), "list<int32>": pa.list_(pa.int32()), "list<decimal>": pa.list_(pa.decimal128(20, 8)),
    }  # fmt: skip
    path = write(tmp_path / "a.parquet", {"text": ["a", "b"], "kept": pa.array(values, kinds[kind])})
    rows = bench.rows(source=str(path), text="text", columns={"kept": "kept"})
    assert table(rows, "train")["kept"] == kept


def test_the_longest_row_is_that_of_any_file(bench, tmp_path):
    for number, text in enumerate(("b" * 120_000, "a")):
        write(tmp_path / f"train-{number}.csv", {"text": [text]})
    bench.rows(source=str(tmp_path), text="text")
    assert {"info": "longest row: split train, train-0.csv row 1, 0.12 MB"} in bench.said
