"""Training that is killed again and again, between steps and inside the writes of checkpoints, ends in the bytes of one that
was not. Checkpoints lie in a real store's partial state; each kill takes all processes of the stage."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.products import few
from tests.helpers.small_disk import fill, small_disk
from tests.training.run_stage import Stage, files_of, run_stage, traced_and_trained
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import Interrupted, ModelError, StoreError
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.store import partial_state
from trnflow.tasks.store.partial import PartialState
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ

KEY = "k" * 64
WIDE = {
    **BERT,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
}  # a write takes as long as some steps
ROWS: dict[str, Any] = {"global_batch": 8, "epochs": 1000, "eval_every_epoch": False, "log_every": 5, "threads": 1}
NATIVE: dict[str, Any] = {**ROWS, "engine": "native"}
XLA: dict[str, Any] = {**ROWS, "engine": "xla", "devices": 2, "zero1": True}


def state(folder: Path) -> PartialState:
    return partial_state(str(folder / "store"), folder / "home", KEY)


class Slow(PartialState):
    """Takes its time to keep a checkpoint, and says when it begins."""

    folder: Path

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        (self.folder / f"begun-{step}").touch()
        time.sleep(5)  # longer than a rank that has ended is forgiven
        super().commit(step, folder, digests)


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def trained(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    return _trained(config, model, packed, out, state(out.path.parent.parent))


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def trained_on_a_slow_disk(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    states = state(out.path.parent.parent)
    states.__class__, states.folder = Slow, out.path.parent  # type: ignore[attr-defined]
    return _trained(config, model, packed, out, states)


def _trained(config: TrainConfig, model: Source, packed: Input, out: Workdir, states: PartialState) -> Meta:
    return traced_and_trained(config, model, packed, Workdir(out.path, out.scratch, out.emit, states))


def inputs(folder: Path, model: dict[str, Any] = WIDE) -> dict[str, Any]:
    return {"model": scratch(**model), "packed": packed_classes(folder / "packed", rows=24, lengths=[16])}


def wait_for_steps(started: Stage, count: int) -> None:
    while started.process.poll() is None:
        if any(event.get("progress", {}).get("done", 0) >= count for event in started.events()):
            return
        time.sleep(0.01)


def wait_until_it_writes(started: Stage) -> None:
    while started.process.poll() is None:
        if any((started.folder / "scratch").glob("step-*")):
            return
        time.sleep(0.001)


def litter(folder: Path) -> bool:
    shards = any((folder / "killed/scratch").glob("step-*"))
    aside = any(name.count("/.") for name in state(folder)._backend.names("partial"))
    kept = {f"step-{step:09d}" for step in state(folder).steps()}
    return shards or aside or bool(set(state(folder)._backend.folders(f"partial/{KEY}")) - kept)


def killed_in_rounds(folder: Path, config: TrainConfig, rounds: int, **given: Any) -> int:
    """Kill training `rounds` times, every other time inside a write. Returns how many writes were cut short."""
    chance, reached, cut = random.Random(1), 0, 0
    for number in range(rounds):
        started = Stage(trained, config, folder / "killed", **given)
        # by then a second checkpoint has been begun, so the first is kept
        wait_for_steps(started, reached + 2 * config.checkpoint_every + chance.randint(1, 6))
        if number % 2 == 0:
            wait_until_it_writes(started)
        time.sleep(chance.random() * 0.02)
        os.killpg(started.process.pid, signal.SIGKILL)
        assert started.process.wait() == -signal.SIGKILL, (started.folder / "log").read_text()
        said = [event["info"] for event in started.events() if "info" in event]
        assert said == ([f"resumes at step {reached}"] if reached else [])
        newest = state(folder).steps()[-1]
        assert newest > reached
        reached, cut = newest, cut + litter(folder)
    return cut


@pytest.mark.parametrize(
    ("config", "rounds", "steps"),
    [
        pytest.param(NATIVE, 3, 120, id="native"),
        pytest.param({**NATIVE, "devices": 2, "zero1": True}, 2, 90, id="native ranks", marks=pytest.mark.nightly),
        pytest.param(NATIVE, 20, 900, id="native, twenty times", marks=pytest.mark.nightly),
        pytest.param({**NATIVE, "devices": 2, "fsdp": True}, 20, 900, id="ranks, twenty", marks=pytest.mark.nightly),
        pytest.param(XLA, 20, 900, id="xla, twenty times", marks=[pytest.mark.nightly, pytest.mark.xla]),
    ],
)
def test_kills_at_any_moment_change_no_bit(tmp_path: Path, config: dict[str, Any], rounds: int, steps: int) -> None:
    given = inputs(tmp_path)
    whole = run_stage(traced_and_trained, TrainConfig(**config, max_steps=steps), tmp_path / "whole", **given)
    often = TrainConfig(**config, max_steps=steps, checkpoint_every=3)
    cut = killed_in_rounds(tmp_path, often, rounds, **given)
    resumed = Stage(trained, often, tmp_path / "resumed", **given).result()
    assert resumed.said("info")[0].startswith("resumes at step") and not resumed.said("warn")
    assert files_of(resumed.artifact) == files_of(whole.artifact) and resumed.artifact.meta == whole.artifact.meta
    assert cut >= rounds // 4


@pytest.mark.parametrize("devices", few([2, 1], 1))
def test_told_to_stop_while_a_checkpoint_is_written_it_saves_both(tmp_path: Path, devices: int) -> None:
    """The write in flight is finished first; then comes that of the step it stopped at, for which all ranks wait. A platform
    that signals every process sends SIGTERM, and so does the guard that got it."""
    config = TrainConfig(**NATIVE, devices=devices, zero1=devices > 1, max_steps=100_000, checkpoint_every=20)
    started = Stage(trained_on_a_slow_disk, config, tmp_path / "run", **inputs(tmp_path, BERT))
    while not (started.folder / "begun-20").exists():
        assert started.process.poll() is None, (started.folder / "log").read_text()
    for _ in range(3):
        os.killpg(started.process.pid, signal.SIGTERM)
        time.sleep(0.3)
    with pytest.raises(Interrupted, match=r"stopped at step \d+ of 100000\. Fix") as caught:
        started.result()
    stopped = int(caught.value.message.split()[5])
    assert state(tmp_path).steps() == [20, stopped] and not litter(tmp_path)
    found = state(tmp_path).newest(print)
    assert found is not None and found[0] == stopped


def test_told_to_stop_while_the_disk_is_full_it_says_what_is_lost(tmp_path: Path) -> None:
    config = TrainConfig(**NATIVE, max_steps=100_000, checkpoint_every=20)
    with small_disk(tmp_path / "store", 4 << 20) as disk:
        started = Stage(trained, config, tmp_path / "run", **inputs(tmp_path, BERT))
        while not state(tmp_path).steps():
            assert started.process.poll() is None, (started.folder / "log").read_text()
        fill(disk)
        kept = state(tmp_path).steps()[-1]
        os.killpg(started.process.pid, signal.SIGTERM)
        with pytest.raises(Interrupted, match=f"stopped at step .* of 100000, and its state is that of step {kept}"):
            started.result()
        assert state(tmp_path).steps()[-1] == kept and not litter(tmp_path)


EARLY_BEST: dict[str, Any] = {
    **{"global_batch": 8, "learning_rate": 3e-2, "schedule": "constant", "epochs": 5, "eval_every_epoch": False},
    **{"keep_best": True, "best_metric": "eval_accuracy", "eval_every": 2, "checkpoint_every": 1},
    **{"keep_checkpoints": 1, "threads": 1},
}


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({"engine": "native"}, id="native"),
        pytest.param({"engine": "xla"}, id="xla", marks=[pytest.mark.nightly, pytest.mark.xla]),
        pytest.param({"engine": "native", "devices": 2, "zero1": True}, id="ranks", marks=pytest.mark.nightly),
    ],
)
def test_a_disk_that_is_full_at_the_best_evaluation_costs_time_and_no_bit(tmp_path: Path, layout: Any) -> None:
    """With room for one checkpoint, not for the best one's, training ends with an error; with more, the same command goes on."""
    config = TrainConfig(**EARLY_BEST, **layout)
    given = inputs(tmp_path, BERT)
    (tmp_path / "other").mkdir()
    whole = Stage(trained, config, tmp_path / "other/whole", **given).result()
    best, size = whole.artifact.meta["best_step"], int(whole.figures["checkpoint_bytes"])
    assert 1 < best < whole.artifact.meta["steps"]
    with small_disk(tmp_path / "store", size * 3 // 2) as disk:
        with pytest.raises(
            StoreError, match=f"step {best}, whose evaluation was the best, could not be kept"
        ) as caught:
            Stage(trained, config, tmp_path / "full", **given).result()
        (first,) = state(tmp_path).steps()
        assert 0 < first < best and not litter(tmp_path)
        assert "No space left" in caught.value.message and f"goes on from step {first}" in caught.value.fix
        subprocess.run(["mount", "-o", f"remount,size={size * 8}", str(disk)], check=True)
        resumed = Stage(trained, config, tmp_path / "resumed", **given).result()
    assert resumed.said("info")[0] == f"resumes at step {first}" and not resumed.said("warn")
    assert files_of(resumed.artifact) == files_of(whole.artifact) and resumed.artifact.meta == whole.artifact.meta


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    """As when somebody copied the folder."""
    config = TrainConfig(**NATIVE, max_steps=6, checkpoint_every=4)
    Stage(trained, config, tmp_path / "first", **inputs(tmp_path, BERT)).result()
    assert state(tmp_path).steps() == [4]
    with pytest.raises(
        ModelError, match=r"is of another model: its \S+ has shape \[.*\], and this model's has"
    ) as caught:
        Stage(trained, config, tmp_path / "second", **inputs(tmp_path, WIDE)).result()
    assert "step-000000004" in caught.value.message and "remove it to train from the start" in caught.value.fix
