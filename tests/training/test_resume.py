"""A run that is killed and started again ends in the very bytes of a run that was not, however often either logs or saves."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import FolderPartial, Result, Stage, files_of, kill_after, run_stage, traced_and_trained
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import Interrupted, ProcessFailed
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, environ

NATIVE = {"engine": "native", "global_batch": 8, "epochs": 20}
ROUNDED = {"dtype": "bfloat16", "stochastic_rounding": True}
MESH = {"global_batch": 8, "epochs": 2, "devices": 2, "zero1": True}


def setting(tmp_path: Path, lengths: list[int], **layout: Any) -> tuple[TrainConfig, dict[str, Any], Result]:
    """(config, inputs, the result of a run that is left alone), with dropout."""
    config = TrainConfig(learning_rate=1e-3, warmup_ratio=0.1, log_every=7, checkpoint_every=1000, **layout)
    inputs: dict[str, Any] = {
        "model": scratch(**BERT),
        "packed": packed_classes(tmp_path / "packed", rows=24 * 2 // len(lengths), lengths=lengths),
    }
    return config, inputs, run_stage(traced_and_trained, config, tmp_path / "whole", **inputs)


def often(config: TrainConfig, every: int) -> TrainConfig:
    return config.model_copy(update={"log_every": 1, "checkpoint_every": every})


def same(one: Input, other: Input) -> bool:
    return files_of(one) == files_of(other) and one.meta == other.meta


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="fp32"),
        pytest.param(ROUNDED, id="rounded", marks=pytest.mark.nightly),
        pytest.param({"dtype": "float16"}, id="fp16", marks=pytest.mark.slow),
    ],
)
def test_native_survives_kill_and_stop(fields: dict[str, Any], tmp_path) -> None:
    config, inputs, whole = setting(tmp_path, [8, 16], **NATIVE, **fields)
    partial = tmp_path / "partial"
    killed = Stage(traced_and_trained, often(config, 10), tmp_path / "killed", partial, **inputs)
    kill_after(killed, step=25)
    assert killed.process.wait() == -signal.SIGKILL
    first = FolderPartial(partial).steps()
    assert first and len(first) <= config.keep_checkpoints

    stopped = Stage(traced_and_trained, often(config, 1000), tmp_path / "stopped", partial, **inputs)
    kill_after(stopped, step=first[-1] + 25, number=signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped at step"):
        stopped.result()
    second = FolderPartial(partial).steps()
    assert second[-1] > first[-1]  # it saved before it left

    resumed = Stage(traced_and_trained, often(config, 50), tmp_path / "resumed", partial, **inputs).result()
    assert f"resumes at step {second[-1]}" in resumed.said("info")
    assert same(resumed.artifact, whole.artifact)


@stage(kind="checkpoint", environ=environ)
def runs_out_of_memory(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """`traced_and_trained`, whose 21st forward pass fails as on a GPU whose memory is full."""
    import torch

    passes = itertools.count(1)

    def fail(module: torch.nn.Module, arguments: Any) -> None:
        if type(module).__name__ == "BertForSequenceClassification" and next(passes) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    torch.nn.modules.module.register_module_forward_pre_hook(fail)
    return traced_and_trained(config, model, packed, out)


def test_a_gpu_without_memory_keeps_the_checkpoint(tmp_path: Path) -> None:
    config, inputs, whole = setting(tmp_path, [8], **NATIVE)
    partial = tmp_path / "partial"
    with pytest.raises(ProcessFailed, match="CUDA out of memory"):
        Stage(runs_out_of_memory, often(config, 5), tmp_path / "full", partial, **inputs).result()
    newest = FolderPartial(partial).steps()[-1]
    assert newest >= 10
    resumed = Stage(traced_and_trained, often(config, 50), tmp_path / "resumed", partial, **inputs).result()
    assert f"resumes at step {newest}" in resumed.said("info") and same(resumed.artifact, whole.artifact)


@pytest.mark.xla
def test_xla_survives_a_kill(tmp_path) -> None:
    config, inputs, whole = setting(tmp_path, [8], **MESH)
    partial = tmp_path / "partial"
    killed = Stage(traced_and_trained, often(config, 2), tmp_path / "killed", partial, **inputs)
    kill_after(killed, step=6)
    assert killed.process.wait() == -signal.SIGKILL
    assert FolderPartial(partial).steps()
    resumed = Stage(traced_and_trained, often(config, 100), tmp_path / "resumed", partial, **inputs).result()
    assert resumed.said("info") and same(resumed.artifact, whole.artifact)
    assert 0 < resumed.figures["compiled_graphs"] <= 2


FOUR = {"devices": 4, "tensor_parallel_size": 2, "zero1": True, "micro_batch": 1}
TWO: dict[str, dict[str, Any]] = {
    "xla": {"devices": 2, "zero1": True},
    "native": {"engine": "native", "devices": 2, "fsdp": True},
    "one device": {"engine": "native"},
}


@pytest.mark.xla
@pytest.mark.nightly
@pytest.mark.parametrize("fewer", TWO)
def test_another_mesh_goes_on(tmp_path, fewer: str) -> None:
    """A state written by four devices is taken up by two, or one: the rest of the run has the same samples, and the same losses,
    to rounding."""
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed")}
    rows = {"global_batch": 8, "epochs": 3, "learning_rate": 1e-2, "log_every": 1, "checkpoint_every": 4}
    partial = tmp_path / "partial"
    first = Stage(traced_and_trained, TrainConfig(**rows, **FOUR), tmp_path / "first", partial, **inputs).result()
    rest = Stage(traced_and_trained, TrainConfig(**rows, **TWO[fewer]), tmp_path / "rest", partial, **inputs).result()
    assert min(rest.curve("loss")) == 9  # the newest state is of step 8
    assert rest.curve("loss") == pytest.approx({n: loss for n, loss in first.curve("loss").items() if n > 8}, abs=1e-5)
    assert rest.artifact.meta["metrics"] == pytest.approx(first.artifact.meta["metrics"], abs=1e-5)


RANKS: dict[str, dict[str, Any]] = {
    "zero1": {"zero1": True},
    "fsdp": {"fsdp": True, "remat": True},
    "copies of shards": {"devices": 4, "zero1": True, "dp_replicate_size": 2},
    "tensor parallel": {"tensor_parallel_size": 2, "sequence_parallel": True},
    "rounded zero1": {**ROUNDED, "zero1": True},
    "rounded tensor parallel": {**ROUNDED, "tensor_parallel_size": 2, "optimizer": "adafactor"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name != "fsdp" else []) for name in RANKS]
)
def test_ranks_survive_kill_and_stop(name: str, tmp_path) -> None:
    """All ranks stop after the same step, though only one of them says when, and go on to the same bits."""
    config = TrainConfig(**{**NATIVE, "devices": 2, "log_every": 7, "checkpoint_every": 1000, **RANKS[name]})
    model = scratch(**LLAMA) if "tensor_parallel_size" in RANKS[name] else scratch(**BERT)
    inputs: dict[str, Any] = {"model": model, "packed": packed_classes(tmp_path / "packed", rows=24, lengths=[8, 16])}
    whole = run_stage(traced_and_trained, config, tmp_path / "whole", **inputs)
    partial = tmp_path / "partial"
    killed = Stage(traced_and_trained, often(config, 10), tmp_path / "killed", partial, **inputs)
    kill_after(killed, step=25)
    assert killed.process.wait() == -signal.SIGKILL
    first = FolderPartial(partial).steps()
    stopped = Stage(traced_and_trained, often(config, 1000), tmp_path / "stopped", partial, **inputs)
    kill_after(stopped, step=first[-1] + 10, number=signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped at step"):
        stopped.result()
    second = FolderPartial(partial).steps()
    assert second[-1] > first[-1]
    resumed = Stage(traced_and_trained, often(config, 50), tmp_path / "resumed", partial, **inputs).result()
    assert f"resumes at step {second[-1]}" in resumed.said("info")
    assert same(resumed.artifact, whole.artifact)


@pytest.mark.xla
@pytest.mark.nightly
def test_ranks_go_on_in_another_layout(tmp_path) -> None:
    """From each layout to the next; all have the losses of one plain device."""
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed")}
    rows = {"global_batch": 8, "learning_rate": 1e-2, "log_every": 1, "checkpoint_every": 3, "engine": "native"}
    layouts: list[dict[str, Any]] = [
        {"devices": 2, "tensor_parallel_size": 2, "zero1": False},
        {"devices": 4, "tensor_parallel_size": 2, "fsdp": True, "micro_batch": 1},
        {"devices": 2, "zero1": True},
        {"engine": "xla", "devices": 2, "zero1": True},
        {"devices": 4, "fsdp": True, "dp_replicate_size": 2},
        {},
        {"devices": 2, "fsdp": True},
    ]
    plain = Stage(traced_and_trained, TrainConfig(**rows, epochs=5), tmp_path / "plain", **inputs).result()
    partial, curve = tmp_path / "partial", {}
    for number, layout in enumerate(layouts):
        config = TrainConfig(**{**rows, **layout}, epochs=5)
        stage = Stage(traced_and_trained, config, tmp_path / str(number), partial, **inputs)
        if number < len(layouts) - 1:
            kill_after(stage, step=3 * number + 3)
            stage.process.wait()
            found = Result(Input(tmp_path, "", {}, ""), stage.events())
        else:
            found = stage.result()
        assert number == 0 or found.said("info")[0].startswith("resumes at step")
        curve.update(found.curve("loss"))
    assert curve == pytest.approx(plain.curve("loss"), abs=1e-5)
