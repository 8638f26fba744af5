"""The names that each file declares for its class numbers decide what a label is, whatever the numbers of other files mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.load.rows import failure
from tests.data.load.rows import write as write_plain
from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.data.load.class_names import declared_classes
from trnflow.tasks.errors import ConfigError, DataError

ROWS = 24


def dataset(names: list[str], labels: list[int], **more: Any) -> Dataset:
    """Rows whose text tells the name of their label."""
    known = {-1: "none", **dict(enumerate(names))}
    columns = {"text": [f"{known[label]} {n}" for n, label in enumerate(labels)], "label": labels, **more}
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict(columns, features=features)


def write(folder: Path, kind: str, **splits: Dataset) -> str:
    """Write each split as a file, or all as `save_to_disk` does."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "saved":
        DatasetDict(splits).save_to_disk(folder)
    for name, split in splits.items():
        if kind == "parquet":
            split.to_parquet(folder / f"{name}.parquet")
        elif kind == "arrow":
            split.save_to_disk(folder / f"{name}-saved")
            (file,) = (folder / f"{name}-saved").glob("*.arrow")
            file.rename(folder / f"{name}.arrow")
            for rest in (folder / f"{name}-saved").iterdir():
                rest.unlink()
            (folder / f"{name}-saved").rmdir()
    return str(folder)


def named(rows: Any, split: str) -> list[tuple[str, str]]:
    """(the name that the text tells, the label's name) of each row."""
    found = table(rows, split)
    return [
        (text.split()[0], rows.meta["labels"][label]) for text, label in zip(found["text"], found["label"], strict=True)
    ]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "saved"])
def test_files_that_number_the_classes_otherwise_are_read_by_name(bench: Any, tmp_path: Path, kind: str) -> None:
    labels = [0, 1, 1, 0] * 6
    folder = write(tmp_path / "rows", kind, train=dataset(["neg", "pos"], labels), test=dataset(["pos", "neg"], labels))
    rows = bench.rows(source=folder, label="label")
    assert rows.meta["labels"] == ["neg", "pos"]
    for split in ("train", "test"):
        assert len(named(rows, split)) == ROWS
        assert all(told == label for told, label in named(rows, split))
    (said,) = [event["info"] for event in bench.said if "by name" in event.get("info", "")]
    assert "numbers its classes pos, neg, " in said and " neg, pos: labels are taken by name" in said


NAMES = st.lists(
    st.text("abcxyz0123456789 ", min_size=1, max_size=4).filter(lambda name: not name.isspace()),
    min_size=2, max_size=5, unique_by=str.strip,
).map(lambda names: [f"c{name.strip()}" if name.strip() == "nan" else name.strip() for name in names])  # fmt: skip


@settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=NAMES, data=st.data())
def test_any_names_in_any_order(
    names: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files of one split and of several, names that are numbers, some of the names only."""
    bench = new_bench(tmp_path_factory.mktemp("any"))
    folder = bench.root / "rows"
    orders = [names]
    for _ in range(2):
        some = data.draw(st.permutations(names))
        orders.append(some[: data.draw(st.integers(1, len(some)))])
    splits = {
        split: dataset(order, data.draw(st.lists(st.integers(0, len(order) - 1), min_size=1, max_size=6)))
        for split, order in zip(("train-1", "train-2", "test"), orders, strict=True)
    }
    rows = bench.rows(source=write(folder, "parquet", **splits), label="label")
    assert rows.meta["labels"] == names
    for split in ("train", "test"):
        found = table(rows, split)
        theirs = [
            f"{part.features['label'].int2str(label)} {n}"
            for name, part in splits.items()
            if name.startswith(split)
            for n, label in enumerate(part["label"])
        ]
        assert found["text"] == theirs
        assert [rows.meta["labels"][label] for label in found["label"]] == [text.rpartition(" ")[0] for text in theirs]


def test_other_names_are_refused_with_both_lists_unless_all_are_given(bench: Any, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "rows",
        "parquet",
        train=dataset(["neg", "pos"], [0, 1]),
        test=dataset(["neg", "neutral", "pos"], [0, 2]),
    )
    told = failure(bench, DataError, source=folder, label="label")
    assert "test.parquet declares the classes neg, neutral, pos of label, train.parquet neg, pos" in told
    assert "name all of them in data.labels" in told
    rows = bench.rows(source=folder, label="label", labels=["pos", "neutral", "neg"])
    assert rows.meta["labels"] == ["pos", "neutral", "neg"]
    assert [label for _, label in named(rows, "test")] == ["neg", "pos"]


def test_given_names_rename_the_classes_or_order_them(bench: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", "parquet", train=dataset(["neg", "pos"], [0, 1, 1]))
    turned = bench.rows(source=folder, label="label", labels=["pos", "neg"])
    assert named(turned, "train") == [("neg", "neg"), ("pos", "pos"), ("pos", "pos")]
    renamed = bench.rows(source=folder, label="label", labels=["bad", "good"])
    assert [label for _, label in named(renamed, "train")] == ["bad", "good", "good"]
    told = failure(bench, ConfigError, source=folder, label="label", labels=["pos", "other"])
    assert "data.labels is pos, other, and the data declares neg, pos" in told


def test_names_that_are_numbers_are_names(bench: Any, tmp_path: Path) -> None:
    """As of stars from 1 to 5, whose numbers are 0 to 4."""
    stars = ["1", "2", "3", "4", "5"]
    rows = bench.rows(source=write(tmp_path / "rows", "parquet", train=dataset(stars, [1, 2, 3, 4, 1])), label="label")
    assert rows.meta["labels"] == stars
    assert all(told == label for told, label in named(rows, "train"))


def test_rows_without_a_label_are_refused_or_dropped_and_counted(bench: Any, tmp_path: Path) -> None:
    """-1 is no class: so the test splits of GLUE have no labels."""
    names = ["neg", "pos"]
    folder = write(tmp_path / "rows", "parquet", train=dataset(names, [0, 1, -1, 1]), test=dataset(names, [1, -1, 0]))
    told = failure(bench, DataError, source=folder, label="label")
    assert "split train, train.parquet row 3: the label is missing (null, -1, or an empty cell)" in told
    rows = bench.rows(source=folder, label="label", nulls="drop")
    assert rows.meta["dropped"] == {"null": 2}
    assert [label for _, label in named(rows, "train")] == ["neg", "pos", "pos"]
    glue = write(tmp_path / "glue", "parquet", train=dataset(names, [0, 1]), test=dataset(names, [-1, -1]))
    told = failure(bench, DataError, source=glue, label="label", nulls="drop")
    assert "the split test is empty: test.parquet holds no rows but those dropped (2 null)" in told
    beyond = declaring(tmp_path / "beyond.parquet", names, {"text": ["a"], "label": [7]})
    told = failure(bench, DataError, source=beyond, label="label")
    assert "beyond.parquet row 1: the label holds 7, and its classes are numbered 0 to 1" in told


def declaring(path: Path, names: list[str], columns: dict[str, list[Any]]) -> str:
    """Write columns to a file that declares names, whatever the column `label` holds."""
    metadata = dataset(names, [0]).features.arrow_schema.metadata
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return str(path)


@pytest.mark.parametrize("labels", [["1", "0"], [1.0, 0.0], ["pos", "neg"]])
def test_numbers_that_are_texts_or_floats_have_the_names_too(bench: Any, tmp_path: Path, labels: list[Any]) -> None:
    """As in csv and JSON files of the hub, whose names the repository declares."""
    path = declaring(tmp_path / "a.parquet", ["neg", "pos"], {"text": ["pos a", "neg b"], "label": labels})
    rows = bench.rows(source=path, label="label")
    assert named(rows, "train") == [("pos", "pos"), ("neg", "neg")]


def test_a_file_without_names_may_have_names_or_numbers(bench: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", "parquet", train=dataset(["neg", "pos"], [0, 1]))
    write_plain(tmp_path / "rows/validation.jsonl", {"text": ["pos a", "neg b"], "label": ["pos", "neg"]})
    write_plain(tmp_path / "rows/test.csv", {"text": ["pos a", "neg b"], "label": [1, 0]})
    rows = bench.rows(source=folder, label="label")
    for split in ("validation", "test"):
        assert named(rows, split) == [("pos", "pos"), ("neg", "neg")]


def test_a_rule_reads_names_or_numbers(bench: Any, tmp_path: Path) -> None:
    folder = write(
        tmp_path / "rows", "parquet", train=dataset(["neg", "pos"], [0, 1]), test=dataset(["pos", "neg"], [0, 1])
    )
    rows = bench.rows(source=folder, label="label == pos", text="text")
    assert [table(rows, split)["label"] for split in ("train", "test")] == [[0, 1], [1, 0]]
    told = failure(bench, DataError, source=folder, label="label >= 1", text="text")
    assert "test.parquet declares the classes pos, neg of label, train.parquet neg, pos" in told
    told = failure(bench, DataError, source=folder)
    assert "write the files with the same names in one order" in told


def test_new_shows_names_and_leaves_a_split_without_labels_out(tmp_path: Path) -> None:
    names, labels = ["neg", "pos"], [0, 1] * 20
    write(tmp_path / "rows", "saved", train=dataset(names, labels), test=dataset(names, [-1] * 40))
    done = InProcessShell(tmp_path).json("new", "rows", "model.source=base", "data.label=label")
    assert done["settings"]["data"]["splits"] == {"train": "train"}
    assert "its labels are unknown" in (tmp_path / "rows.yaml").read_text()


@pytest.mark.parametrize("names", ["[" * 50_000, "5", '{"a": 1}'])
def test_names_that_are_no_list_are_none(names):
    declared = '{"info": {"features": {"label": {"_type": "ClassLabel", "names": ' + names + "}}}}"
    assert declared_classes(pa.schema({"label": pa.int64()}, {"huggingface": declared}), "label") is None
