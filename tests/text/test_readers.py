from __future__ import annotations

import gzip

import pyarrow.parquet as pq
import pytest

from tasks.errors import ConfigError, DataError
from tests.data_stages import files, table
from tests.text.made import REVIEWS, failure, write


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "arrow", "feather"])
def test_every_format_gives_the_bytes_of_parquet(bench, tmp_path, kind):
    expected = bench.rows(source=str(write(tmp_path / "a.parquet", REVIEWS)), label="stars")
    found = bench.rows(source=str(write(tmp_path / f"a.{kind}", REVIEWS)), label="stars")
    assert files(found.path) == files(expected.path)
    assert found.meta == expected.meta
    assert table(found, "train")["text"] == REVIEWS["text"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_gzip_is_read_by_its_bytes(bench, tmp_path, kind):
    plain = write(tmp_path / f"a.{kind}", REVIEWS)
    (tmp_path / f"b.{kind}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    packed = bench.rows(source=str(tmp_path / f"b.{kind}.gz"), label="stars")
    assert files(packed.path) == files(bench.rows(source=str(plain), label="stars").path)


def test_text_lines(bench, tmp_path):
    (tmp_path / "poem.txt").write_text("a line\n\n  another  \n", encoding="utf-8")
    assert table(bench.rows(source=str(tmp_path / "poem.txt")), "train") == {"text": ["a line", "another"]}


def test_many_row_groups_and_shards_keep_their_order(bench, tmp_path):
    for shard in range(11):
        write(tmp_path / f"train-{shard}.jsonl", {"text": [f"{shard}:{row}" for row in range(2000)]})
    rows = bench.rows(source=str(tmp_path), text="text")
    assert table(rows, "train")["text"] == [f"{shard}:{row}" for shard in range(11) for row in range(2000)]
    assert pq.ParquetFile(rows.path / "train.parquet").num_row_groups == 3


def test_messages_and_renamed_columns_travel(bench, tmp_path):
    messages = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]]
    path = write(tmp_path / "chat.jsonl", {"talk": messages, "id": [1, 2]})
    rows = bench.rows(source=str(path), columns={"messages": "talk"})
    assert table(rows, "train") == {"messages": messages}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", b"text,label\nx,1\ny\n", "a.csv can't be read: CSV parse error: Row #3"),
        ("a.csv", b"text,text\nx,y\n", "two columns named text"),
        ("a.csv", b"text,label\nx,0\n\xff\xfe,1\n", "a.csv line 3 is not UTF-8"),
        ("a.csv", b"text,label\n", "the split train is empty"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "a.jsonl line 2 is not an object"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', "a.jsonl line 2 is not UTF-8"),
        ("a.json", b'[{"text": "x"}, 3]', "a.json item 2 is not an object"),
        ("a.parquet", b"PAR1 and nothing", "a.parquet can't be read"),
        ("a.csv.gz", b"\x1f\x8b\x08\x00broken", "a.csv.gz can't be read"),
        ("a.csv", b"", "a.csv"),
    ],
)
def test_unreadable_files(bench, tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, ConfigError)) as caught:
        bench.rows(source=str(tmp_path / name), text="text")
    assert told in str(caught.value)


def test_a_json_row_of_another_type(bench, tmp_path):
    lines = ['{"text": "x", "label": 1}'] * 5000 + ['{"text": "x", "label": "one"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert 'a.jsonl row 5001: label is "one"' in failure(
        bench, DataError, source=str(tmp_path / "a.jsonl"), label="label"
    )
