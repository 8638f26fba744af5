"""TensorBoard's files, read by TensorBoard."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tracking.runs import SETTINGS, begin, end, speak
from trnflow.tasks.errors import MissingDependency
from trnflow.tasks.events import EventLog
from trnflow.tasks.system.redaction import hide_secrets
from trnflow.tasks.tracking import tensorboard
from trnflow.tasks.tracking.tensorboard import TensorBoardFiles


def log_of(home: Path, run: str, log: EventLog) -> AbstractContextManager[None]:
    known = {"settings": hide_secrets(SETTINGS), "options": {}, "store": "s", "host": {}, "checkout": None}
    return log.writing(home, run, recipe="demo", kind="run", parent=None, tracking=None, **known)


def opened(folder: Path) -> object:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def test_curves_and_figures_are_those_of_the_run_and_no_secret_is_in_the_files(tmp_path: Path) -> None:
    log = EventLog(TensorBoardFiles(tmp_path))
    with log_of(tmp_path, "r1", log):
        speak(log, tmp_path, points=50)
    folder = tmp_path / "tensorboard" / "demo" / "r1"
    found = opened(folder)
    assert [(one.step, one.value) for one in found.Scalars("train/loss")] == [
        (step, pytest.approx(1 / (step + 1))) for step in range(50)
    ]
    (f1,) = found.Scalars("evaluate_model/f1_weighted")
    assert f1.value == pytest.approx(0.92) and found.Scalars("train/train_loss")[0].step == 49
    (text,) = found.Tensors("recipe")
    assert b"learning_rate: 3.0e-05" in text.tensor_proto.string_val[0]
    (file,) = folder.iterdir()
    assert not [secret for secret in (b"hunter2", b"sesame") if secret in file.read_bytes()]


def test_a_run_of_hits_writes_none_and_a_killed_one_keeps_what_it_had(tmp_path: Path) -> None:
    log = EventLog(TensorBoardFiles(tmp_path))
    with log_of(tmp_path, "r1", log):
        end(log, "train", "a" * 64, "a", action="hit", metrics={"loss": 1.0})
    assert not (tmp_path / "tensorboard").exists()
    with log_of(tmp_path, "r2", log):
        emit = begin(log, "train", "b" * 64)
        emit({"metrics": {"step": 3, "values": {"loss": 0.5, "odd": float("nan")}}})
        # the run's end is never written
        assert [one.step for one in opened(tmp_path / "tensorboard" / "demo" / "r2").Scalars("train/loss")] == [3]


def test_a_folder_that_can_not_be_made_costs_the_files_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file is in the way")
    log = EventLog(TensorBoardFiles(tmp_path))
    with log_of(tmp_path, "r1", log):
        speak(log, tmp_path, points=3)
    assert log.state.outcome == "completed"


def test_without_the_package_a_recipe_that_names_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name))
    with pytest.raises(MissingDependency, match=r"tracking.also names tensorboard"):
        TensorBoardFiles(tmp_path)
