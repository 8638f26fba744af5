from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.errors import ConfigError, DataError, MissingDependency
from tasks.load_data import DataConfig
from tasks.text.labels import parse_rule
from tasks.text.selection import limited, made_splits, repeated, row_hashes, shared_rows
from tasks.text.sources import Candidate, Wanted, choose, format_of, split_of
from tests.data_stages import Bench, files, new_bench, table

REVIEWS = {"text": ["good", "bad, really", 'so "so"\nfine', "good again"], "stars": [5, 1, 3, 4]}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return new_bench(tmp_path)


def write(path: Path, columns: dict, kind: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table(columns)
    match kind or path.suffix[1:]:
        case "parquet":
            pq.write_table(data, path)
        case "csv":
            pyarrow.csv.write_csv(data, path)
        case "tsv":
            pyarrow.csv.write_csv(data, path, pyarrow.csv.WriteOptions(delimiter="\t"))
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist()))
        case "json":
            path.write_text(json.dumps(data.to_pylist()))
        case "arrow":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, data.schema) as writer:
                writer.write_table(data)
        case "feather":
            pyarrow.feather.write_feather(data, path)
    return path


# --- real data


def test_emotion_has_its_names_and_its_leaks_are_counted(bench, shared):
    rows = bench.rows(source=str(shared / "data/emotion"), label="label")
    assert rows.meta["splits"] == {"train": 16000, "validation": 2000, "test": 2000}
    assert rows.meta["labels"] == ["sadness", "joy", "love", "anger", "fear", "surprise"]
    assert rows.meta["columns"] == ["text", "label"]
    assert rows.meta["leakage"] == {"train/validation": 5, "train/test": 11, "validation/test": 3}
    assert "5 of train also in validation" in bench.warnings()[0]
    original = pq.read_table(shared / "data/emotion/test.parquet")
    assert table(rows, "test") == {"text": original["text"].to_pylist(), "label": original["label"].to_pylist()}


def test_dedupe_drops_from_train_alone(bench, shared):
    rows = bench.rows(source=str(shared / "data/emotion"), label="label", dedupe=True)
    assert rows.meta["dropped"] == {"duplicate": 31, "leaked": 16}
    assert rows.meta["splits"] == {"train": 16000 - 31 - 16, "validation": 2000, "test": 2000}
    train = table(rows, "train")["text"]
    assert len(set(train)) == len(train)
    assert not set(train) & {*table(rows, "validation")["text"], *table(rows, "test")["text"]}


def test_limit_of_label_sorted_imdb_is_a_balanced_sample_in_order(bench, shared):
    rows = bench.rows(source=str(shared / "data/imdb"), label="label", limit={"train": 400, "test": 300})
    train = table(rows, "train")
    assert rows.meta["splits"] == {"train": 400, "test": 300}
    assert rows.meta["dropped"] == {"limit": 50000 - 700}
    assert 150 < sum(train["label"]) < 250
    assert train["label"] == sorted(train["label"])
    small = table(bench.rows(source=str(shared / "data/imdb"), label="label", limit=100), "train")
    assert set(small["text"]) <= set(train["text"])


def test_book_reviews_from_csv_by_rule(bench, shared, tmp_path):
    books = pq.read_table(shared / "data/amazon_books/reviews.parquet")
    pyarrow.csv.write_csv(books, tmp_path / "books.csv")
    rows = bench.rows(
        source=str(tmp_path / "books.csv"),
        text=["title", "review_text"],
        label="rating >= 4",
        split={"validation": 0.1, "test": 0.1},
    )
    assert rows.meta["labels"] == ["rating < 4", "rating >= 4"]
    assert rows.meta["text"] == ["title", "review_text"]
    sizes = rows.meta["splits"]
    assert sum(sizes.values()) == 2000 and 150 < sizes["validation"] < 250 and 150 < sizes["test"] < 250
    read = [row for split in rows.meta["splits"] for row in zip(*table(rows, split).values(), strict=True)]
    theirs = zip(*(books[name].to_pylist() for name in ("title", "review_text", "label")), strict=True)
    assert sorted(read) == sorted(theirs)


def test_dolly_keeps_all_columns_when_none_is_named(bench, shared):
    rows = bench.rows(source=str(shared / "data/dolly15k"), dedupe=True)
    assert rows.meta["columns"] == ["instruction", "context", "response", "category"]
    assert rows.meta["splits"] == {"train": 15011 - 8}
    assert rows.meta["dropped"] == {"duplicate": 8}
    made = bench.rows(source=str(shared / "data/dolly15k"), split={"validation": 0.02, "test": 0.02})
    assert made.meta["leakage"] == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    assert sum(made.meta["splits"].values()) == 15011


# --- formats


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


# --- splits


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.parquet", "train"),
        ("train-00000-of-00002.parquet", "train"),
        ("dev.csv", "validation"),
        ("val.jsonl.gz", "validation"),
        ("eval.csv", "validation"),
        ("imdb_test.csv", "test"),
        ("dolly.validation.jsonl", "validation"),
        ("test/part-1.parquet", "test"),
        ("training.csv", "train"),
        ("trainers.csv", None),
        ("contest.csv", None),
        ("reviews.csv", None),
    ],
)
def test_split_by_name(name, split):
    assert split_of(name) == split


def test_format_by_name():
    assert [format_of(name) for name in ("a.CSV", "a.jsonl.gz", "a.b.parquet", "README.md", "a")] == [
        "csv",
        "jsonl",
        "parquet",
        None,
        None,
    ]


def chosen(names: list[str], source: str = "folder", **wanted) -> dict[str, list[str]]:
    found = choose(
        source, [Candidate(name, name) for name in names], Wanted(wanted.get("format"), wanted.get("splits", {}))
    )
    by_split: dict[str, list[str]] = {}
    for item in found:
        by_split.setdefault(item.split, []).append(item.file.name)
    return by_split


def test_choice_of_files():
    assert chosen(["a.parquet", "LICENSE.txt", "info.json"]) == {"train": ["a.parquet"]}
    assert chosen(["test.csv", "train.csv", "README.md"]) == {"train": ["train.csv"], "test": ["test.csv"]}
    assert chosen(["my_test.csv"], source="data/my_test.csv") == {"train": ["my_test.csv"]}
    both = ["train.csv", "train.parquet"]
    assert chosen(both, format="csv") == {"train": ["train.csv"]}
    with pytest.raises(ConfigError, match="several formats: csv, parquet"):
        chosen(both)
    named = chosen(["a.csv", "b.csv", "test.csv"], splits={"train": "a", "validation": "b.csv", "test": "test"})
    assert named == {"train": ["a.csv"], "validation": ["b.csv"], "test": ["test.csv"]}
    with pytest.raises(ConfigError, match=r"data\.splits\.test: folder has no split or file other"):
        chosen(["train.csv"], splits={"train": "train", "test": "other"})
    with pytest.raises(ConfigError, match="has no train split"):
        chosen(["test.csv", "val.csv"])


def test_splits_by_path_and_glob(bench, tmp_path):
    for name in ("one/a", "one/b", "two/c"):
        write(tmp_path / f"{name}.csv", {"text": [f"{name} x", f"{name} y"]})
    rows = bench.rows(
        source=str(tmp_path / "one/*.csv"), text="text", splits={"train": "a", "test": str(tmp_path / "two/c.csv")}
    )
    assert table(rows, "train")["text"] == ["one/a x", "one/a y"]
    assert table(rows, "test")["text"] == ["two/c x", "two/c y"]
    assert bench.rows(source=str(tmp_path / "*/*.csv"), text="text").meta["splits"] == {"train": 6}


# --- identity


def test_identity_is_content_not_place(bench, tmp_path):
    for folder in ("here", "there"):
        write(tmp_path / folder / "train.csv", REVIEWS)
        write(tmp_path / folder / "test.csv", {"text": ["x"], "stars": [1]})
    (tmp_path / "there/train.csv").rename(tmp_path / "there/training.csv")
    here, there = (bench.source(DataConfig(source=str(tmp_path / folder))) for folder in ("here", "there"))
    assert here.identity == there.identity
    assert [sorted(file) for file in here.identity["files"]] == [["digest", "format", "split"]] * 2
    assert [file["split"] for file in here.identity["files"]] == ["train", "test"]
    write(tmp_path / "there/test.csv", {"text": ["y"], "stars": [1]})
    changed = bench.source(DataConfig(source=str(tmp_path / "there")))
    assert changed.identity["files"][0] == here.identity["files"][0]
    assert changed.identity["files"][1] != here.identity["files"][1]


def test_a_file_that_changes_meanwhile_is_refused(bench, tmp_path):
    from tasks.load_data import load_data

    path = write(tmp_path / "a.csv", REVIEWS)
    config = DataConfig(source=str(path), text="text")
    source = bench.source(config)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"a\.csv changed while"):
        load_data(config, source, bench.workdir())


def test_stage_is_deterministic_and_leaves_torch_alone(bench, shared):
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from tests.data_stages import new_bench\n"
        "rows = new_bench(Path(sys.argv[1])).rows(source=sys.argv[2], label='label', dedupe=True, limit=500)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    outputs = []
    for seed in ("1", "2"):
        root = bench.root / seed
        root.mkdir()
        command = [sys.executable, "-c", code, str(root), str(shared / "data/emotion")]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=Path(__file__).parents[1])
        outputs.append(files(root / "out-1"))
    assert outputs[0] == outputs[1]


# --- URLs and the hub


def test_memory_url_is_keyed_by_content(bench):
    import fsspec

    filesystem = fsspec.filesystem("memory")
    for name in ("train", "test"):
        filesystem.pipe(f"/set-a/{name}.jsonl", b'{"text": "' + name.encode() + b'"}\n')
    source = bench.source(DataConfig(source="memory://set-a"))
    assert [file["split"] for file in source.identity["files"]] == ["train", "test"]
    assert table(bench.rows(source="memory://set-a", text="text"), "test") == {"text": ["test"]}
    assert bench.source(DataConfig(source="memory://set-a"), offline=True).note == "last resolution"
    filesystem.pipe("/set-a/test.jsonl", b'{"text": "new"}\n')
    assert bench.source(DataConfig(source="memory://set-a")).identity != source.identity
    for nothing in ("memory://set-b", "memory://set-b/x.csv", "memory://set-b/*.csv"):
        with pytest.raises(DataError, match="there is nothing at memory://set-b"):
            bench.source(DataConfig(source=nothing))
    with pytest.raises(ConfigError, match="never resolved"):
        bench.source(DataConfig(source="memory://set-b/x.csv"), offline=True)


class Server(ThreadingHTTPServer):
    body = b"text,label\ngood,1\nbad,0\n"
    tag = '"one"'
    downloads = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        known = self.path.startswith("/set.csv")
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(self.server.body) if known else 0))
        self.send_header("ETag", self.server.tag)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if self.path.startswith("/set.csv"):
            self.server.downloads += 1
            self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def test_http_url_is_downloaded_again_only_when_its_etag_changes(bench, server):
    config = DataConfig(source=f"http://127.0.0.1:{server.server_port}/set.csv?download=true", label="label")
    first = bench.source(config)
    after_first = server.downloads
    assert bench.source(config) == first
    assert server.downloads == after_first
    server.body, server.tag = b"text,label\ngood,1\nworse,0\n", '"two"'
    assert bench.source(config).identity != first.identity
    assert table(bench.rows(source=config.source, label="label"), "train")["text"] == ["good", "worse"]
    Path(first.location["files"][0]["path"]).unlink()
    missing = DataConfig(source=f"http://127.0.0.1:{server.server_port}/none.csv")
    with pytest.raises(DataError, match=r"none\.csv"):
        bench.source(missing)


def test_hub_name_offline_and_unreachable(bench, monkeypatch):
    with pytest.raises(ConfigError, match="hub/datasets/someone/emotion@main was never resolved"):
        bench.source(DataConfig(source="someone/emotion"), offline=True)
    known = {"hub/datasets/someone/emotion@v2": {"commit": "abc"}}
    (bench.root / "home").mkdir(exist_ok=True)
    (bench.root / "home/resolved.json").write_text(json.dumps(known))
    config = DataConfig(source="someone/emotion", name="split", revision="v2", splits={"train": "unsplit"})
    source = bench.source(config, offline=True)
    assert source.identity == {
        "hub": "someone/emotion",
        "name": "split",
        "commit": "abc",
        "splits": {"train": "unsplit"},
    }
    assert source.note == "last resolution"


def test_unknown_file_system_names_the_package(bench):
    with pytest.raises(MissingDependency, match="gs://"):
        bench.source(DataConfig(source="gs://bucket/train.csv"))


# --- labels


@pytest.mark.parametrize(
    ("labels", "given", "names", "ids"),
    [
        ([1, 0, 1], None, ["0", "1"], [1, 0, 1]),
        ([5, 1, 3], None, ["1", "3", "5"], [2, 0, 1]),
        ([1, 0, 1], ["neg", "pos"], ["neg", "pos"], [1, 0, 1]),
        ([5, 1, 3], ["1", "2", "3", "4", "5"], ["1", "2", "3", "4", "5"], [4, 0, 2]),
        (["b", "a", "b"], None, ["a", "b"], [1, 0, 1]),
        (["b", "a", "b"], ["b", "a"], ["b", "a"], [0, 1, 0]),
        ([True, False, True], None, ["false", "true"], [1, 0, 1]),
        ([1.0, 0.0, 1.0], None, ["0", "1"], [1, 0, 1]),
        ([10, 9, 2], None, ["2", "9", "10"], [2, 1, 0]),
    ],
)
def test_labels_of_every_type(bench, tmp_path, labels, given, names, ids):
    path = write(tmp_path / "a.parquet", {"text": ["x", "y", "z"], "label": labels})
    rows = bench.rows(source=str(path), label="label", labels=given)
    assert rows.meta["labels"] == names
    assert table(rows, "train")["label"] == ids


def test_class_names_that_datasets_left_in_the_file(bench, tmp_path):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos", "unseen"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features).to_parquet(tmp_path / "a.parquet")
    assert bench.rows(source=str(tmp_path / "a.parquet"), label="label").meta["labels"] == ["neg", "pos", "unseen"]


def test_rule_parsing():
    assert parse_rule("label") is None
    assert parse_rule("rating >= 4") == parse_rule("rating>=4.0")
    assert parse_rule("lang == 'en'").names == ["lang != en", "lang == en"]
    with pytest.raises(ConfigError, match="no number"):
        parse_rule("rating > many")


def test_rule_on_text(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "lang": ["en", "de"]})
    rows = bench.rows(source=str(path), label="lang == en", labels=["foreign", "english"])
    assert (table(rows, "train")["label"], rows.meta["labels"]) == ([1, 0], ["foreign", "english"])


# --- bad input: one clear line each


def failure(bench: Bench, kind: type[Exception], **data) -> str:
    with pytest.raises(kind) as caught:
        bench.rows(**data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_file_and_folder(bench, tmp_path):
    assert "there is no data at" in failure(bench, ConfigError, source=str(tmp_path / "none.csv"))
    (tmp_path / "empty").mkdir()
    assert "there is no data at" in failure(bench, ConfigError, source=str(tmp_path / "empty"))
    assert "there is no data at reviews.csv" in failure(bench, ConfigError, source="reviews.csv")


def test_missing_column_suggests_the_nearest(bench, tmp_path):
    path = str(write(tmp_path / "a.csv", {"text": ["x"], "label": ["a"]}))
    assert "did you mean label?" in failure(bench, ConfigError, source=path, label="labels")
    assert "data.text: a.csv has no column txt. Fix: did you mean text?" in failure(
        bench, ConfigError, source=path, text="txt"
    )
    assert "data.columns" in failure(bench, ConfigError, source=path, columns={"response": "answer"})


def test_label_outside_the_set_names_split_row_and_label(bench, tmp_path):
    write(tmp_path / "train.csv", {"text": ["x", "y"], "label": ["a", "b"]})
    write(tmp_path / "test.csv", {"text": ["x", "y", "z"], "label": ["a", "b", "c"]})
    told = failure(bench, DataError, source=str(tmp_path), label="label")
    assert "split test, test.csv row 3: the label 'c' is outside the label set (a, b)" in told
    path = write(tmp_path / "ids.parquet", {"text": ["x", "y"], "label": [0, -1]})
    assert "row 2: the label '-1'" in failure(bench, DataError, source=str(path), label="label", labels=["a", "b"])


def test_null_text_and_label_name_the_row(bench, tmp_path):
    path = write(tmp_path / "a.jsonl", {"text": ["x", None], "label": [0, 1]})
    assert "a.jsonl row 2: the text column text is missing" in failure(
        bench, DataError, source=str(path), label="label"
    )
    path = write(tmp_path / "b.parquet", {"text": ["x", "y"], "label": [None, 1]})
    assert "b.parquet row 1: the label is missing" in failure(bench, DataError, source=str(path), label="label")
    path = write(tmp_path / "c.csv", {"text": ["x", "y"], "stars": ["4", "many"]})
    told = failure(bench, DataError, source=str(path), label="stars >= 4")
    assert "c.csv row 2: stars is 'many', which is no number" in told
    path = write(tmp_path / "d.parquet", {"text": ["x"], "label": [0.5]})
    assert "row 1: the label 0.5 is a fraction" in failure(bench, DataError, source=str(path), label="label")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", b"text,label\nx,1\ny\n", "a.csv can't be read: CSV parse error: Row #3"),
        ("a.csv", b"text,text\nx,y\n", "two columns named text"),
        ("a.csv", b"text,label\n\xff\xfe,1\n", "a.csv can't be read"),
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


def test_config_refuses_what_does_not_fit():
    for wrong in (
        {"split": {"validation": 0.5, "test": 0.5}},
        {"labels": ["a", "b"]},
        {"label": "l", "labels": ["a", "a"]},
    ):
        with pytest.raises(ValidationError):
            DataConfig(source="x", **wrong)
    with pytest.raises(ValidationError):
        DataConfig(source="x", splits={"tests": "y"})


# --- selection, as properties

texts = st.lists(st.text(alphabet="abc", max_size=3), min_size=1, max_size=60)


def hashes(values: list[str]) -> np.ndarray:
    return row_hashes([pa.array(values, pa.string())])


@settings(derandomize=True, max_examples=60)
@given(texts, st.integers(0, 5), st.floats(0.05, 0.45), st.floats(0.05, 0.45))
def test_made_splits_are_disjoint_complete_and_never_divide_equal_texts(values, seed, first, second):
    masks = made_splits(hashes(values), {"validation": first, "test": second}, seed)
    assert (sum(mask.astype(int) for mask in masks.values()) == 1).all()
    sides = [{value for value, inside in zip(values, mask, strict=True) if inside} for mask in masks.values()]
    assert sum(len(side) for side in sides) == len(set(values))


@settings(derandomize=True, max_examples=60)
@given(st.integers(20, 400), st.integers(0, 5), st.floats(0.05, 0.45))
def test_made_splits_have_their_size_but_for_chance(count, seed, fraction):
    masks = made_splits(hashes([str(n) for n in range(count)]), {"test": fraction}, seed)
    assert abs(masks["test"].sum() - fraction * count) <= 5 * (count * fraction * (1 - fraction)) ** 0.5
    assert masks["test"].any()


@settings(derandomize=True, max_examples=60)
@given(st.lists(st.text(), min_size=12, unique=True), st.lists(st.text(), max_size=40), st.integers(0, 5))
def test_what_was_held_out_stays_held_out_when_rows_are_added(old, new, seed):
    """But for a split so small that chance left it empty."""
    before, after = (made_splits(hashes(rows), {"validation": 0.3, "test": 0.3}, seed) for rows in (old, new + old))
    by_chance = all(mask.sum() > 1 for mask in before.values())
    for name, mask in before.items():
        assert not by_chance or after[name][len(new) :].tolist() == mask.tolist()


def test_a_split_that_chance_left_empty_takes_a_text_of_train():
    masks = made_splits(hashes(["a", "b", "b", "c"]), {"validation": 1e-9, "test": 1e-9}, 0)
    assert {name: bool(mask.any()) for name, mask in masks.items()} == {"train": True, "validation": True, "test": True}
    assert (sum(mask.astype(int) for mask in masks.values()) == 1).all()
    assert masks["train"][1] == masks["train"][2]


@settings(derandomize=True, max_examples=60)
@given(texts)
def test_repeated_leaves_each_text_once(values):
    kept = [value for value, twice in zip(values, repeated(hashes(values)), strict=True) if not twice]
    assert kept == list(dict.fromkeys(values))


@settings(derandomize=True, max_examples=60)
@given(texts, texts)
def test_shared_rows(first, second):
    mask = shared_rows({"a": hashes(first), "b": hashes(second)})[("a", "b")]
    assert mask.tolist() == [value in set(second) for value in first]


@settings(derandomize=True, max_examples=60)
@given(st.integers(1, 200), st.integers(1, 100), st.integers(1, 100), st.integers(0, 3))
def test_smaller_limits_are_subsets(rows, one, other, seed):
    keep = np.ones(rows, dtype=bool)
    small, large = (limited(keep, limit, seed, "train") for limit in sorted((one, other)))
    assert small.sum() == min(rows, one, other)
    assert not (small & ~large).any()
