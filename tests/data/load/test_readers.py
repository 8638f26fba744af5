from __future__ import annotations

import io
import json
from unittest.mock import patch

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.load.rows import PACKS, REVIEWS, failure, write
from tests.helpers.data_stages import files, table
from trnflow.tasks.data.load.json_rows import _Decoder, _entries, open_json
from trnflow.tasks.data.load.parquet_rows import open_parquet
from trnflow.tasks.data.load.readers import made_plain, open_table
from trnflow.tasks.errors import ConfigError, DataError


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "arrow", "feather"])
def test_every_format_gives_the_bytes_of_parquet(bench, tmp_path, kind):
    expected = bench.rows(source=str(write(tmp_path / "a.parquet", REVIEWS)), label="stars")
    found = bench.rows(source=str(write(tmp_path / f"a.{kind}", REVIEWS)), label="stars")
    assert files(found.path) == files(expected.path)
    assert found.meta == expected.meta
    assert table(found, "train")["text"] == REVIEWS["text"]


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
    assert {name: [json.loads(text) for text in texts] for name, texts in table(rows, "train").items()} == {
        "messages": messages
    }


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
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


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", "text\n" + "fine\n" * 9000 + "bad \udcff\n", "a.csv line 9002 is not UTF-8"),
        ("a.csv", 'text,n\n"two\nlines",1\nbad \udcff,2\n', "a.csv line 4 is not UTF-8"),
        ("a.csv", "te\udcffxt\nfine\n", "a.csv line 1 is not UTF-8"),
        ("a.tsv", "text\tn\nfine\t1\nbad \udcff\t2\n", "a.tsv line 3 is not UTF-8"),
        ("a.txt", "fine\nbad \udcff\n", "a.txt line 2 is not UTF-8"),
        ("a.json", '[{"text": "fine"},\n{"text": "bad \udcff"}]', "a.json line 2 is not UTF-8"),
    ],
)
def test_bytes_that_are_not_utf8_name_file_and_line(bench, tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert told in failure(bench, DataError, source=str(tmp_path / name), text="text")


def test_half_a_character_in_json(bench, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "half \\ud83d"}\n')
    told = failure(bench, DataError, source=str(tmp_path / "a.jsonl"), text="text")
    assert r"a.jsonl row 2: text holds '\ud83d', half a character" in told


@pytest.mark.parametrize("kind", ["parquet", "feather", "jsonl.gz", "csv.gz", "csv.bz2", "json"])
@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_file_that_was_cut_off_is_named(bench, tmp_path, kind, share):
    plain = write(tmp_path / f"whole.{kind.split('.')[0]}", {"text": [f"{n} {n * n}" for n in range(5000)]})
    content = PACKS.get(kind.rpartition(".")[2], bytes)(plain.read_bytes())
    (tmp_path / f"cut.{kind}").write_bytes(content[: int(len(content) * share)])
    told = failure(bench, DataError, source=str(tmp_path / f"cut.{kind}"), text="text")
    assert told.startswith(f"cut.{kind} ")


def test_a_file_of_a_split_without_a_named_column(bench, tmp_path):
    write(tmp_path / "set/train-1.parquet", {"text": ["x"], "n": [1]})
    write(tmp_path / "set/train-2.parquet", {"text": ["y"], "m": [1]})
    told = failure(bench, ConfigError, source=str(tmp_path / "set"), columns={"text": "text", "n": "n"})
    assert "train-2.parquet has no column n, which other files of the data have" in told


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "feather"])
def test_two_columns_of_one_name(bench, tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    if kind in ("csv", "tsv"):
        path.write_text("text,text\nx,y\n".replace(",", {"csv": ",", "tsv": "\t"}[kind]))
    else:
        {"parquet": pq.write_table, "feather": pyarrow.feather.write_feather}[kind](twice, path)
    assert f"a.{kind} has two columns named text" in failure(bench, DataError, source=str(path), text="text")


entries = st.dictionaries(
    st.text(max_size=4), st.none() | st.integers() | st.text(max_size=9) | st.booleans(), max_size=3
)


@given(st.lists(entries, max_size=9), st.sampled_from([None, 1, "\t"]), st.integers(1, 40))
def test_an_array_is_read_piece_by_piece(rows, indent, size):
    """Whatever is cut where the file was read to: texts, escapes, numbers, words."""
    for ascii_alone in (True, False):
        text = json.dumps(rows, indent=indent, ensure_ascii=ascii_alone)
        with patch("trnflow.tasks.data.load.json_rows.BUFFER", size):
            read = [row for row, _ in _entries(io.StringIO(f" {text}\n"), "a.json", _Decoder())]
        assert read == rows


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[{"text": "x"}', "something but a comma or the array's end follows item 1"),
        ('[{"text": "x"} {}]', "something but a comma or the array's end follows item 1"),
        ('[{"text": "x"},]', "item 2 is not JSON: Expecting value"),
        ('[{"text": "x"}, {"text": "y]', "item 2 is not JSON: Unterminated string"),
        ('[{"text": "x"}, {"text" 1}' + ", {}" * 99 + "]", "item 2 is not JSON: Expecting ':' delimiter"),
        ('[{"text": "x"}] {}', "something follows the array"),
        ("[" * 100_000, "item 1 is nested too deeply"),
        ('[{"text": "x"}, {"a": 1, "a": 2}]', "item 2 is not JSON: the key 'a' stands twice"),
    ],
)
def test_what_is_wrong_in_an_array_is_placed(bench, tmp_path, text, told):
    (tmp_path / "a.json").write_text(text)
    assert told in failure(bench, DataError, source=str(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("number", "kind"), [(2**63 - 1, pa.int64()), (-(2**63), pa.int64()), (2**63, None), (-(2**63) - 1, None)]
)
def test_integers_of_json_are_64_bits_or_keep_their_text(tmp_path, number, kind):
    (tmp_path / "a.jsonl").write_text(f'{{"n": {number}}}\n')
    schema, batches = open_json(tmp_path / "a.jsonl", "a.jsonl")
    assert (schema.field("n").type == kind) == (kind is not None)
    (batch,) = batches(["n"])
    assert str(batch.column("n")[0].as_py()) == str(number)


def test_an_error_names_the_row_of_the_file_whichever_batch_has_it():
    rows = pa.table({"b": pa.array([b"fine"] * 5000 + [b"\xff"], pa.binary())})
    read = made_plain(open_table(rows, "a.parquet")).batches(["b"])
    with pytest.raises(DataError, match="a.parquet row 5001: b"):
        list(read)


def test_columns_are_long_by_all_row_groups(tmp_path):
    texts = {"note": ["long " * 1000] * 8 + ["short"] * 2, "word": ["word"] * 10}
    pq.write_table(pa.table(texts), tmp_path / "a.parquet", row_group_size=8, use_dictionary=False, compression=None)
    assert open_parquet(tmp_path / "a.parquet", "a.parquet")[2] == {"note"}
