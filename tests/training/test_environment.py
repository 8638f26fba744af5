"""What the process that trains on a GPU is given, and how it computes. No GPU is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trnflow.tasks.train import TrainConfig, environ
from trnflow.tasks.training import environment

GPU = TrainConfig(engine="native", device="cuda")
PRECISION = """
import torch
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.native.determinism import choose_kernels

for dtype in ("float32", "bfloat16"):
    choose_kernels(TrainConfig(engine="native", device="cuda", dtype=dtype))
    print(dtype, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
"""


def test_a_gpu_s_allocator_grows_its_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "WSL", tmp_path / "none")
    for name in environment.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    assert environ(GPU)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert not {*environ(TrainConfig(engine="native"))} & {*environment.ALLOCATOR}
    monkeypatch.setattr(environment, "WSL", tmp_path)  # whose driver refuses them
    assert not {*environ(GPU)} & {*environment.ALLOCATOR}


@pytest.mark.parametrize("name", environment.ALLOCATOR)
def test_an_allocator_that_the_user_sets_stays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "WSL", tmp_path / "none")
    monkeypatch.setenv(name, "max_split_size_mb:128")
    assert not {*environ(GPU)} & {*environment.ALLOCATOR}


def test_a_gpu_computes_fp32_in_tf32_with_bfloat16_alone() -> None:
    variables = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}  # as in NVIDIA's containers
    done = subprocess.run([sys.executable, "-c", PRECISION], env=variables, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["float32 False False", "bfloat16 True True"]
