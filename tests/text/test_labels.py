from __future__ import annotations

import pytest

from tasks.errors import ConfigError, DataError
from tasks.text.labels import parse_rule
from tests.data_stages import table
from tests.text.made import failure, write


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


def test_label_outside_the_set_names_split_row_and_label(bench, tmp_path):
    write(tmp_path / "train.csv", {"text": ["x", "y"], "label": ["a", "b"]})
    write(tmp_path / "test.csv", {"text": ["x", "y", "z"], "label": ["a", "b", "c"]})
    told = failure(bench, DataError, source=str(tmp_path), label="label")
    assert "split test, test.csv row 3: the label 'c' is outside the label set (a, b)" in told
    path = write(tmp_path / "ids.parquet", {"text": ["x", "y"], "label": [0, -1]})
    assert "row 2: the label '-1'" in failure(bench, DataError, source=str(path), label="label", labels=["a", "b"])
