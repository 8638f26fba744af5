"""What a model with targets in columns says of each row, and which rows the report shows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.helpers import small_models
from tests.training.toys import packed_targets
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import segments_file
from trnflow.tasks.evaluation.evaluated_rows import EvaluatedRows
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.evaluation.report_outputs import report_outputs
from trnflow.tasks.evaluation.row_outputs import plain_inputs, row_outputs
from trnflow.tasks.kinds.regression import Regression
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.training.batches.sampler import Split


def test_labels_are_decided_by_the_model_s_threshold(tmp_path: Path) -> None:
    packed = packed_targets(tmp_path / "packed", "multi_label", ["a", "b", "c"], rows=8)
    model, split = load_model(small_models.bert(tmp_path / "bert").path, "multi_label"), Split(packed, "validation")
    found = row_outputs(model, split, "multi_label", 4, {"threshold": 0.75}, lambda rows: None)
    assert ((found.values > 0.5) & (found.values < 0.75)).any()
    assert found.decided.tolist() == (found.values >= 0.75).tolist()
    np.testing.assert_allclose(found.loss, torch.nn.functional.binary_cross_entropy(
        torch.from_numpy(found.values).double(), torch.from_numpy(found.expected).double(), reduction="none"
    ).mean(1), rtol=1e-4)  # fmt: skip


def test_the_second_of_two_texts_has_types_of_its_own() -> None:
    batch: Any = SimpleNamespace(input_ids=np.array([[5, 6, 7, 0]]), segment_ids=np.array([[1, 1, 2, 0]]))
    model = SimpleNamespace(reads_types=True, device="cpu")
    given = {name: column.tolist() for name, column in plain_inputs(batch, model).items()}
    assert given == {"input_ids": [[5, 6, 7, 0]], "attention_mask": [[1, 1, 1, 0]], "token_type_ids": [[0, 0, 1, 0]]}


def test_the_rows_that_are_missed_by_most_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Regression, "draw", lambda *given: None)  # matplotlib takes a second
    packed = small_models.packed_rows(tmp_path / "packed", "classification", {"test": {16: [[([5, 6], 0)]] * 3}})
    np.save(segments_file(packed.path, "test", 16), [[row, 2] for row in (2, 0, 1)])
    packed.meta.update(task="regression", labels=["score"])
    pq.write_table(
        pa.table({"text": ["zero", "one", "two"], "label": [[0.0], [1.0], [2.0]]}), tmp_path / "test.parquet"
    )
    expected, values = np.array([[2.0], [0.0], [1.0]], np.float32), np.array([[2.5], [3.0], [1.0]], np.float32)
    found = Outputs(expected, values, values, ((expected - values) ** 2)[:, 0].astype(float))
    given = EvaluatedRows(Input(tmp_path, "texts", {}, ""), "test", None)
    report = report_outputs(found, packed, "test", given, tmp_path)
    shown = [(row["row"], row["text"], row["label"], row["predicted"]) for row in report["worst"]]
    assert shown == [
        (1, "zero", "score 0", "score 3"), (3, "two", "score 2", "score 2.5"), (2, "one", "score 1", "score 1"),
    ]  # fmt: skip
    assert pq.read_table(tmp_path / "predictions.parquet")["predicted"].to_pylist() == [[3.0], [1.0], [2.5]]
