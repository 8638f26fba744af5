"""Layers compiled by themselves give the losses of the model that is not compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import run_in_turn, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.train import TrainConfig

COMMON: dict[str, Any] = {"engine": "native", "global_batch": 8, "max_steps": 5, "log_every": 1, "learning_rate": 1e-2}
COMPILED: dict[str, Any] = {"devices": 2, "compile": True}


@pytest.mark.nightly
def test_two_ranks_have_the_losses_of_one_that_compiles_nothing(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="torch.compile needs setuptools")
    inputs = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=40)}
    plain = run_stage(traced_and_trained, TrainConfig(**COMMON), tmp_path / "plain", **inputs)
    layouts: list[dict[str, Any]] = [{"zero1": True}, {"fsdp": True, "remat": True, "micro_batch": 2}]
    configs = [TrainConfig(**COMMON, **COMPILED, **layout) for layout in layouts]
    for found in run_in_turn(configs, tmp_path / "compiled", **inputs):
        for name in ("loss", "eval_loss"):
            assert found.curve(name) == pytest.approx(plain.curve(name), abs=1e-5)
        assert len(found.curve("loss")) == 5
