from __future__ import annotations

from tasks.errors import ConfigError, DataError
from tests.text.made import failure, write


def test_missing_column_suggests_the_nearest(bench, tmp_path):
    path = str(write(tmp_path / "a.csv", {"text": ["x"], "label": ["a"]}))
    assert "did you mean label?" in failure(bench, ConfigError, source=path, label="labels")
    assert "data.text: a.csv has no column txt. Fix: did you mean text?" in failure(
        bench, ConfigError, source=path, text="txt"
    )
    assert "data.columns" in failure(bench, ConfigError, source=path, columns={"response": "answer"})


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
