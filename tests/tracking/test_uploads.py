"""What a follower makes of event logs: one MLflow run for each stage that has figures, however the runs ended."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.tracking.runs import begin, client_of, database_of, empty_database, end, runs_of, tracked, trained
from trnflow.tasks.events import log_file, run_folder, unsent_runs
from trnflow.tasks.tracking import follower, send_logs
from trnflow.tasks.tracking.follower import Unsent
from trnflow.tasks.tracking.mlflow_values import flatten, lengths_figure, numbers


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> None:
    shutil.copyfile(empty_database(), tmp_path / "mlflow.db")


def test_a_log_is_left_to_the_run_that_writes_it_and_to_one_follower(tmp_path):
    with tracked(tmp_path, is_sent=False):
        assert Unsent(tmp_path, "r1").is_growing()
        trained(tmp_path, "r2", "e" * 64, range(1, 3))
        assert send_logs(tmp_path) == 1
    unsent = Unsent(tmp_path, "r1")
    assert not unsent.is_growing()
    with unsent.lock() as first, unsent.lock() as second:
        assert (first, second) == (True, False)
    assert unsent_runs(tmp_path) == ["r1"]


def test_a_log_of_a_later_format_is_kept_and_named(tmp_path: Path) -> None:
    trained(tmp_path, "r1", "d" * 64, range(1, 3))
    file = log_file(tmp_path, "r1")
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    trained(tmp_path, "r2", "e" * 64, range(1, 3))
    assert send_logs(tmp_path) == 1, "another run does not wait for it"
    assert unsent_runs(tmp_path) == ["r1"]
    assert (
        "is an event log in format 2, and this version of trnflow reads up to 1"
        in Unsent(tmp_path, "r1").warning.read_text()
    )


def test_a_failure_is_told_until_the_run_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    trained(tmp_path, "r1", "d" * 64, range(1, 3), is_killed=True)
    unsent, file = Unsent(tmp_path, "r1"), log_file(tmp_path, "r1")
    there, nowhere = database_of(tmp_path), "http://127.0.0.1:9"
    file.write_bytes(file.read_bytes().replace(there.encode(), nowhere.encode()))
    assert follower._unable_to_send(unsent) == "does not answer" and "does not answer" in unsent.warning.read_text()
    file.write_bytes(file.read_bytes().replace(nowhere.encode(), there.encode()))
    assert not follower._unable_to_send(unsent) and not unsent.warning.exists()


def test_credentials_are_for_the_server_that_they_were_given_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower sends what earlier runs left too, and these may be for another server."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv(follower.ADDRESS, "http://me:hunter2@127.0.0.1:9")
    monkeypatch.setenv(follower.RECORDED_ADDRESS, "http://***@127.0.0.1:9")
    trained(tmp_path, "r1", "d" * 64, range(1, 3))
    assert send_logs(tmp_path) == 1
    assert set(runs_of(client_of(tmp_path), "r1")) == {"", "train"}


def test_settings_and_figures_become_flat():
    assert flatten({"a": {"b": 1, "c": {}}, "d": "x" * 7000, "e é!": None}) == {
        "a.b": "1", "a.c": "{}", "d": "x" * 5999 + "…", "e é_": "null",
    }  # fmt: skip
    assert numbers({"f1": 1, "ok": True, "names": ["a"], "by": {"x": 0.5}}) == {"f1": 1.0, "by/x": 0.5}


def test_a_run_has_at_most_eight_single_figures_and_its_curves(tmp_path):
    many = {f"metric_{number}": 0.5 for number in range(20)} | {"f1_weighted": 0.9, "accuracy": 0.8}
    with tracked(tmp_path, is_sent=False) as log:
        for stage in ("train", "evaluate_model"):
            emit = begin(log, stage, stage[0] * 64)
            for step in range(3 if stage == "train" else 0):
                emit({"metrics": {"step": step, "values": {"curve": 1.0}}})
            end(log, stage, stage[0] * 64, "b", seconds=1.0, metrics=many, figures=many)
    assert send_logs(tmp_path) == 1
    runs = runs_of(client_of(tmp_path), "r1")
    single = {stage: {*run.data.metrics} - {"curve"} for stage, run in runs.items()}
    assert all(len(names) <= 8 for names in single.values()), single
    assert {"evaluate_model/f1_weighted", "evaluate_model/accuracy", "train/seconds"} <= single[""]
    assert {"f1_weighted", "accuracy", "seconds"} <= single["evaluate_model"]
    assert "curve" in runs["train"].data.metrics


def test_a_stage_s_settings_are_sent_without_secrets(tmp_path: Path) -> None:
    with tracked(tmp_path, is_sent=False) as log:
        emit = begin(log, "train", "d" * 64, epochs=3, hf_token="sesame", environment={"ANY_PASSWORD": "hunter2"})
        emit({"metrics": {"step": 1, "values": {"loss": 1.0}}})
        end(log, "train", "d" * 64, "b", seconds=1.0, metrics={"train_loss": 0.5})
    assert send_logs(tmp_path) == 1
    sent = runs_of(client_of(tmp_path), "r1")["train"].data
    assert sent.params["epochs"] == "3" and not [word for word in ("sesame", "hunter2") if word in str(sent)]


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


@pytest.mark.parametrize("late", [False, True], ids=["in order", "the first one's log comes last"])
def test_a_training_that_is_killed_and_goes_on_is_one_run(tmp_path: Path, late: bool) -> None:
    key, first = "d" * 64, run_folder(tmp_path, "r1")
    trained(tmp_path, "r1", key, range(1, 8), is_killed=True)
    if not late:
        assert send_logs(tmp_path) == 1
    trained(tmp_path, "r2", key, range(5, 11))
    if late:
        first.rename(tmp_path / "held back")
        assert send_logs(tmp_path) == 1
        (tmp_path / "held back").rename(first)
    assert send_logs(tmp_path) == 1
    check_one_training(tmp_path, ["r1", "r2"], key, range(1, 11))
    Unsent(tmp_path, "r1").save({"offset": 0})  # once more changes nothing
    assert send_logs(tmp_path) == 1
    check_one_training(tmp_path, ["r1", "r2"], key, range(1, 11))


def test_a_forced_training_or_one_of_another_key_is_a_run_of_its_own(tmp_path: Path) -> None:
    for run, key, is_killed in (("r1", "d", False), ("r2", "d", False), ("r3", "e", True), ("r4", "f", False)):
        trained(tmp_path, run, key * 64, range(1, 3), is_killed=is_killed)
        assert send_logs(tmp_path) == 1
    mlflow = client_of(tmp_path)
    assert {run: set(runs_of(mlflow, run)) for run in ("r1", "r2", "r3", "r4")} == {
        run: {"", "train"} for run in ("r1", "r2", "r3", "r4")
    }


def test_trials_are_nested_in_the_run_of_their_sweep(tmp_path: Path) -> None:
    for run, parent in {"s1": None, "t1": "s1"}.items():
        trained(tmp_path, run, run * 32, range(1, 3), parent=parent)
        assert send_logs(tmp_path) == 1
    mlflow = client_of(tmp_path)
    sweep, trial = (runs_of(mlflow, run)[""] for run in ("s1", "t1"))
    assert trial.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert trial.data.tags["trnflow.sweep"] == "s1" and "trnflow.sweep" not in sweep.data.tags


def test_the_bars_of_a_bin_stand_around_its_mark_and_of_a_split_are_its_shares() -> None:
    (axes,) = lengths_figure({"train": {"2": 1, "8": 3}, "validation": {"8": 2}, "test": {"4": 1}}).axes
    bars = [[(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in split] for split in axes.containers]
    for at in range(3):
        assert sum(split[at][0] for split in bars) / 3 == pytest.approx(at)
    assert [[height for _, height in split] for split in bars] == [[0.25, 0, 0.75], [0, 0, 1], [0, 1, 0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "3-4", "5-8"]
