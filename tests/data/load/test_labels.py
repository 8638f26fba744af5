from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from tests.data.load.rows import failure, write
from tests.helpers.command_line import Shell
from tests.helpers.data_stages import table
from trnflow.tasks.data.load.labels import parse_rule
from trnflow.tasks.errors import ConfigError, DataError


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


@pytest.mark.parametrize(
    ("labels", "given", "ids"),
    [
        (["1.0", "2.0"], ["2.0", "1.0"], [1, 0]),
        (["1.0", "0.0"], ["neg", "pos"], [1, 0]),
        (["1.0", "2"], ["2", "1"], [1, 0]),
        (["01", "1"], ["1", "01"], [1, 0]),
    ],
)
def test_given_names_that_are_numbers_of_texts(bench, tmp_path, labels, given, ids):
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "label": labels})
    assert table(bench.rows(source=str(path), label="label", labels=given), "train")["label"] == ids


def test_class_names_that_datasets_left_in_the_file(bench, tmp_path):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos", "unseen"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features).to_parquet(tmp_path / "a.parquet")
    assert bench.rows(source=str(tmp_path / "a.parquet"), label="label").meta["labels"] == ["neg", "pos", "unseen"]


def test_rule_parsing():
    assert parse_rule("label") is None
    assert parse_rule("rating >= 4") == parse_rule("rating>=4.0")
    assert parse_rule("lang == 'en'").names == ["lang != en", "lang == en"]
    for pair in ((">=", "<"), (">", "<="), ("==", "!=")):
        for operator, other in (pair, pair[::-1]):
            assert parse_rule(f"rating {operator} 4").names == [f"rating {other} 4", f"rating {operator} 4"]
    with pytest.raises(ConfigError, match="no number"):
        parse_rule("rating > many")


def test_rule_on_text(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "lang": ["en", "de"]})
    rows = bench.rows(source=str(path), label="lang == en", labels=["foreign", "english"])
    assert (table(rows, "train")["label"], rows.meta["labels"]) == ([1, 0], ["foreign", "english"])


def test_label_outside_the_set_names_split_row_and_label(bench, tmp_path):
    write(tmp_path / "train.csv", {"text": ["x", "y"], "label": ["a", "b"]})
    write(tmp_path / "test.csv", {"text": ["x", "y", "z"], "label": ["a", "b", "c"]})
    told = failure(bench, DataError, source=str(tmp_path), label="label")
    assert "split test, test.csv row 3: the label 'c' is outside the label set (a, b)" in told
    path = write(tmp_path / "ids.parquet", {"text": ["x", "y"], "label": [0, -1]})
    assert "row 2: the label '-1'" in failure(bench, DataError, source=str(path), label="label", labels=["a", "b"])


def test_labels_are_counted_and_shown(bench, shared):
    rows = bench.rows(source=str(shared / "data/emotion"), label="label")
    for split, found in rows.meta["label_counts"].items():
        names = pq.read_table(shared / f"data/emotion/{split}.parquet")["label_name"].to_pylist()
        assert found == {name: names.count(name) for name in rows.meta["labels"]}
    told = [said["info"] for said in bench.said if "info" in said]
    assert told[0] == (
        "labels of train: sadness 4,666 (29.2%), joy 5,362 (33.5%), love 1,304 (8.2%), anger 2,159 (13.5%), "
        "fear 1,937 (12.1%), surprise 572 (3.6%)"
    )
    assert [line.split(":")[0] for line in told] == ["labels of train"]  # once: the splits of a file are alike


def test_counts_are_those_of_the_rows_that_are_written(bench, tmp_path):
    write(tmp_path / "a.csv", {"text": [f"a {n}" for n in range(40)], "label": ["x", "y"] * 20})
    write(tmp_path / "b.csv", {"text": [f"b {n}" for n in range(10)], "label": ["x"] * 9 + ["y"]})
    mix = {name: {"source": str(tmp_path / f"{name}.csv"), "weight": 1} for name in ("a", "b")}
    rows = bench.rows(mix=mix, label="label", stopping_strategy="all_exhausted", split={"test": 0.2})
    for split, found in rows.meta["label_counts"].items():
        ids = table(rows, split)["label"]
        assert found == {"x": ids.count(0), "y": ids.count(1)}
    assert sum(rows.meta["label_counts"]["train"].values()) == rows.meta["splits"]["train"]
    assert "label_counts" not in bench.rows(source=str(tmp_path / "a.csv"), text="text").meta


def test_many_labels_are_told_in_part(bench, tmp_path):
    labels = [f"{n:02}" for n in (*range(30), 7, 29, 7)]
    bench.rows(source=str(write(tmp_path / "a.csv", {"text": ["x"] * 33, "label": labels})), label="label")
    (told,) = [said["info"] for said in bench.said if "labels of" in said.get("info", "")]
    assert told == (
        "labels of train: 30; most rows: 07 3 (9.1%), 29 2 (6.1%), 00 1 (3.0%), 01 1 (3.0%), 02 1 (3.0%), 03 1 (3.0%); "
        "fewest: 00 1"
    )
    bench.said.clear()
    bench.rows(source=str(write(tmp_path / "b.csv", {"text": ["x"] * 30, "label": labels[:30]})), label="label")
    assert "labels of train: 30; each 1" in [said.get("info") for said in bench.said]


@pytest.mark.parametrize("nan", ["nan", "NaN", " nan "])
def test_nan_in_a_text_column_is_a_missing_label(bench, tmp_path, nan):
    path = write(tmp_path / "a.csv", {"text": ["x", "y", "z"], "label": ["a", nan, "b"]})
    told = failure(bench, DataError, source=str(path), label="label")
    assert "a.csv row 2: the label is missing (null, nan, or an empty cell)" in told
    rows = bench.rows(source=str(path), label="label", nulls="drop")
    assert (rows.meta["dropped"], rows.meta["labels"]) == ({"null": 1}, ["a", "b"])
    named = bench.rows(source=str(path), label="label", labels=["a", "b", nan])
    assert table(named, "train")["label"] == [0, 2, 1]


def test_nan_is_no_number_for_a_rule(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "stars": ["5", "nan"]})
    assert "a.csv row 2: the label is missing" in failure(bench, DataError, source=str(path), label="stars >= 4")


def test_a_rule_on_numbers_names_the_row_without_one(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "stars": ["5", "many"]})
    assert "a.csv row 2: stars is 'many', which is no number" in failure(
        bench, DataError, source=str(path), label="stars >= 4"
    )


def test_labels_that_blanks_alone_distinguish_are_told(bench, tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x", "y", "z"], "label": ["joy", "joy ", "anger"]})
    assert bench.rows(source=str(path), label="label").meta["labels"] == ["anger", "joy", "joy "]
    assert bench.warnings() == ["labels that differ by surrounding blanks alone count as 2: 'joy' and 'joy '"]
    path = write(tmp_path / "b.csv", {"text": ["x", "y", "z"], "label": ["spam", "Spam", "Spam "]})
    bench.said.clear()
    assert bench.rows(source=str(path), label="label").meta["labels"] == ["Spam", "Spam ", "spam"]
    told = "labels that differ by surrounding blanks and capitals alone count as 3: 'Spam' and 'Spam ' and 'spam'"
    assert bench.warnings() == [told]


def test_one_class_in_train_is_refused_before_tokenising(trnflow: Shell):
    write(trnflow.folder / "one/train.csv", {"text": ["x", "y"], "label": ["same", "same"]})
    write(trnflow.folder / "one/test.csv", {"text": ["z"], "label": ["other"]})
    command = ("run", "mine.yaml", "data.source=one", "data.labels=[same, other]", "--direct", "tracking.enabled=false")
    told = trnflow.error(*command, code=1)
    assert "labels of train: same 2 (100.0%), other 0 (0.0%)" in told
    assert "error in format_prompts" in told
    assert "classification needs two classes, and all rows of train are labelled same" in told


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (["Caf\u00e9", "Cafe\u0301"], "Unicode form"),
        (["New York", "New  York"], "blanks between words"),
        (["New York", "New\u00a0York"], "kinds of blanks"),
        (["Да", "да"], "capitals"),
        (["01", "1"], "zeros or + in front"),
        (["+1", "1"], "zeros or + in front"),
        (["new york", "New\tYork "], "surrounding blanks and blanks between words and capitals"),
    ],
)
def test_labels_that_look_alike_are_told_with_what_differs(bench, tmp_path, labels, what):
    path = write(tmp_path / "a.jsonl", {"text": ["x", "y", "z"], "label": [*labels, "Rome"]})
    assert bench.rows(source=str(path), label="label").meta["labels"] == sorted([*labels, "Rome"])
    assert bench.warnings()[0].startswith(f"labels that differ by {what} alone count as 2: ")
    shown = [f"U+{ord(letter):04X}" in bench.warnings()[0] for letter in "".join(labels) if ord(letter) > 127]
    assert not any(shown) if what == "capitals" else all(shown)


def test_a_label_of_another_split_that_looks_like_one_of_train_names_it(bench, tmp_path):
    write(tmp_path / "d/train.csv", {"text": ["x", "y"], "label": ["Spam", "Ham"]})
    write(tmp_path / "d/test.csv", {"text": ["z"], "label": ["spam "]})
    with pytest.raises(DataError, match="outside the label set") as caught:
        bench.rows(source=str(tmp_path / "d"), label="label")
    assert "'Spam' differs by capitals, blanks, Unicode form, zeros or + in front alone" in caught.value.fix


@pytest.mark.parametrize("dedupe", [False, True])
def test_texts_that_stand_with_several_labels_are_told(bench, tmp_path, dedupe):
    rows = {"text": ["x", "x", "x", "y", "y", "z"], "label": ["a", "b", "a", "b", "b", "a"]}
    bench.rows(source=str(write(tmp_path / "a.csv", rows)), label="label", dedupe=dedupe, split={})
    (told,) = [warning for warning in bench.warnings() if "several labels" in warning]
    assert told.startswith("texts of train that stand with several labels: 1; ")
    assert ("the first row of each is kept" in told) == dedupe
