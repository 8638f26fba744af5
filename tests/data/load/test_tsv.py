"""Quotes in tsv files: most programs that write tsv know none, so a line is a row unless its quotes surely make a cell."""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.load.rows import failure
from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.errors import DataError

HEADER = "label\ttext\n"


def told(bench: Any) -> list[str]:
    return [said["info"] for said in bench.said if ".tsv" in said.get("info", "")]


def test_messages_that_quotes_would_swallow_are_rows_as_in_the_sms_collection(bench: Any, tmp_path: Path) -> None:
    """Three messages are one row for pandas, as in the public SMSSpamCollection."""
    import pandas

    lines = [f"ham\tmessage {n}" for n in range(1000)]
    lines[500:503] = ['ham\t"I am late', "spam\tWIN a prize", 'ham\tsee you"']
    path = tmp_path / "sms.tsv"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    rows = table(bench.rows(source=str(path), text="text", columns={"kind": "label"}), "train")
    assert [f"{kind}\t{text}" for kind, text in zip(rows["kind"], rows["text"], strict=True)] == lines
    assert len(pandas.read_csv(path, sep="\t")) == 998
    (remark,) = told(bench)
    assert remark.startswith("sms.tsv: 3 lines, from line 502 on, are read as a row each, their quotes as text")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_quote_that_nothing_closes_is_text(bench: Any, tmp_path: Path, end: str) -> None:
    lines = ["ham\ta", 'spam\t"b', "ham\tc", "", "ham\td"]
    (tmp_path / "a.tsv").write_text(HEADER + (end or "\n").join(lines) + end, newline="")
    rows = bench.rows(source=str(tmp_path / "a.tsv"), text="text")
    assert table(rows, "train")["text"] == ["a", '"b', "c", "d"]
    assert "3 lines, from line 3 on" in told(bench)[0]


def test_a_quote_that_nothing_closes_takes_no_more_than_a_cell(bench: Any, tmp_path: Path) -> None:
    lines = ['ham\t"first', *(f"ham\t{n} {'x' * 1000}" for n in range(3000))]
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress((HEADER + "\n".join(lines)).encode()))
    rows = bench.rows(source=str(tmp_path / "a.tsv.gz"), text="text", max_cell_mb=1)
    assert table(rows, "train")["text"] == [line.partition("\t")[2] for line in lines]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ('label\ttext\nham\t"two\nlines"\nham\tb\n', [("ham", "two\nlines"), ("ham", "b")]),
        ('label\ttext\n"two\nlines"\tb\nham\tc\n', [("two\nlines", "b"), ("ham", "c")]),
        ('label\ttext\nham\t"para\n\ngraphs"\n', [("ham", "para\n\ngraphs")]),
        ('label\ttext\nham\t"say ""hi""\tto them"\n', [("ham", 'say "hi"\tto them')]),
        # whoever quotes the header quotes cells
        ('"label"\t"text"\n"ham"\t"two\tlines\nof\tcells"\n', [("ham", "two\tlines\nof\tcells")]),
    ],
)
def test_a_cell_of_several_lines_stays_one(bench: Any, tmp_path: Path, content: str, rows: list[Any]) -> None:
    (tmp_path / "a.tsv").write_text(content)
    found = table(bench.rows(source=str(tmp_path / "a.tsv")), "train")
    assert list(zip(found["label"], found["text"], strict=True)) == rows
    assert told(bench) == []


def test_one_column_has_no_tabs_to_go_by(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('text\n"two\nlines"\nb\n')
    assert table(bench.rows(source=str(tmp_path / "a.tsv")), "train") == {"text": ["two\nlines", "b"]}


def test_a_cell_with_line_breaks_and_tabs_is_told(bench: Any, tmp_path: Path) -> None:
    """As in a copy of the SMSSpamCollection to which columns were added after quotes had joined three messages."""
    content = 'label\ttext\tsize\nham\ta\t1\nham\t"b\r\nham\tc\r\nham\td"\t9\n'
    (tmp_path / "a.tsv").write_text(content, newline="")
    rows = table(bench.rows(source=str(tmp_path / "a.tsv"), text="text"), "train")
    assert rows["text"] == ["a", "b\r\nham\tc\r\nham\td"]
    remark = "a quoted cell with line breaks and tabs is read as one; if its lines are rows, remove the quotes"
    assert told(bench) == [f"a.tsv line 3: {remark}"]


def test_a_csv_has_cells_of_several_lines(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('label,text\nham,"b\nham,c"\n')
    assert table(bench.rows(source=str(tmp_path / "a.csv"), text="text"), "train")["text"] == ["b\nham,c"]


def test_a_line_with_a_cell_too_many_is_named_behind_lines_that_are_rows(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(f'{HEADER}ham\t"a\nham\tb"\nham\tc\td\n')
    assert "a.tsv line 4 has 3 cells, the header 2" in failure(
        bench, DataError, source=str(tmp_path / "a.tsv"), text="text"
    )


CELL = st.text(st.sampled_from('ab "\\,;|\u2028'), max_size=5)
ANY = settings(
    derandomize=True, max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY
@given(rows=st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=7))
def test_lines_of_cells_without_quoting(rows: list[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """The rows are those of Python's csv and of pandas without quoting, where no line holds a cell in quotes or an error;
    never fewer."""
    import pandas

    bench = new_bench(tmp_path_factory.mktemp("any"))
    path: Path = bench.root / "a.tsv"
    content = "a\tb\tc\n" + "".join("\t".join(row) + "\n" for row in rows)
    path.write_text(content, encoding="utf-8")
    lines = content.split("\n")[1:-1]
    plain = [*csv.reader(io.StringIO(content), delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
    try:
        found = table(bench.rows(source=str(path)), "train")
    except DataError as error:
        assert re.search(r"a\.tsv line \d+ (is not csv: |has \d cells?, the header 3)", str(error)) and '"' in content
        return
    read = [*map(list, zip(found["a"], found["b"], found["c"], strict=True))]
    assert len(read) == len(lines) == len(plain)
    for ours, row in zip(read, plain, strict=True):
        # a cell that is quoted within its line loses its quotes
        assert all(mine in (cell, cell[1:-1].replace('""', '"')) for mine, cell in zip(ours, row, strict=True))
    assert '"' in content or read == plain
    theirs = pandas.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE, dtype=str, keep_default_na=False)
    assert len(theirs) == len(read) or not all(line.strip() for line in lines)


@ANY
@given(rows=st.lists(st.tuples(CELL, st.text(st.sampled_from('ab "\n'), max_size=5)), min_size=1, max_size=7))
def test_cells_of_several_lines_that_pandas_writes(
    rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They come back as pandas reads them."""
    import pandas

    bench = new_bench(tmp_path_factory.mktemp("any"))
    path: Path = bench.root / "a.tsv"
    pandas.DataFrame(rows, columns=["a", "b"]).to_csv(path, sep="\t", index=False)
    theirs = pandas.read_csv(path, sep="\t", dtype=str, keep_default_na=False, skip_blank_lines=False)
    found = table(bench.rows(source=str(path)), "train")
    assert [*zip(found["a"], found["b"], strict=True)] == [*theirs.itertuples(index=False, name=None)] == rows
