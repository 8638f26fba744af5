"""What the uploader makes of spools: one MLflow run for each stage that has figures, however the runs ended."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tracking.runs import client_of, not_uploaded, runs_of, trained
from trnflow.tasks.tracking import upload_left
from trnflow.tasks.tracking.mlflow_values import flatten, numbers
from trnflow.tasks.tracking.spool import Spool


def test_a_spool_is_left_to_the_run_that_writes_it_and_to_one_uploader(tmp_path):
    spool = Spool(tmp_path, "r")
    assert spool.files.has_writer()
    assert upload_left(tmp_path) == 0
    spool.close()
    assert not spool.files.has_writer()
    with spool.files.upload_lock() as first, spool.files.upload_lock() as second:
        assert (first, second) == (True, False)


def test_a_spool_is_read_in_whole_lines(tmp_path):
    spool = Spool(tmp_path, "r")
    spool.append("dataset", name="one")
    os.write(spool._handle.fileno(), b'{"event": "data')
    events, offset = spool.files.read(0)
    assert [event["name"] for event in events] == ["one"]
    assert spool.files.read(offset) == ([], offset)
    os.write(spool._handle.fileno(), b'set", "name": "two"}\n')
    assert [event["name"] for event in spool.files.read(offset)[0]] == ["two"]


def test_settings_and_figures_become_flat():
    assert flatten({"a": {"b": 1, "c": {}}, "d": "x" * 7000, "e é!": None}) == {
        "a.b": "1", "a.c": "{}", "d": "x" * 5999 + "…", "e é_": "null",
    }  # fmt: skip
    assert numbers({"f1": 1, "ok": True, "names": ["a"], "by": {"x": 0.5}}) == {"f1": 1.0, "by/x": 0.5}


def test_a_run_has_at_most_eight_single_figures_and_its_curves(tmp_path):
    spool = not_uploaded(tmp_path, "r1")
    many = {f"metric_{number}": 0.5 for number in range(20)} | {"f1_weighted": 0.9, "accuracy": 0.8}
    for stage in ("train", "evaluate_model"):
        spool.stage_started(stage, stage[0] * 64)
        for step in range(3 if stage == "train" else 0):
            spool.metrics(stage, step, {"curve": 1.0})
        spool.stage_ended(
            stage,
            action="ran",
            key=stage[0] * 64,
            artifact="sha256:" + "b" * 64,
            seconds=1.0,
            metrics=many,
            figures=many,
        )
    spool.run_ended("FINISHED")
    assert upload_left(tmp_path) == 1
    runs = runs_of(client_of(tmp_path), "r1")
    single = {stage: {*run.data.metrics} - {"curve"} for stage, run in runs.items()}
    assert all(len(names) <= 8 for names in single.values()), single
    assert {"evaluate_model/f1_weighted", "evaluate_model/accuracy", "train/seconds"} <= single[""]
    assert {"f1_weighted", "accuracy", "seconds"} <= single["evaluate_model"]
    assert "curve" in runs["train"].data.metrics


def check_one_training(home: Path, runs: list[str], key: str, steps: range) -> None:
    """All of `runs` trained the same key: one nested run, the last one's, with the whole curve."""
    mlflow = client_of(home)
    experiment = mlflow.get_experiment_by_name("tests").experiment_id
    (train,) = mlflow.search_runs([experiment], f"tags.`trnflow.key` = '{key}'")
    parents = {run: runs_of(mlflow, run)[""] for run in runs}
    assert train.info.status == "FINISHED"
    assert train.data.tags["mlflow.parentRunId"] == parents[runs[-1]].info.run_id
    assert sorted(train.data.tags["trnflow.runs"].split()) == sorted(runs)
    points = {point.step: point.value for point in mlflow.get_metric_history(train.info.run_id, "loss")}
    assert points == {step: 1 / step for step in steps}
    assert [parents[run].info.status for run in runs] == [*["KILLED"] * (len(runs) - 1), "FINISHED"]
    for first, later in pairwise(runs):
        assert parents[first].data.tags["trnflow.continued_by.train"] == later
        assert parents[later].data.tags["trnflow.continues.train"] == first


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the first one's spool comes last"])
def test_a_training_that_is_killed_and_goes_on_is_one_run(tmp_path: Path, late: bool) -> None:
    key = "d" * 64
    first, second = not_uploaded(tmp_path, "r1"), not_uploaded(tmp_path, "r2")
    trained(first, key, range(1, 8), None)
    shutil.copyfile(first.files.events, tmp_path / "again")
    if not late:
        assert upload_left(tmp_path) == 1
    trained(second, key, range(5, 11), "ran")
    if late:
        first.files.events.rename(tmp_path / "held back")
        assert upload_left(tmp_path) == 1
        (tmp_path / "held back").rename(first.files.events)
    assert upload_left(tmp_path) == 1
    check_one_training(tmp_path, ["r1", "r2"], key, range(1, 11))
    (tmp_path / "again").rename(first.files.events)  # once more changes nothing
    assert upload_left(tmp_path) == 1
    check_one_training(tmp_path, ["r1", "r2"], key, range(1, 11))


def test_a_forced_training_or_one_of_another_key_is_a_run_of_its_own(tmp_path: Path) -> None:
    for run, key, end in (("r1", "d", "ran"), ("r2", "d", "ran"), ("r3", "e", None), ("r4", "f", "ran")):
        trained(not_uploaded(tmp_path, run), key * 64, range(1, 3), end)
        assert upload_left(tmp_path) == 1
    mlflow = client_of(tmp_path)
    assert {run: set(runs_of(mlflow, run)) for run in ("r1", "r2", "r3", "r4")} == {
        run: {"", "train"} for run in ("r1", "r2", "r3", "r4")
    }


def test_trials_are_nested_in_the_run_of_their_sweep(tmp_path: Path) -> None:
    for run, tags in {"s1": {}, "t1": {"trnflow.sweep": "s1"}}.items():
        trained(not_uploaded(tmp_path, run, **tags), run * 32, range(1, 3), "ran")
        assert upload_left(tmp_path) == 1
    mlflow = client_of(tmp_path)
    sweep, trial = (runs_of(mlflow, run)[""] for run in ("s1", "t1"))
    assert trial.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert "mlflow.parentRunId" not in sweep.data.tags
