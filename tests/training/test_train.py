"""The training stage: what it refuses, what it reports, and that it learns."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from tests.training.run_stage import FolderPartial, Result, Stage, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import DataError, ModelError, NonFiniteLoss, ProcessFailed
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import read_json
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.fit import make_schedule
from trnflow.tasks.training.loop import Run, TrainingState


@pytest.mark.xla
def test_compiler_flags_reach_xla(tmp_path) -> None:
    """XLA ends a process whose flags it does not know."""
    config = TrainConfig(compiler_flags=["--xla_no_such_flag=1"])
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed")}
    with pytest.raises(ProcessFailed, match="signal SIGABRT"):
        run_stage(precompile, config, tmp_path / "run", **inputs)
    assert "xla_no_such_flag" in (tmp_path / "run" / "log").read_text()


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
