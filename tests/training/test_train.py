"""The training stage: what it refuses, what it reports, and that it learns."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tests.training.run_stage import FolderPartial, Result, Stage, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Artifact, Input
from trnflow.tasks.config import graph_params, keyed_params
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import DataError, ModelError, NonFiniteLoss, ProcessFailed
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import read_json, stage_of
from trnflow.tasks.train import TrainConfig, environ, train
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.fit import make_schedule
from trnflow.tasks.training.loop import Run, TrainingState

NEURON: dict[str, Any] = {"device": "neuron", "devices": 2}
EACH: dict[str, Any] = {**NEURON, "xla_processes": "per_device"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"devices": 3, "tensor_parallel_size": 2}, r"devices \(3\) must be a multiple of tensor_parallel_size \(2\)"),
        ({"global_batch": 10, "micro_batch": 4}, "global_batch .10. must be a multiple of micro_batch x data parallel"),
        ({"global_batch": 6, "devices": 4}, r"1 x 4 = 4"),
        ({"sequence_parallel": True}, "set tensor_parallel_size > 1"),
        ({"engine": "native", "devices": 2, "tensor_parallel_size": 2, "compile": True}, "compile is for whole layers"),
        ({"engine": "native", "devices": 2, "global_batch": 5}, r"1 x 2 = 2"),
        ({"devices": 2, "fsdp": True}, "fsdp is for engine native"),
        ({"engine": "native", "devices": 2, "fsdp": True, "zero1": True}, "set zero1=false"),
        ({"engine": "native", "devices": 2, "tensor_parallel_size": 2, "fsdp": True}, "shards over the data axis"),
        ({"engine": "native", "devices": 4, "dp_replicate_size": 2}, "set fsdp=true"),
        ({"engine": "native", "devices": 4, "dp_replicate_size": 4, "fsdp": True}, "leave two or more for each copy"),
        ({"device": "cuda"}, "set engine=native"),
        ({"xla_processes": "per_device", "devices": 2}, "XLA's CPU client does not connect processes"),
        ({**EACH, "engine": "native", "device": "cpu"}, "engine native always has one process a device"),
        ({**EACH, "tensor_parallel_size": 2}, "data parallel only, .* set tensor_parallel_size=1"),
        ({"device": "neuron", "devices": 2, "tensor_parallel_size": 2}, "experimental there: .* xla_processes=one"),
        (
            {**NEURON, "dtype": "bfloat16", "stochastic_rounding": True},
            "the default on device neuron.* xla_processes=one",
        ),
        ({**NEURON, "zero1": True, "optimizer": "adafactor"}, "the default on device neuron.* xla_processes=one"),
        ({**NEURON, "compiler_flags": ["model-type=transformer"]}, "'model-type=transformer' is no flag"),
        ({**NEURON, "compiler_flags": ["--cache_dir=/tmp"]}, "--cache_dir only says where files go"),
        ({"engine": "native", "compiler_flags": ["-O1"]}, "compiler_flags is for engine xla"),
        ({**EACH, "dtype": "bfloat16", "stochastic_rounding": True}, "copies of a weight would differ: .* zero1=true"),
        ({**EACH, "zero1": True, "optimizer": "adafactor"}, "splits AdamW's state; .* zero1=false"),
        ({"compile": True}, "for engine native"),
        ({"dtype": "float16"}, "dtype=float16 is for engine native"),
        ({"stochastic_rounding": True}, "dtype is float32: set dtype=bfloat16, or stochastic_rounding=false"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"epochs": 0}, "greater than 0"),
        ({"remat": -1}, "greater than 0"),
        ({"tensor_parallel_rules": {"a.*": "diagonal"}}, r"'diagonal' of a\.\* is not a style; the styles are colwise"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        TrainConfig(**fields)


def test_the_ranks_of_engine_native_share_the_threads() -> None:
    described = stage_of(train)
    assert described.ranks(TrainConfig(engine="native", devices=64, global_batch=64)) == 64
    assert described.ranks(TrainConfig(devices=4)) == 1
    assert described.ranks(TrainConfig(**EACH)) == 2
    assert TrainConfig(engine="native", devices=64, global_batch=64).resolved_threads >= 1
    assert TrainConfig(engine="native", devices=2, threads=3).resolved_threads == 3


def test_each_of_several_xla_processes_takes_the_core_of_its_rank() -> None:
    """torch_xla gives it that; of one process for all it must be told how many."""
    assert environ(TrainConfig(**NEURON, xla_processes="one"))["NEURON_RT_NUM_CORES"] == "2"
    assert "NEURON_RT_NUM_CORES" not in environ(TrainConfig(**EACH))
    assert environ(TrainConfig(**EACH))["PJRT_DEVICE"] == "NEURON"


def test_on_neuron_a_process_a_core_is_the_default_and_either_spelling_is_one_key() -> None:
    """AWS's documented way there; everywhere else one process drives all devices, as before."""
    assert TrainConfig(**NEURON) == TrainConfig(**EACH) != TrainConfig(**NEURON, xla_processes="one")
    assert keyed_params(TrainConfig(**NEURON))["xla_processes"] == "per_device"
    assert graph_params(TrainConfig(**NEURON)) == graph_params(TrainConfig(**EACH))
    for elsewhere in ({}, {"devices": 2, "tensor_parallel_size": 2}, {"engine": "native"}):
        assert TrainConfig(**elsewhere) == TrainConfig(**elsewhere, xla_processes="one")
    assert TrainConfig.model_validate(TrainConfig(**NEURON).model_dump(mode="json")) == TrainConfig(**EACH)


def test_compiler_flags_are_keyed_and_follow_those_of_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O2")
    flags = ["--model-type=transformer", "--enable-saturate-infinity"]
    asked = TrainConfig(**NEURON, compiler_flags=flags)
    assert environ(asked)["NEURON_CC_FLAGS"] == "-O2 --model-type=transformer --enable-saturate-infinity"
    assert graph_params(asked)["compiler_flags"] == keyed_params(asked)["compiler_flags"] == flags
    assert "NEURON_CC_FLAGS" not in environ(TrainConfig(**NEURON))


@pytest.mark.xla
def test_compiler_flags_reach_xla(tmp_path) -> None:
    """XLA ends a process whose flags it does not know."""
    config = TrainConfig(compiler_flags=["--xla_no_such_flag=1"])
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed")}
    with pytest.raises(ProcessFailed, match="signal SIGABRT"):
        run_stage(precompile, config, tmp_path / "run", **inputs)
    assert "xla_no_such_flag" in (tmp_path / "run" / "log").read_text()


def test_batches_follow_from_the_layout() -> None:
    config = TrainConfig(devices=8, tensor_parallel_size=2, global_batch=64, micro_batch=4)
    assert (config.data_parallel, config.micro_rows, config.accumulation) == (4, 16, 4)
    assert TrainConfig(devices=4, global_batch=64).accumulation == 1


def test_the_key_leaves_out_what_cannot_change_the_result() -> None:
    described = stage_of(train)
    unkeyed = {"log_every": 1, "checkpoint_every": 7, "keep_checkpoints": 9, "allow_recompile": True}
    unkeyed["collective_timeout_seconds"] = 9
    assert described.params(TrainConfig(**unkeyed)) == described.params(TrainConfig())
    assert described.accel(TrainConfig(threads=1)) != described.accel(TrainConfig(threads=2))
    assert TrainConfig().resolved_threads >= 1 and "threads" not in described.params(TrainConfig())
    packed = Artifact("sha256:1", "packed", {}, ())
    keyed = described.inputs(TrainConfig(), {"model": scratch(**BERT), "packed": packed})
    assert keyed == {"model": {"config": scratch(**BERT).identity["config"], "weights": None}, "packed": "sha256:1"}


def test_native_learns_and_reports(tmp_path) -> None:
    config = TrainConfig(engine="native", global_batch=8, epochs=6, learning_rate=3e-3, log_every=5)
    packed = packed_classes(tmp_path / "packed")
    found = run_stage(traced_and_trained, config, tmp_path / "run", model=scratch(**BERT), packed=packed)
    metrics = found.artifact.meta["metrics"]
    assert metrics["eval_accuracy"] > 0.9 and metrics["eval_loss"] < metrics["eval_loss_before"]
    assert found.artifact.meta["steps"] == 6 * 13
    assert set(found.curve("eval_loss")) == {13 * epoch for epoch in range(7)}
    assert set(found.curve("loss")) == {*range(5, 78, 5), 78}
    assert found.curve("learning_rate")[78] < found.curve("learning_rate")[5]
    assert {"seconds", "samples_per_second", "tokens_per_second", "host_memory_bytes"} <= set(found.figures)
    check_curves(found)
    check_measures(found, packed)
    config_json = read_json(found.artifact.path / "config.json")
    assert config_json["id2label"] == {"0": "red", "1": "green", "2": "blue"}
    assert config_json["architectures"] == ["BertForSequenceClassification"]
    assert (found.artifact.path / "tokenizer" / "tokenizer_config.json").exists()


def test_each_step_drops_other_elements(tmp_path) -> None:
    """Of one row, whose weights hardly move, the loss changes with what is dropped alone."""
    packed = packed_classes(tmp_path / "packed", rows=1, lengths=(8,), validation=2)
    config = TrainConfig(engine="native", global_batch=1, max_steps=4, learning_rate=1e-9, log_every=1, eval_every=9)
    for name, model, different in (("drops", BERT, 4), ("dry", {**BERT, **DRY}, 1)):
        found = run_stage(traced_and_trained, config, tmp_path / name, model=scratch(**model), packed=packed)
        losses = found.curve("loss")
        assert len(losses) == 4 and len({round(loss, 4) for loss in losses.values()}) == different
        assert [text for text in found.said("warn") if "train.eval_every=9 does nothing" in text]


def check_curves(found: Result) -> None:
    """The artifact has a loss for each update, for there are few, and what was reported, however seldom training logs."""
    rows = {row["step"]: row for row in found.artifact.meta["curves"]}
    assert list(rows) == list(range(79)) and "loss" not in rows[0] and rows[0]["eval_loss"] > rows[78]["eval_loss"]
    assert {step for step, row in rows.items() if "eval_accuracy" in row} == {13 * epoch for epoch in range(7)}
    for name in ("loss", "learning_rate", "eval_loss"):
        assert all(rows[step][name] == value for step, value in found.curve(name).items())
    mean = sum(row["loss"] for row in rows.values() if "loss" in row) / 78
    assert mean == pytest.approx(found.artifact.meta["metrics"]["train_loss"])


def test_a_row_of_long_curves_is_the_mean_since_the_row_before() -> None:
    run = SimpleNamespace(config=TrainConfig(max_steps=451), total=451, progress=TrainingState())
    losses = [1 / step for step in range(1, 452)]
    for step, loss in enumerate(losses, 1):
        Run.note_loss(run, step, loss)
    steps = [0, *(row["step"] for row in run.progress.curves)]
    assert len(steps) < 200 and steps[-1] == 451 != 3 + steps[-2]
    for row, (before, step) in zip(run.progress.curves, pairwise(steps), strict=True):
        assert row["loss"] == pytest.approx(sum(losses[before:step]) / (step - before))


def check_measures(found: Result, packed: Input) -> None:
    """Every log says how fast, how long it waited and how much memory; of a CPU's peak nothing is known, so no MFU."""
    for said in [said["values"] for said in found.said("metrics") if "loss" in said["values"]]:
        assert said["padded_tokens_per_second"] > said["real_tokens_per_second"] >= said["tokens_per_second"] > 0
        assert said["host_memory_bytes"] > 2**26 and said["data_wait_seconds"] >= 0
        assert {"compiled_graphs", "compile_seconds", "learning_rate", "grad_norm"} <= said.keys()
        assert not {"mfu", "device_memory_bytes", "dollars"} & said.keys()
    rate = found.figures["real_tokens_per_second"] / found.figures["samples_per_second"]
    lengths = packed.meta["rows"]["train"]
    segments = [open_chunks(packed, "train", int(length))["segment_ids"] for length in lengths]
    real, rows = sum(int((one != 0).sum()) for one in segments), sum(len(one) for one in segments)
    assert rate == pytest.approx(real / rows), "as many real tokens as the rows hold"


@pytest.mark.parametrize(
    ("engine", "devices", "every", "kept"),
    [
        ("native", 1, 3, []),
        pytest.param("native", 1, 1, [1], marks=pytest.mark.nightly),
        ("native", 2, 3, []),
        pytest.param("xla", 1, 3, [], marks=pytest.mark.xla),
        pytest.param("xla", 1, 1, [1], marks=[pytest.mark.nightly, pytest.mark.xla]),
    ],
)
def test_a_loss_that_is_no_number_is_never_written(
    engine: str, devices: int, every: int, kept: list[int], tmp_path
) -> None:
    """The first update throws the weights far out, and the second step's loss is no number, though nobody looks before a
    checkpoint is due. What was saved before stays, and is whole."""
    config = TrainConfig(
        engine=engine,
        devices=devices,
        global_batch=8,
        learning_rate=1e18,
        log_every=100,
        checkpoint_every=every,
        eval_every_epoch=False,
    )
    partial, packed = tmp_path / "partial", packed_lm(tmp_path / "packed")
    stage = Stage(traced_and_trained, config, tmp_path / "run", partial, model=scratch(**LLAMA), packed=packed)
    with pytest.raises(NonFiniteLoss, match="step 2 has .*; the weights are as they were") as caught:
        stage.result()
    rows = make_schedule(config, packed.meta, Split(packed, "train")).address(1).rows
    assert f"Its rows of train/16: {', '.join(map(str, rows))} (8 in all)" in str(caught.value)
    assert "learning_rate" in caught.value.fix
    assert FolderPartial(partial).steps() == kept
    for step in kept:
        state = Reader(partial / str(step))
        assert state.state["step"] == step
        assert all(state.tensor(name).isfinite().all() for name in state.names)
    assert not list((tmp_path / "run" / "out").iterdir())


@pytest.mark.xla
def test_xla_is_not_started_by_torchrun(tmp_path, monkeypatch) -> None:
    """Each of torchrun's processes would silently be a world of one."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed")}
    with pytest.raises(ModelError, match="WORLD_SIZE says there are several") as caught:
        run_stage(traced_and_trained, TrainConfig(devices=2), tmp_path / "run", **inputs)
    assert "train.devices" in caught.value.fix


def test_too_few_rows_for_a_batch(tmp_path) -> None:
    config = TrainConfig(engine="native", global_batch=64, last_batch="drop")
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed", rows=8)}
    with pytest.raises(DataError, match="17 rows, not one whole batch of 64"):
        run_stage(traced_and_trained, config, tmp_path / "run", **inputs)


@pytest.mark.nightly
def test_torch_compile_gives_the_same_losses(tmp_path) -> None:
    pytest.importorskip("setuptools", reason="torch.compile needs setuptools")
    packed = packed_lm(tmp_path / "packed")
    curves = []
    for compiled in (False, True):
        config = TrainConfig(engine="native", global_batch=8, epochs=1, log_every=1, compile=compiled)
        model = scratch(**LLAMA)
        curves.append(
            run_stage(traced_and_trained, config, tmp_path / str(compiled), model=model, packed=packed).curve("loss")
        )
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
