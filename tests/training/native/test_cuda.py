"""Engine native on a GPU. Skipped where torch finds none, as in CI: run it where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import FolderPartial, Result, Stage, files_of, kill_after, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.train import TrainConfig

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")

WIDE = {**LLAMA, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}


def run(folder: Path, **fields: Any) -> Result:
    config = TrainConfig(
        **{"engine": "native", "device": "cuda", "global_batch": 8, "max_steps": 5, "log_every": 1, **fields}
    )
    packed = packed_lm(folder / "packed", length=64, rows=48)
    return run_stage(traced_and_trained, config, folder / "run", model=scratch(**WIDE), packed=packed)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return run(tmp_path_factory.mktemp("cpu"), device="cpu").curve("loss")


@pytest.mark.parametrize(
    ("fields", "tolerance"),
    [
        ({}, 1e-5),
        ({"micro_batch": 2}, 1e-5),
        ({"remat": True}, 1e-5),
        ({"compile": True}, 1e-5),
        ({"dtype": "bfloat16"}, 3e-2),
        ({"dtype": "bfloat16", "attention": "sdpa"}, 3e-2),
        ({"dtype": "bfloat16", "compile": True}, 3e-2),
        ({"dtype": "float16"}, 3e-2),
        ({"dtype": "float16", "compile": True}, 3e-2),
    ],
    ids=str,
)
def test_the_losses_are_those_of_the_cpu(
    plain: dict[int, float], fields: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    assert run(tmp_path, **fields).curve("loss") == pytest.approx(plain, abs=tolerance)


def test_documents_do_not_see_each_other(tmp_path: Path) -> None:
    """Another first document changes no bit of what the model says of the second."""
    from tests.training.toys import first_rows
    from trnflow.tasks.training.model.attention import with_attention
    from trnflow.tasks.training.model.build import build, logits_of

    packed = packed_lm(tmp_path, length=64, rows=8)
    built = build(scratch(**WIDE), packed, seed=0, weights=True)
    built.model.to("cuda", torch.bfloat16)
    built = with_attention(TrainConfig(engine="native", device="cuda", dtype="bfloat16"), built)
    assert built.attention == "varlen"
    ids, segments, positions = (column.cuda() for column in first_rows(packed, 8)[1])
    with torch.no_grad():
        plain = logits_of(built, ids, segments, positions)
        other = logits_of(built, torch.where(segments == 1, (ids + 1) % 60 + 3, ids), segments, positions)
    assert torch.equal(plain[segments == 2], other[segments == 2])
    assert not torch.allclose(plain[segments == 1], other[segments == 1])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two GPUs here")
@pytest.mark.parametrize(
    "fields", [{}, {"zero1": True}, {"fsdp": True}, {"tensor_parallel_size": 2, "sequence_parallel": True}], ids=str
)
def test_two_gpus_have_the_losses_of_the_cpu(plain: dict[int, float], fields: dict[str, Any], tmp_path: Path) -> None:
    """Never run yet."""
    assert run(tmp_path, devices=2, **fields).curve("loss") == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("fields", [{}, {"compile": True, "dtype": "bfloat16"}], ids=str)
def test_a_killed_run_ends_in_the_same_bytes(fields: dict[str, Any], tmp_path: Path) -> None:
    config = TrainConfig(
        engine="native", device="cuda", global_batch=8, max_steps=60, log_every=1, checkpoint_every=5, **fields
    )
    packed = packed_lm(tmp_path / "packed", length=64, rows=48)
    inputs = {"model": scratch(**WIDE), "packed": packed}
    whole = run_stage(traced_and_trained, config, tmp_path / "whole", **inputs)
    stage = Stage(traced_and_trained, config, tmp_path / "killed", tmp_path / "partial", **inputs)
    kill_after(stage, 20)
    stage.process.wait()
    assert FolderPartial(tmp_path / "partial").steps()
    again = Stage(traced_and_trained, config, tmp_path / "again", tmp_path / "partial", **inputs).result()
    assert any("resumes at step" in text for text in again.said("info"))
    assert files_of(again.artifact) == files_of(whole.artifact)
