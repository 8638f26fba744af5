"""What a baseline predicts, and what is kept and measured of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import small_models
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import segments_file
from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.evaluation.baselines import examples
from trnflow.tasks.evaluation.baselines.alike import passages, scored_pairs
from trnflow.tasks.evaluation.baselines.examples import Examples
from trnflow.tasks.evaluation.baselines.measured import measure_baselines
from trnflow.tasks.evaluation.baselines.result import Baseline, LeftOut, save_baseline
from trnflow.tasks.evaluation.columns import ClassPredictions, save_columns
from trnflow.tasks.stage import Workdir


@pytest.mark.parametrize("orders", [True, False])
def test_a_baseline_is_saved_with_what_its_numbers_mean(tmp_path: Path, orders: bool) -> None:
    values = np.arange(3.0)
    meta = save_baseline(Baseline("BM25", 7, {"values": values}, orders), Workdir(tmp_path, tmp_path, print))
    assert meta == {"method": "BM25", "rows": 7, "orders": orders}
    assert np.load(tmp_path / "values.npy", allow_pickle=False).tolist() == values.tolist()


def test_a_passage_that_is_asked_for_twice_is_one_document_of_bm25() -> None:
    """ln(1 + (2 - 1 + 0.5) / (1 + 0.5)) is the rarity of fox, 1 / (1 + 1.5 (0.25 + 0.75 2/3)) what one of 2 words counts."""
    passages_asked = ["red fox", "red fox", "red red cat dog"]
    rows: Any = SimpleNamespace(evaluated=[{"text": "fox", PAIR: passage} for passage in passages_asked])
    score = np.log(2) / 2.125
    found = passages(rows)
    np.testing.assert_allclose(found.arrays["values"].ravel(), [score, score, 0], rtol=1e-6)
    assert found.orders, "a score of BM25 is no relevance"


def test_numbers_of_two_texts_lie_on_the_line_through_those_of_train() -> None:
    """Equal texts, of cosine 1, have 5 and 1; texts without a common word, of cosine 0, have 2 and 4."""
    pairs = [("red fox", "red fox", [5.0, 1.0]), ("red fox", "blue cat", [2.0, 4.0]), ("dog", "dog", [5.0, 1.0])]
    train = [{"text": first, PAIR: second, "label": label} for first, second, label in pairs]
    rows: Any = SimpleNamespace(train=train, evaluated=train[1::-1])
    found = scored_pairs(rows)
    np.testing.assert_allclose(found.arrays["values"], [[2, 4], [5, 1]], atol=1e-6)
    assert not found.orders and found.rows == 3


def test_large_rows_have_no_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"text": ["x" * 2000], "label": [0]}), tmp_path / "train.parquet")
    texts: Input = Input(tmp_path, "texts", {}, "")
    packed: Input = Input(tmp_path, "packed", {"rows": {"train": {"16": 1}}}, "")
    assert Examples(texts, packed, "test")
    monkeypatch.setattr(examples, "BYTES", 1000)
    with pytest.raises(LeftOut, match="the rows have 0 MB, more than 0"):
        Examples(texts, packed, "test")


def test_a_baseline_s_answers_and_figures_are_of_their_own_rows(tmp_path: Path) -> None:
    """Rows 2, 0, 3 and 1 are evaluated in this order."""
    for name in ("predicted", "baseline"):
        (tmp_path / name).mkdir()
    expected, said = np.array([0, 1, 2, 0]), np.array([0, 1, 1, 2])
    save_columns(ClassPredictions(expected, expected, np.eye(3)[expected], np.zeros(4)), tmp_path / "predicted")
    meta = save_baseline(Baseline("simple", 9, {"predicted": said}), Workdir(tmp_path / "baseline", tmp_path, print))
    packed = small_models.packed_rows(tmp_path / "packed", "classification", {"test": {16: [[([5, 6], 0)]] * 4}})
    np.save(segments_file(packed.path, "test", 16), [[row, 2] for row in (2, 0, 3, 1)])
    predicted = Input(tmp_path / "predicted", "predictions", {"split": "test", "labels": small_models.LABELS}, "")
    kept = {"baseline": Input(tmp_path / "baseline", "baseline", meta, "")}
    (entry,) = measure_baselines(kept, predicted, packed, "classification", tmp_path)
    assert entry["metrics"]["accuracy"] == 0.5 and "ece" not in entry["metrics"]
    rows = pq.read_table(tmp_path / "baseline.parquet").to_pylist()
    names = [small_models.LABELS[number] for number in (1, 2, 0, 1)]
    assert rows == [{"row": number, "predicted": name} for number, name in enumerate(names, 1)]
