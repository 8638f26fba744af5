"""What precompile lists for engine native, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_models import workdir
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import read_json
from trnflow.tasks.train import TrainConfig


@pytest.mark.process  # importing what traces takes longer than the test
def test_engine_native_lists_its_passes_of_each_length(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    out = workdir(tmp_path / "out", told)
    precompile(
        TrainConfig(engine="native", global_batch=8), scratch(**BERT), packed_classes(tmp_path / "packed"), out=out
    )
    listed = [(graph["name"], graph["length"]) for graph in read_json(out.path / "graphs.json")["graphs"]]
    assert listed == [("eval", 8), ("eval", 16), ("train", 8), ("train", 16)]
    assert told[-1]["progress"] == {"done": 2, "total": 2, "unit": "lengths"}
