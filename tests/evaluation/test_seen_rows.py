"""The user's own metrics, and the report, show each prediction beside the columns of its own row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import small_models
from trnflow.tasks.artifact import ASIDE, Input
from trnflow.tasks.data.chunks import segments_file
from trnflow.tasks.evaluate_model import _seen
from trnflow.tasks.evaluation.columns import ClassPredictions, save_columns
from trnflow.tasks.evaluation.evaluated_rows import EvaluatedRows
from trnflow.tasks.evaluation.own_metrics import Predictions, read_seen
from trnflow.tasks.kinds.preference import Rewards
from trnflow.tasks.kinds.targets import Outputs

LOADED = [0, 2, 3, 5]
"""The rows of load_data of which format_prompts made a text."""
ORDER = [2, 0, 3, 1]
"""The texts in the order in which they are evaluated."""


def seen(folder: Path, task: str, columns: Any, labels: tuple[str, ...] = ()) -> Predictions:
    for name in ("texts", "rows", "predicted"):
        (folder / name).mkdir()
    np.save(folder / "texts/test.source_row.npy", np.array(LOADED, np.int32))
    pq.write_table(pa.table({"number": range(6)}), folder / "rows/test.parquet")
    save_columns(columns, folder / "predicted")
    packed = small_models.packed_rows(folder / "packed", "classification", {"test": {16: [[([5, 6], 0)]] * 4}})
    np.save(segments_file(packed.path, "test", 16), np.stack([ORDER, [2] * 4], axis=1))
    packed.meta["task"] = task
    predicted = Input(
        folder / "predicted", "predictions", {"task": task, "split": "test", "labels": labels}, "sha256:p"
    )
    texts, rows = (Input(folder / name, name, {"splits": {"test": 4}}, f"sha256:{name}") for name in ("texts", "rows"))
    return read_seen(_seen(texts, packed, predicted, rows, folder / "seen"))


VALUES = np.array([[0.5, 0.25], [1.0, 0.0], [0.75, 0.125], [0.0, 0.5]], np.float32)
LOSS = np.array([0.25, 0.5, 0.75, 1.0])
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "classification": (
        ClassPredictions(np.arange(4) % 2, np.array([0, 0, 1, 1]), VALUES, LOSS),
        {"expected": np.arange(4) % 2, "predicted": np.array([0, 0, 1, 1]), "probabilities": VALUES},
    ),
    "multi_label": (
        Outputs(VALUES * 0, VALUES, (VALUES > 0.3).astype(np.float32), LOSS),
        {"expected": VALUES * 0, "predicted": VALUES > 0.3, "probabilities": VALUES},
    ),
    "preference": (Rewards(VALUES[:, 0], VALUES[:, 1], VALUES[:, 0], LOSS), {"probabilities": VALUES}),
}


@pytest.mark.parametrize("task", CASES)
def test_each_prediction_stands_beside_its_own_row(task: str, tmp_path: Path) -> None:
    columns, wanted = CASES[task]
    found = seen(tmp_path, task, columns)
    assert found.row.tolist() == [number + 1 for number in LOADED]
    assert found.columns["number"].tolist() == LOADED
    first = np.argsort(ORDER)
    for name, values in {**wanted, "loss": LOSS}.items():
        assert getattr(found, name).tolist() == values[first].tolist()


def test_a_wrong_row_is_shown_with_its_place_and_its_other_columns(tmp_path: Path) -> None:
    for name in ("texts", f"rows/{ASIDE}"):
        (tmp_path / name).mkdir(parents=True)
    np.save(tmp_path / "texts/test.source_row.npy", np.array(LOADED, np.int32))
    pq.write_table(
        pa.table({"text": [f"text {number}" for number in LOADED], "label": LOADED}), tmp_path / "texts/test.parquet"
    )
    pq.write_table(pa.table({"number": range(6), "label": range(6)}), tmp_path / "rows/test.parquet")
    aside = {"file": ["a.csv"] * 6, "row": range(1, 7), "column note": [f"note {number}" for number in range(6)]}
    pq.write_table(pa.table(aside), tmp_path / f"rows/{ASIDE}test.parquet")
    texts = Input(tmp_path / "texts", "texts", {"splits": {"test": 4}, "unread": ["number"]}, "")
    given = EvaluatedRows(texts, "test", Input(tmp_path / "rows", "rows", {"columns": ["number", "label"]}, ""))
    assert given.wrong(2, "a", "b", 0.5) == {
        "row": 3, "label": "a", "predicted": "b", "loss": 0.5, "text": "text 3", "file": "a.csv", "file_row": 4,
        "columns": {"number": "3", "note": "note 3"},
    }  # fmt: skip
