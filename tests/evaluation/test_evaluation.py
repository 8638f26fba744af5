"""Evaluation while training: it changes no step, it finds the best weights, and it says when to stop."""

from __future__ import annotations

import shutil
import signal
from typing import Any

import pytest

from tests.training.run_stage import FolderPartial, Result, Stage, files_of, kill_after, traced_and_trained
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.stage import Workdir
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.fit import state_to_resume

COMMON: dict[str, Any] = {"global_batch": 8, "learning_rate": 3e-2, "log_every": 1, "schedule": "constant"}
NATIVE: dict[str, Any] = {**COMMON, "engine": "native", "epochs": 6, "eval_every_epoch": False}


def trained(tmp_path, name: str, config: TrainConfig, lengths: tuple[int, ...] = (8, 16)) -> Result:
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed", lengths=lengths)}
    stage = Stage(traced_and_trained, config, tmp_path / name, tmp_path / f"{name}-partial", **inputs)
    return stage.result()


@pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=[pytest.mark.nightly, pytest.mark.xla])])
def test_evaluating_changes_no_step(engine: str, tmp_path) -> None:
    """With dropout: not even the random numbers. Nor is another graph compiled."""
    config = TrainConfig(**{**NATIVE, "engine": engine, "max_steps": 5})
    plain = trained(tmp_path, "plain", config, lengths=(8,))
    often = trained(tmp_path, "often", config.model_copy(update={"eval_every": 2}), lengths=(8,))
    assert set(often.curve("eval_loss")) == {0, 2, 4, 5} and set(plain.curve("eval_loss")) == {0, 5}
    assert often.curve("loss") == plain.curve("loss")
    assert files_of(often.artifact) == files_of(plain.artifact)
    assert often.figures["compiled_graphs"] == plain.figures["compiled_graphs"]


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_best_is_kept_and_training_stops(devices: int, tmp_path) -> None:
    """A learning rate that is too high: the loss gets worse after a while."""
    config = TrainConfig(**{**NATIVE, "devices": devices}, eval_every=2, early_stopping_patience=3, keep_checkpoints=1)
    found = trained(tmp_path, "run", config)
    curve = {step: loss for step, loss in found.curve("eval_loss").items() if step}
    best = min(curve, key=lambda step: curve[step])
    assert found.artifact.meta["best_step"] == best and found.artifact.meta["metrics"]["eval_loss"] == curve[best]
    assert found.artifact.meta["steps"] == max(curve) == best + 3 * 2 < 6 * 13
    assert any("stopped early at step" in text for text in found.said("info"))
    assert best in FolderPartial(tmp_path / "run-partial").steps()

    until = trained(tmp_path, "until", config.model_copy(update={"max_steps": best, "early_stopping_patience": None}))
    one, other = Reader(found.artifact.path), Reader(until.artifact.path)
    assert one.names == other.names
    assert all(one.tensor(name).equal(other.tensor(name)) for name in one.names)


def test_a_killed_run_finds_the_same_best(tmp_path) -> None:
    config = TrainConfig(**NATIVE, eval_every=3, keep_best=True, keep_checkpoints=1, checkpoint_every=4)
    whole = trained(tmp_path, "whole", config)
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed")}
    partial = tmp_path / "partial"
    stage = Stage(traced_and_trained, config, tmp_path / "killed", partial, **inputs)
    kill_after(stage, step=max(12, whole.artifact.meta["best_step"] + 5))
    assert stage.process.wait() == -signal.SIGKILL
    resumed = Stage(traced_and_trained, config, tmp_path / "resumed", partial, **inputs).result()
    assert resumed.said("info") and files_of(resumed.artifact) == files_of(whole.artifact)
    assert resumed.artifact.meta == whole.artifact.meta


def test_without_the_best_state_training_goes_on_from_before_it_or_begins_anew(tmp_path) -> None:
    states, warned = FolderPartial(tmp_path / "states"), []
    for step, best in ((2, 0), (3, 3), (6, 3)):
        shards.write(tmp_path / "state", [], {"best": {"step": best}})
        states.commit(step, tmp_path / "state")
    out = Workdir(tmp_path, tmp_path, warned.append, states)
    assert state_to_resume(out) == (6, str(states.root / "6")) and not warned
    (states.root / "3" / "COMMIT").unlink()
    assert state_to_resume(out) == (2, str(states.root / "2"))
    assert states.steps() == [2], "what is of no use takes no room, nor that of what comes"
    assert (
        "the state of step 3, whose evaluation was the best, is gone: training goes on from step 2" in warned[0]["warn"]
    )

    shards.write(tmp_path / "state", [], {"best": {"step": 3}})
    states.commit(6, tmp_path / "state")
    shutil.rmtree(states.root / "2")
    assert state_to_resume(out) is None
    assert "the state of step 3, whose evaluation was the best, is gone: training begins anew" in warned[1]["warn"]
