"""Rows of csv and tsv: every cell as it is written, or an error that names file and line."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.load.rows import PACKS, failure
from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.errors import DataError

LONG = "a long cell, " * 400_000
"""5.2 MB."""


def zipped(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a.csv", content)
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.csv", bytes), ("a.zip", zipped), *((f"a.csv.{ending}", pack) for ending, pack in PACKS.items())],
)
def test_a_cell_of_5_mb_and_a_byte_order_mark_in_any_compression(bench, tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(f'\ufefftext,label\n"{LONG}",long\n\na,short\n'.encode()))
    rows = bench.rows(source=str(tmp_path / name), label="label")
    assert table(rows, "train") == {"text": [LONG, "a"], "label": [0, 1]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("text,label\nx,1\ny\n", "a.csv line 3 has 1 cell, the header 2"),
        ("text,label\nx,1\ny,2,3\n", "a.csv line 3 has 3 cells, the header 2"),
        ("text,label\nx,1,\ny,2,\n", "a.csv line 2 has 3 cells, the header 2"),
        ('text,label\n"two\nlines",1\ny\n', "a.csv line 4 has 1 cell, the header 2"),
        ("text,label\n" + "x,1\n" * 5000 + "y\n", "a.csv line 5002 has 1 cell, the header 2"),
        ('text,label\nx,1\ny,"2\nz,3\n', "a.csv line 3 is not csv: unexpected end of data"),
        ('text,label\n"Good", she said,1\n', "a.csv line 2 has 3 cells, the header 2"),
        ('text,label\n"Good" she said,1\n', "a.csv line 2 is not csv: ',' expected after '\"'"),
    ],
)
def test_a_row_that_would_be_shifted_or_swallowed_names_its_line(bench, tmp_path, content, told):
    (tmp_path / "a.csv").write_text(content)
    assert told in failure(bench, DataError, source=str(tmp_path / "a.csv"), text="text")


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("lines", ["\n", 'so ""\n'], ids=["blank", "quotes"])
def test_a_quote_that_nobody_closes_is_named_by_its_line(bench, tmp_path, ending, lines):
    """Millions of lines in one cell would take minutes."""
    mark, file = {"csv": ",", "tsv": "\t"}[ending], tmp_path / f"a.{ending}"
    first = f"text{mark}label\nx{mark}1\n"
    file.write_text(f'{first}"y{lines * 190_000}"{mark}2\n')
    assert table(bench.rows(source=str(file), label="label"), "train")["label"] == [0, 1]
    file.write_text(f'{first}"y{lines * 210_000}"{mark}2\n')
    told = f"a.{ending} line 3: a quote that begins here is not closed within 200,000 lines"
    assert told in failure(bench, DataError, source=str(file), text="text")


@pytest.mark.parametrize(
    ("name", "header"), [("a.csv", 'text;"rate, in %"'), ("a.csv", 'text|"rate, in %"'), ("a.tsv", "text;rate, in %")]
)
def test_the_header_shows_what_is_between_the_cells(bench, tmp_path, name, header):
    content = f'\ufeff\n{header}\n"well, ""yes""; no | or";3,5\nso,4\n'
    mark = header[4]
    (tmp_path / name).write_text(content.replace('";3', f'"{mark}3').replace("so,", f"so{mark}"))
    rows = table(bench.rows(source=str(tmp_path / name)), "train")
    assert rows == {"text": ['well, "yes"; no | or', "so"], "rate, in %": ["3,5", "4"]}


def test_quotes_of_tsv_that_are_no_quoting_are_told(bench, tmp_path):
    """Elsewhere the three rows are read as two: the second text is `hello, neg, you said`."""
    (tmp_path / "a.tsv").write_text('text\tlabel\nsay "hi"\tpos\n"hello\tneg\nyou" said\tpos\n')
    told = failure(bench, DataError, source=str(tmp_path / "a.tsv"), label="label")
    assert "a.tsv line 3 is not csv: '\t' expected after '\"'" in told


def test_blank_lines_are_no_rows_and_blank_cells_are_cells(bench, tmp_path):
    (tmp_path / "a.csv").write_text('\ntext,note\n\nx,\n  \ny,""\nNA,null\n\n')
    assert table(bench.rows(source=str(tmp_path / "a.csv")), "train") == {
        "text": ["x", "y", "NA"],
        "note": ["", "", "null"],
    }


@pytest.mark.parametrize("header", ["v1,v2,,,", ",text,label", "a,  ,b", '"","",x', "a;;c"])
def test_columns_without_a_name_are_numbered_as_pandas_does_and_that_is_said(bench, tmp_path, header):
    import pandas

    path, mark = tmp_path / "a.csv", ";" if ";" in header else ","
    path.write_text(f"{header}\n" + mark.join("x" * (header.count(mark) + 1)) + "\n")
    rows = bench.rows(source=str(path))
    theirs = [f"Unnamed: {n}" if name.isspace() else name for n, name in enumerate(pandas.read_csv(path, sep=mark))]
    assert rows.meta["columns"] == theirs
    named = ", ".join(name for name in theirs if name.startswith("Unnamed"))
    assert {"info": f"a.csv: columns without a name are called {named}"} in bench.said


def test_two_columns_may_not_come_to_the_same_name(bench, tmp_path):
    (tmp_path / "a.csv").write_text("text,,Unnamed: 1\nx,y,z\n")
    assert "a.csv has two columns named Unnamed: 1" in failure(bench, DataError, source=str(tmp_path / "a.csv"))


@pytest.mark.parametrize("mark", [";", ",", "|", "\t"])
def test_the_first_line_that_excel_writes_names_the_delimiter(bench, tmp_path, mark):
    (tmp_path / "a.csv").write_bytes(f"\ufeffsep={mark}\r\ntext{mark}label\r\na, b; c{mark}x\r\n".encode())
    cells = ["a", " b; c"] if mark == "," else ["a, b", " c"] if mark == ";" else ["a, b; c"]
    if len(cells) > 1:
        told = failure(bench, DataError, source=str(tmp_path / "a.csv"), text="text")
        assert "a.csv line 3 has 3 cells, the header 2" in told
    else:
        assert table(bench.rows(source=str(tmp_path / "a.csv")), "train") == {"text": cells, "label": ["x"]}


def test_cells_and_labels_that_pandas_would_change_stay(bench, tmp_path):
    cells = ["NA", "None", "null", "N/A", "01", "1,234", "1_000", "1e3", "True", "-0", " x "]
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{cell}\t{cell}\n" for cell in cells))
    rows = bench.rows(source=str(tmp_path / "a.tsv"), label="label")
    told = table(rows, "train")
    assert told["text"] == cells
    assert [rows.meta["labels"][number] for number in told["label"]] == cells
    (tmp_path / "b.csv").write_text("text,label\nx,01\ny,1\nz,10\n")
    assert bench.rows(source=str(tmp_path / "b.csv"), label="label").meta["labels"] == ["01", "1", "10"]


def test_one_column_and_latin_1(bench, tmp_path):
    (tmp_path / "a.csv").write_text('text\n"two\nlines"\nplain\n')
    assert table(bench.rows(source=str(tmp_path / "a.csv")), "train") == {"text": ["two\nlines", "plain"]}
    (tmp_path / "b.csv").write_bytes("text,label\nfine,x\ncaf\u00e9,y\n".encode("latin-1"))
    told = failure(bench, DataError, source=str(tmp_path / "b.csv"), text="text")
    assert "b.csv line 3 is not UTF-8" in told and "convert the file to UTF-8" in told


def test_amharic_tweets_are_those_of_the_file(bench, shared):
    folder = shared / "data/sentiment_amharic"
    rows = bench.rows(source=str(folder), text="tweet", label="label")
    for split in ("train", "validation", "test"):
        lines = (folder / f"{split}.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
        told = table(rows, split)
        labels = [rows.meta["labels"][number] for number in told["label"]]
        assert [f"{text}\t{label}" for text, label in zip(told["tweet"], labels, strict=True)] == lines


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from(',"\n\r\t '), max_size=8)


@settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8), kind=st.sampled_from(["csv", "tsv"]))
def test_what_python_writes_comes_through_and_is_what_pandas_reads(rows, kind, tmp_path_factory):
    import pandas

    bench = new_bench(tmp_path_factory.mktemp("any"))
    path: Path = bench.root / f"a.{kind}"
    delimiter = {"csv": ",", "tsv": "\t"}[kind]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    found = table(bench.rows(source=str(path)), "train")
    assert list(zip(found["a"], found["b"], strict=True)) == rows
    read = pandas.read_csv(path, sep=delimiter, dtype=str, keep_default_na=False)
    assert [tuple(row) for row in read.itertuples(index=False)] == rows


def test_blank_lines_before_the_line_that_names_the_delimiter_are_no_rows(bench, tmp_path):
    (tmp_path / "a.csv").write_text("\n\nsep=;\ntext;label\na, b;x\n")
    assert table(bench.rows(source=str(tmp_path / "a.csv")), "train") == {"text": ["a, b"], "label": ["x"]}
