"""Layers compiled by themselves give the losses of the model that is not compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from tests.training.run_stage import run_in_turn, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.native.compiled_blocks import MOST_GRAPHS, compile_blocks

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


def test_a_layer_is_compiled_anew_for_each_length_and_never_left_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    config = torch._dynamo.config
    monkeypatch.setattr(config, "recompile_limit", 1)
    monkeypatch.setattr(config, "fail_on_recompile_limit_hit", False)
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda forward, *, dynamic: compiled.append((forward, dynamic)) or forward)
    layers = [GradientCheckpointingLayer() for _ in range(2)]
    compile_blocks(torch.nn.Sequential(torch.nn.Linear(1, 1), *layers))
    assert [(forward.__self__, dynamic) for forward, dynamic in compiled] == [(layer, False) for layer in layers]
    assert config.recompile_limit == MOST_GRAPHS and config.fail_on_recompile_limit_hit
