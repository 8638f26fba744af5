"""Data in memory: equal rows are one folder, whatever object held them; what has no one type is refused with its place."""

from __future__ import annotations

import json
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.tasks.data.texts import text_of
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.sources.frames import ROWS, data_settings, plain_cell, rows_of

CELLS = st.fixed_dictionaries(
    {
        "text": st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
        "count": st.none() | st.integers(-(2**40), 2**40),
        "share": st.none() | st.floats(-1e15, 1e15),
        "ok": st.booleans(),
    }
)


def source(data: Any, home: Path) -> Path:
    return Path(data_settings(data, home)["source"])


@settings(max_examples=30)
@given(rows=st.lists(CELLS, min_size=1, max_size=6))
def test_a_frame_a_dataset_and_a_list_are_one_folder(rows: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    home = tmp_path_factory.mktemp("home")
    kinds = [
        rows,
        [dict(reversed(row.items())) for row in rows],
        [{name: value for name, value in row.items() if value is not None} for row in rows],
        pd.DataFrame(rows),
        pd.DataFrame(rows).convert_dtypes(),
        datasets.Dataset.from_list(rows),
    ]
    assert len({source(data, home) for data in kinds}) == 1


def test_what_equal_means(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    labelled = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    named = [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}]
    assert source(labelled, tmp_path) == source(named, tmp_path)
    narrow = pd.DataFrame({"n": np.array([1, 2], "int8"), "f": np.array([0.5, 1], "float32")}, index=[7, 3])
    assert source(narrow, tmp_path) == source([{"n": 1, "f": 0.5}, {"n": 2.0, "f": 1}], tmp_path)
    missing = pd.DataFrame({"text": ["a", None], "n": [1, float("nan")]})
    assert source(missing, tmp_path) == source([{"text": "a", "n": 1}, {}], tmp_path)
    assert source([{"text": "né".encode()}], tmp_path) == source([{"text": "né"}], tmp_path)
    chosen = datasets.Dataset.from_list(named).select([1])
    assert source(chosen, tmp_path) == source(named[1:], tmp_path)


def test_nested_rows_are_one_folder_too(tmp_path: Path) -> None:
    talks = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "name": "bot"}]},
        {"messages": [{"role": "user", "content": "bye"}]},
    ]
    kinds = [talks, pd.DataFrame(talks), datasets.Dataset.from_list(talks)]
    assert len({source(data, tmp_path) for data in kinds}) == 1
    assert len(source(talks, tmp_path).joinpath("train.jsonl").read_text().splitlines()) == 2


def test_rows_keep_their_order_and_values_over_many_groups(tmp_path: Path) -> None:
    count = 2 * ROWS + 3
    frame = pd.DataFrame({"text": [f"row {row}" for row in range(count)], "n": range(count)})
    folder = source({"train": frame, "test": frame[:5]}, tmp_path)
    assert pq.read_table(folder / "train.parquet").to_pandas().equals(frame[["n", "text"]])
    assert pq.ParquetFile(folder / "train.parquet").metadata.num_row_groups == 3
    assert pq.read_table(folder / "test.parquet").num_rows == 5


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (7, "train is of type int"),
        ([], "train has no rows"),
        (["a text"], "train is of type list"),
        ({"rows": [{"a": 1}]}, "a dict of rows"),
        (pd.DataFrame([[1, 2]]), "columns without names"),
        ([{"a": "x"}, {"a": 1}], "column a of train holds text in row 1 (.iloc[0]), integer in row 2 (.iloc[1])"),
        ([{"a": b"x"}, {"a": b"\xff"}], "column a of train holds bytes that are no UTF-8 in row 2 (.iloc[1])"),
        (
            {"train": [{"a": 1}], "test": [{"a": True}, {"a": 2}]},
            "column a of test holds boolean in row 1 (.iloc[0]), integer in row 2 (.iloc[1])",
        ),
    ],
)
def test_what_is_no_data_is_refused(data: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError), match=re.escape(says)):
        data_settings(data, tmp_path)
    assert not [entry for entry in (tmp_path / "cache").rglob("*") if entry.is_file()]


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\na\n")
    assert data_settings(tmp_path / "rows.csv", tmp_path)["source"] == str(tmp_path / "rows.csv")
    assert data_settings("s3://bucket/rows", tmp_path)["source"] == "s3://bucket/rows"
    assert data_settings("owner/name", tmp_path)["source"] == "owner/name"


MEMORY = """
import resource, sys
import numpy as np, pandas as pd
from pathlib import Path
from trnflow.tasks.sources.frames import data_settings
import pyarrow.parquet
frame = pd.DataFrame(np.random.default_rng(0).random((2_000_000, 8)), columns=list("abcdefgh"))  # 128 MB
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
data_settings(frame, Path(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / frame.memory_usage(index=False).sum())
"""


@pytest.mark.slow
def test_a_large_frame_is_never_copied_whole(tmp_path: Path) -> None:
    import subprocess

    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, env=os.environ)
    assert float(done.stdout) <= 0.3, done.stderr


@settings(max_examples=30)
@given(rows=st.lists(CELLS, min_size=1, max_size=6))
def test_rows_to_predict_are_alike_whatever_holds_them(rows: list[dict[str, Any]]) -> None:
    """A missing value is None, and never the text `nan`."""
    kinds = [
        rows,
        iter(rows),
        pd.DataFrame(rows, index=[7] * len(rows)),
        pd.DataFrame(rows).convert_dtypes(),
        pd.DataFrame(rows, dtype=object),
        pd.DataFrame(
            [{**row, "count": np.nan if row["count"] is None else row["count"]} for row in rows], dtype=object
        ),
        datasets.Dataset.from_list(rows),
    ]
    for data in kinds:
        assert rows_of(data) == rows


def test_what_is_no_row_to_predict_is_named() -> None:
    assert rows_of(pd.Series(["a", "b"])) == ["a", "b"]
    with pytest.raises(DataError, match="row 2 is nan"):
        rows_of(pd.Series(["a", None]))
    with pytest.raises(DataError, match="two columns named text"):
        rows_of(pd.DataFrame([["a", "b"]], columns=["text", "text"]))


STRANGE = [b"caf\xc3\xa9", np.int8(3), np.float32(0.1), np.bool_(True), pd.Timestamp("2024-05-06"), Decimal("0.10")]


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_a_cell_that_json_lacks_is_sent_as_training_reads_it(value: Any, tmp_path: Path) -> None:
    trained = pq.read_table(source([{"text": value}], tmp_path) / "train.parquet")["text"][0].as_py()
    (row,) = json.loads(json.dumps(rows_of([{"text": value}]), default=plain_cell))
    assert text_of(row["text"]) == text_of(trained)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(DataError, match="no UTF-8"):
        plain_cell(b"\xff")
