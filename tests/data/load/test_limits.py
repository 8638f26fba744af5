"""Input that would fill the memory, or hold what no text holds."""

from __future__ import annotations

import json

import pytest

from tests.data.load.rows import PACKS, failure, write
from tests.helpers.data_stages import table
from trnflow.tasks.data.load.row_sizes import BATCH, BATCH_BYTES
from trnflow.tasks.data.load.streams import MOST_CELLS, grouped, open_stream
from trnflow.tasks.errors import DataError, MachineError

BOMB = b"text\n" + (b"0" * 999 + b"\n") * 4_000
"""4 MB."""


@pytest.mark.parametrize("suffix", PACKS)
def test_a_file_that_grows_more_than_a_zip_may(bench, tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("trnflow.tasks.sources.data_files.ALWAYS_UNPACKED", 2 << 20)
    path = tmp_path / f"a.csv.{suffix}"
    path.write_bytes(PACKS[suffix](BOMB))
    assert f"a.csv.{suffix} grows from " in failure(bench, DataError, source=str(path), text="text")


@pytest.mark.parametrize("suffix", PACKS)
def test_all_that_was_unpacked_of_a_file_counts(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("trnflow.tasks.sources.data_files.ALWAYS_UNPACKED", 2 << 20)
    (tmp_path / "a").write_bytes(PACKS[suffix](BOMB))
    with open_stream(tmp_path / "a", "a") as stream, pytest.raises(DataError, match="a grows from "):
        while stream.read(1 << 16):
            pass


def test_a_file_of_xz_takes_no_more_memory_than_it_may(bench, tmp_path, monkeypatch):
    (tmp_path / "a.csv.xz").write_bytes(PACKS["xz"](b"text\nfine\n"))
    source = {"source": str(tmp_path / "a.csv.xz"), "text": "text"}
    assert table(bench.rows(**source), "train")["text"] == ["fine"]
    monkeypatch.setattr("trnflow.tasks.data.load.streams.WINDOW", 1 << 20)
    assert "a.csv.xz can't be read: Memory usage limit" in failure(bench, DataError, **source)


LONG = "long " * 300_000


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("csv", "a.csv line 3"),
        ("tsv", "a.tsv line 3"),
        ("jsonl", "a.jsonl line 2"),
        ("json", "a.json item 2"),
        ("parquet", "a.parquet row 2: text"),
        ("arrow", "a.arrow row 2: text"),
    ],
)
def test_a_long_cell_is_named_in_every_format(bench, tmp_path, kind, place):
    path = write(tmp_path / f"a.{kind}", {"text": ["short", LONG]})
    error = failure(bench, DataError, source=str(path), text="text", max_cell_mb=1)
    assert f"{place} is longer than 1 MB" in error
    assert table(bench.rows(source=str(path), text="text"), "train")["text"] == ["short", LONG]


def test_a_long_cell_of_many_lines_and_a_long_line_of_text(bench, tmp_path):
    (tmp_path / "a.csv").write_text('text\nfine\n"' + "line\n" * 300_000 + '"\n')
    error = failure(bench, DataError, source=str(tmp_path / "a.csv"), text="text", max_cell_mb=1)
    assert "a cell of a.csv line 3 is longer than 1 MB" in error
    (tmp_path / "a.txt").write_text(f"fine\n{LONG}\n")
    error = failure(bench, DataError, source=str(tmp_path / "a.txt"), max_cell_mb=1)
    assert "a.txt line 2 is longer than 1 MB" in error


def test_the_longest_row_is_named(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["a", "b" * 120_000, "c"]})
    bench.rows(source=str(path), text="text")
    assert {"info": "longest row: split train, a.csv row 2, 0.12 MB"} in bench.said


def test_rows_are_not_copied_to_a_disk_that_is_full(bench, tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", {"text": ["a", "b"]})
    monkeypatch.setattr("trnflow.tasks.system.disk.KEPT_FREE", 1 << 60)
    with pytest.raises(MachineError, match="is almost full"):
        bench.rows(source=str(path), text="text")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_nul_byte_makes_a_row_bad(bench, tmp_path, kind):
    path = write(tmp_path / f"a.{kind}", {"text": ["good", "a \0 b", r"\u0000", "also"], "n": ["1", "2", "3", "\0"]})
    error = failure(bench, DataError, source=str(path), text="text", columns={"n": "n"})
    assert f"a.{kind} row 2: text holds a NUL byte" in error
    rows = bench.rows(source=str(path), text="text", columns={"n": "n"}, nulls="drop")
    assert table(rows, "train")["text"] == ["good", r"\u0000"]
    assert rows.meta["dropped"] == {"nul": 2}


def test_a_nul_in_a_chat_is_not_the_text_of_its_escape(bench, tmp_path):
    chats = [[{"role": "user", "content": text}] for text in ("\0", r"\u0000", r"\\u0000", "\\\0")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    rows = bench.rows(source=str(tmp_path / "a.jsonl"), columns={"messages": "messages"}, nulls="drop")
    assert [json.loads(text) for text in table(rows, "train")["messages"]] == chats[1:3]


def test_a_sentence_that_never_ends_is_named(bench, tmp_path):
    (tmp_path / "a.conll").write_text("word O\n" * 200_000)
    error = failure(bench, DataError, source=str(tmp_path / "a.conll"), max_cell_mb=1)
    assert "the sentence of a.conll line 166667 is longer than 1 MB" in error


def test_rows_of_many_cells_or_characters_come_in_small_batches():
    rows = [(number, 1) for number in range(10)]
    assert [len(some) for some in grouped(rows, MOST_CELLS // 4)] == [4, 4, 2]
    assert [len(some) for some in grouped(rows, 4 * MOST_CELLS)] == [1] * 10
    assert [len(some) for some in grouped([(0, BATCH_BYTES // 3)] * 7, 1)] == [3, 3, 1]
    assert [len(some) for some in grouped([(0, 1)] * (BATCH + 1), 1)] == [BATCH, 1]
