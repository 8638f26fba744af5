"""Frozen rows keep the test split by names: of labels, and of each row, though rows repeat."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import DataError
from trnflow.tasks.promotion.freeze_rows import FreezeConfig, freeze_rows
from trnflow.tasks.stage import Workdir

META: Meta = {
    "splits": {"train": 9, "test": 4},
    "columns": ["text", "label"],
    "text": ["text"],
    "labels": ["red", "blue"],
}


def frozen(folder: Path, **meta: object) -> Meta:
    pq.write_table(pa.table({"text": ["a", "b", "a", "a"], "label": [1, 0, 1, 0]}), folder / "test.parquet")
    rows = Input(folder, "rows", {**META, **meta}, "sha256:rows")
    (folder / "out").mkdir()
    return freeze_rows(FreezeConfig(), rows, Workdir(folder / "out", folder / "scratch", lambda event: None))


def test_each_frozen_row_has_a_name_of_its_own_and_its_label_s_name(tmp_path: Path) -> None:
    meta = frozen(tmp_path)
    rows = pq.read_table(tmp_path / "out/test.parquet").to_pylist()
    assert [(row["text"], row["label"]) for row in rows] == [("a", "blue"), ("b", "red"), ("a", "blue"), ("a", "red")]
    names = [row["row_id"] for row in rows]
    assert len({*names}) == 4 and names[2] == f"{names[0]}-2" and [len(name) for name in names] == [16, 16, 18, 16]
    assert (meta["rows"], meta["labels"], meta["metrics"]) == (4, ["red", "blue"], {"frozen_rows": 4})


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"splits": {"train": 9}}, r"no rows in its test split.*\(it has: train\)"),
        ({"columns": ["row_id"]}, "a column row_id"),
    ],
)
def test_rows_that_can_t_be_frozen_are_refused(tmp_path: Path, meta: Meta, message: str) -> None:
    with pytest.raises(DataError, match=message):
        frozen(tmp_path, **meta)
