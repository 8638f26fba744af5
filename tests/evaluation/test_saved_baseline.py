"""What is kept of a baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trnflow.tasks.evaluation.baselines.result import Baseline, save_baseline
from trnflow.tasks.stage import Workdir


@pytest.mark.parametrize("orders", [True, False])
def test_a_baseline_is_saved_with_what_its_numbers_mean(tmp_path: Path, orders: bool) -> None:
    values = np.arange(3.0)
    meta = save_baseline(Baseline("BM25", 7, {"values": values}, orders), Workdir(tmp_path, tmp_path, print))
    assert meta == {"method": "BM25", "rows": 7, "orders": orders}
    assert np.load(tmp_path / "values.npy", allow_pickle=False).tolist() == values.tolist()
