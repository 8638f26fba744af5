"""Rows of text files: every line as it is written, as `datasets` reads it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.data.load.rows import failure
from tests.helpers.data_stages import new_bench, table, whole
from trnflow.tasks.errors import DataError

CODE = 'def f(x):\n    if x > 0:\n\treturn "x"  \n\n   \n    return 0'


def lines_of(bench: Any, path: Path) -> list[str]:
    read: list[str] = table(bench.rows(source=str(path)), "train")["text"]
    return read


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_blanks_at_the_ends_of_lines_reach_training(bench: Any, tmp_path: Path, end: str, pack: Any) -> None:
    path = tmp_path / "code.txt"
    path.write_bytes(pack(b"\xef\xbb\xbf" + CODE.replace("\n", end).encode()))
    rows = bench.rows(source=str(path))
    expected = ["def f(x):", "    if x > 0:", '\treturn "x"  ', "    return 0"]
    assert table(rows, "train") == {"text": expected}
    assert whole(bench.texts(rows, task="text")) == expected
    assert {"info": "code.txt: 2 blank lines left out"} in bench.said


def test_many_files_with_blank_lines_are_told_in_part(bench: Any, tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"line {number}\n\n")
    bench.rows(source=str(tmp_path))
    said = [event["info"] for event in bench.said if "info" in event]
    assert said == [*(f"{number}.txt: 1 blank line left out" for number in range(5)), "4 more remarks of this kind"]


def test_latin_1_is_named_by_its_line(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("fine\ncafé\n".encode("latin-1"))
    told = failure(bench, DataError, source=str(tmp_path / "a.txt"))
    assert "a.txt line 2 is not UTF-8" in told and "convert the file to UTF-8" in told


LINE = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\0")
    | st.sampled_from("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff \t"),
    max_size=8,
)


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINE, min_size=1, max_size=8), end=st.sampled_from(["\n", "\r\n"]), closed=st.booleans())
@example(lines=["\ufeff\ufeffx\u2028y\x85z \x1c"], end="\r\n", closed=True)
def test_lines_are_those_of_datasets_but_blank_ones(
    lines: list[str], end: str, closed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from datasets.packaged_modules.text.text import Text

    bench = new_bench(tmp_path_factory.mktemp("any"))
    path: Path = bench.root / "a.txt"
    path.write_bytes((end.join(lines) + end * closed).encode("utf-8-sig"))
    builder = Text(cache_dir=str(bench.root / "cache"), data_files=str(path), encoding="utf-8-sig")
    tables = [found for _, found in builder._generate_tables([str(path)], [[str(path)]])]
    theirs = [line for found in tables for line in found["text"].to_pylist()]
    assert theirs == (lines if closed or lines[-1] else lines[:-1])
    expected = [line for line in theirs if line.strip()]
    if expected:
        assert lines_of(bench, path) == expected
    else:
        assert "is empty" in failure(bench, DataError, source=str(path))
