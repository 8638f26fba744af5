"""Engine xla's loss in chunks beside the plain one: the same training in one graph, in less memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear

from tests.conftest import PROJECT
from tests.training.parity import agree
from tests.training.run_stage import counted, run_stage
from tests.training.toys import LLAMA, packed_lm, scratch
from tests.training.xla.replicas import ReplicasConfig, cpu_environ, in_one_process, per_device
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import ProcessFailed
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, environ
from trnflow.tasks.training.device_kinds import Cpu
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.xla.chunked_loss import ChunkedLoss

SMALL = 4 * 64 * 9  # nine positions of the toys' vocabulary
COMMON: dict[str, Any] = {"global_batch": 8, "max_steps": 6, "learning_rate": 1e-2, "log_every": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "frozen", "apart"), [(1, False, True), (4, True, False), (7, False, False), (9, False, True)]
)
def test_loss_and_gradients_are_those_of_the_plain_computation(
    size: int, frozen: bool, apart: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    shares, positions, width, vocabulary = 2, 7, 5, 11
    tensors = [
        torch.randn(shape).to(dtype) for shape in ((shares, positions, width), (vocabulary, width), (vocabulary,))
    ]
    targets = torch.randint(-1, vocabulary, (shares, positions), dtype=torch.int32)
    targets[targets < 0] = -100

    def score(logits: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return loss_sum(logits.float(), to, None, 0.1) * 0.25

    def inputs() -> list[torch.Tensor]:
        return [tensor.clone().requires_grad_(at == 0 or not frozen) for at, tensor in enumerate(tensors)]

    found = inputs()
    leaves = [torch.zeros(shares, *one.shape, dtype=dtype).requires_grad_() if apart else None for one in found[1:]]
    (ChunkedLoss.apply(*found, *leaves, targets, score, size) * 3).backward()
    for rows in (slice(0, 1), slice(1, 2)) if apart else (slice(0, shares),):
        plain = inputs()
        (score(linear(plain[0][rows], *plain[1:]).flatten(0, 1), targets[rows].flatten()) * 3).backward()
        near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
        torch.testing.assert_close(found[0].grad[rows], plain[0].grad[rows], **near)
        for one, leaf, other in zip(found[1:], leaves, plain[1:], strict=True):
            gradient = one.grad if leaf is None else leaf.grad[rows][0]
            assert (gradient is None) is frozen
            if gradient is not None:
                torch.testing.assert_close(gradient, other.grad, **near)


@stage(kind="checkpoint", environ=environ)
def in_small_chunks(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """`counted`, with chunks of nine positions; fails if no loss was computed so."""
    Cpu.logits, calls = SMALL, []
    plain = ChunkedLoss.apply
    ChunkedLoss.apply = lambda *arguments: calls.append(1) or plain(*arguments)  # type: ignore[method-assign]
    meta = counted(config, model, packed, out)
    if not calls:
        raise ProcessFailed("no loss was computed in chunks")
    return meta


@pytest.mark.slow
@pytest.mark.xla
@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ({"micro_batch": 2, "remat": True, "label_smoothing": 0.1}, {"tie_word_embeddings": True}),
        ({"devices": 2, "zero1": True, "micro_batch": 4, "remat": True}, {}),
        ({"devices": 2}, {"tie_word_embeddings": True}),
    ],
    ids=str,
)
def test_a_training_in_chunks_is_the_plain_training(
    layout: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    inputs: dict[str, Any] = {"model": scratch(**LLAMA, **fields), "packed": packed_lm(tmp_path / "packed", rows=48)}
    config = TrainConfig(**COMMON, **layout)
    found = run_stage(in_small_chunks, config, tmp_path / "chunks", **inputs)
    plain = run_stage(counted, config, tmp_path / "plain", **inputs)
    agree(found, plain, weights=1e-3)
    assert found.figures["all_compiled"] == plain.figures["all_compiled"]


@stage(kind="checkpoint", environ=cpu_environ)
def replicas_in_small_chunks(config: ReplicasConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    Cpu.logits = SMALL
    return in_one_process(config, model, packed, out)


@pytest.mark.slow
@pytest.mark.xla
def test_a_process_a_device_computes_its_own_rows_in_chunks(tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=48)}
    layout: dict[str, Any] = {"global_batch": 8, "learning_rate": 1e-2, "epochs": 1, "micro_batch": 2, "devices": 2}
    how = ReplicasConfig(configs=(per_device(**layout, zero1=True),), devices=2)
    (chunked,) = run_stage(replicas_in_small_chunks, how, tmp_path / "chunks", **inputs).artifact.meta["runs"]
    (plain,) = run_stage(in_one_process, how, tmp_path / "plain", **inputs).artifact.meta["runs"]
    assert chunked["hashes"] != plain["hashes"]
    losses = [[loss for loss, _, _ in run["steps"]] for run in (chunked, plain)]
    assert len(losses[0]) == 6 and losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert chunked["compiled"] == plain["compiled"]


@pytest.mark.slow
@pytest.mark.xla
def test_xla_frees_a_chunk_before_the_next() -> None:
    held = {}
    sizes = ["--vocabulary", "8000", "--rows", "2048", "--width", "64", "--times", "1", "--dtype", "float32"]
    environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PJRT_DEVICE": "CPU"}
    for way in ("plain", "chunks"):
        command = [sys.executable, "-m", "tests.bench.bench_loss", "--engine", "xla", *sizes, "--way", way]
        out = subprocess.check_output([*command, "--chunk", "4"], cwd=PROJECT, env=environ, text=True)
        held[way] = json.loads(out.splitlines()[-1])["held"]
    logits = 4 * 2048 * 8000
    assert held["plain"] > 3 * logits and held["chunks"] < logits, held
