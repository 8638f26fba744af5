"""What is kept of a baseline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.evaluation.baselines.alike import passages
from trnflow.tasks.evaluation.baselines.result import Baseline, save_baseline
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
    np.testing.assert_allclose(passages(rows).arrays["values"].ravel(), [score, score, 0], rtol=1e-6)
