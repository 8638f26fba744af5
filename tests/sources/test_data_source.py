from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.load.rows import REVIEWS, failure, write
from tests.helpers.data_stages import table
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.load_data import DataConfig
from trnflow.tasks.sources.data_files import DataFile, format_of, local_files, split_of
from trnflow.tasks.sources.split_files import FileSettings, choose_files


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
    settings = FileSettings(wanted.get("format"), wanted.get("splits", {}))
    found = choose_files(source, [DataFile(name, name) for name in names], settings)
    by_split: dict[str, list[str]] = {}
    for item in found:
        by_split.setdefault(item.split, []).append(item.file.name)
    return by_split


def test_choice_of_files():
    assert chosen(["a.parquet", "LICENSE.txt", "info.json"]) == {"train": ["a.parquet"]}
    assert chosen(["a.json", "dataset_info.json", "state.json"]) == {"train": ["a.json"]}
    assert chosen(["test.csv", "train.csv", "README.md"]) == {"train": ["train.csv"], "test": ["test.csv"]}
    assert chosen(["my_test.csv"], source="data/my_test.csv") == {"train": ["my_test.csv"]}
    both = ["train.csv", "train.parquet"]
    assert chosen(both, format="csv") == {"train": ["train.csv"]}
    with pytest.raises(ConfigError, match="files of several formats: csv, parquet"):
        chosen(both)
    named = chosen(["a.csv", "b.csv", "test.csv"], splits={"train": "a", "validation": "b.csv", "test": "test"})
    assert named == {"train": ["a.csv"], "validation": ["b.csv"], "test": ["test.csv"]}
    with pytest.raises(ConfigError, match=r"data\.splits\.test: folder has no split or file other"):
        chosen(["train.csv"], splits={"train": "train", "test": "other"})
    with pytest.raises(ConfigError, match=r"has no train split .*Fix: give it a file whose name says train"):
        chosen(["test.csv", "val.csv"])


@pytest.mark.parametrize("pattern", ["", "*.csv"])
def test_files_come_in_natural_order_without_hidden_ones(pattern: str, tmp_path: Path) -> None:
    for name in ("part-10.csv", "part-2.csv", "part-1.csv", ".part-3.csv", ".git/part-4.csv", "more/part-0.csv"):
        write(tmp_path / name, {"text": [name]})
    found = [file.name for file in local_files(str(tmp_path / pattern))]
    assert found == ["more/part-0.csv"] * (not pattern) + ["part-1.csv", "part-2.csv", "part-10.csv"]
    assert [file.name for file in local_files(str(tmp_path / ".part-3.csv"))] == [".part-3.csv"], (
        "whoever names it means it"
    )


def test_splits_by_path_and_glob(bench, tmp_path):
    for name in ("one/a", "one/b", "two/c"):
        write(tmp_path / f"{name}.csv", {"text": [f"{name} x", f"{name} y"]})
    rows = bench.rows(
        source=str(tmp_path / "one/*.csv"), text="text", splits={"train": "a", "test": str(tmp_path / "two/c.csv")}
    )
    assert table(rows, "train")["text"] == ["one/a x", "one/a y"]
    assert table(rows, "test")["text"] == ["two/c x", "two/c y"]
    assert bench.rows(source=str(tmp_path / "*/*.csv"), text="text").meta["splits"] == {"train": 6}


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


def test_a_file_url_is_its_path(bench, tmp_path):
    write(tmp_path / "train.csv", REVIEWS)
    by_path, by_url = (bench.source(DataConfig(source=f"{prefix}{tmp_path}")) for prefix in ("", "file://"))
    assert by_path == by_url
    assert "there is no data at file://none" in failure(bench, ConfigError, source="file://none")


def test_missing_file_and_folder(bench, tmp_path):
    assert "there is no data at" in failure(bench, ConfigError, source=str(tmp_path / "none.csv"))
    (tmp_path / "empty").mkdir()
    assert "there is no data at" in failure(bench, ConfigError, source=str(tmp_path / "empty"))
    assert "there is no data at reviews.csv" in failure(bench, ConfigError, source="reviews.csv")


@pytest.mark.parametrize("source", ["a" * 5000, "/" + "a/" * 5000, "a" * 300 + ".csv"])
def test_a_path_that_is_too_long_is_one_short_line(bench, source):
    with pytest.raises(DataError, match="data.source: [/a]+: File name too long") as caught:
        bench.source(DataConfig(source=source))
    assert len(str(caught.value)) < 300


def test_files_that_are_of_no_split_are_named(bench, tmp_path):
    for name in ("train.csv", "more.csv", "notes.md"):
        (tmp_path / name).write_text("text\na\n")
    source = bench.source(DataConfig(source=str(tmp_path)))
    assert source.note == "not read: more.csv" and len(source.identity["files"]) == 1
