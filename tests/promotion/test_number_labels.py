"""Frozen rows, whose labels are names, become rows with the ids of the model that is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import DataError
from trnflow.tasks.promotion.number_labels import NumberLabelsConfig, number_labels


def frozen(folder: Path, labels: list[str] | None = None) -> Input:
    folder.mkdir()
    names = ["neg", "neg", "pos"]
    rows = {"text": [*"abc"], "label": names, "row_id": [f"{number:016x}" for number in range(3)]}
    pq.write_table(pa.table(rows), folder / "test.parquet")
    meta: dict[str, Any] = {"split": "test", "rows": 3, "columns": ["text", "label"], "text": ["text"], "nested": []}
    return Input(folder, "frozen", {**meta, "labels": labels}, "sha256:frozen")


@pytest.mark.parametrize(("labels", "ids"), [(("neg", "pos"), [0, 0, 1]), (("pos", "neg"), [1, 1, 0])])
def test_labels_get_the_ids_of_the_model_not_those_of_the_rows(
    labels: tuple[str, ...], ids: list[int], tmp_path: Path
) -> None:
    given = frozen(tmp_path / "frozen", ["neg", "pos"])
    rows = new_bench(tmp_path).made(number_labels, NumberLabelsConfig(labels=labels), frozen=given)
    assert table(rows, "test") == {"text": [*"abc"], "label": ids}
    assert rows.meta["labels"] == [*labels] and rows.meta["label_counts"] == {"test": {"neg": 2, "pos": 1}}


def test_labels_of_another_task_are_refused(tmp_path: Path) -> None:
    given, bench = frozen(tmp_path / "frozen", ["neg", "pos"]), new_bench(tmp_path)
    with pytest.raises(DataError, match="bad, neg are in one of them only"):
        bench.made(number_labels, NumberLabelsConfig(labels=("bad", "pos")), frozen=given)
    with pytest.raises(DataError, match="the frozen rows have no labels"):
        bench.made(number_labels, NumberLabelsConfig(labels=("a", "b")), frozen=frozen(tmp_path / "unlabelled"))
