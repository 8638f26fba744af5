"""What runs write to their spools, and what MLflow should have of it; for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from trnflow.tasks.tracking import Tracker, absolute_uri
from trnflow.tasks.tracking.spool import Spool

PATIENCE = 120.0
SETTINGS = {
    "name": "demo",
    "train": {"learning_rate": 3e-5, "devices": None, "betas": [0.9, 0.999]},
    "data": {"source": "s3://KEY:hunter2@bucket/data?X-Amz-Signature=hunter2&part=1"},
    "model": {"config": {"pad_token": "<pad>"}, "hf_token": "hunter2"},
    "launch": {"environment": {"ANYTHING": "hunter2"}},
}


def speak(tracker: Spool, folder: Path, points: int = 1200, *, metrics: bool = True, keys: str = "dbc") -> None:
    """What a run of three stages says; load_data was a hit. keys: of the others, 64 times each letter."""
    tokenize, train, evaluate = (letter * 64 for letter in keys)
    plot = folder / "confusion_matrix.png"
    plot.write_bytes(b"\x89PNG plot")
    tracker.stage_ended("load_data", action="hit", key="a" * 64, artifact="sha256:" + "a" * 64)
    tracker.stage_started("tokenize_text", tokenize)
    tracker.stage_ended(
        "tokenize_text", action="ran", key=tokenize, artifact="sha256:" + "d" * 64, metrics={"tokens": 9},
        lengths={"train": {"8": 3, "16": 5}, "test": {"8": 1}},
    )  # fmt: skip
    tracker.dataset("emotion", "sha256:" + "a" * 64, note="philschmid/emotion", context="training")
    tracker.stage_started("train", train, {"learning_rate": 3e-5})
    for step in range(points if metrics else 0):
        tracker.metrics("train", step, {"loss": 1 / (step + 1), "learning_rate": 3e-5})
    tracker.stage_ended(
        "train", action="ran", key=train, artifact="sha256:" + "b" * 64, seconds=12.5,
        metrics={"train_loss": 0.25}, figures={"samples_per_second": 70.0, "device": "cpu"},
    )  # fmt: skip
    tracker.stage_started("evaluate_model", evaluate)
    tracker.stage_ended(
        "evaluate_model", action="ran", key=evaluate, artifact="sha256:" + "c" * 64, seconds=1.0,
        metrics={"f1_weighted": 0.92, "per_class": {"joy": {"f1": 0.9}}}, plots=(plot,),
    )  # fmt: skip
    plot.unlink()


def started(home: Path, run: str = "r1", uri: str | None = None) -> Tracker:
    return Tracker(home, run, "demo", settings=SETTINGS, tags={"commit": "abc"}, experiment="tests", uri=uri)


def database_of(home: Path) -> str:
    """The address of a home's own database."""
    return absolute_uri(f"sqlite:///{home}/mlflow.db")


def client(uri: str):
    from mlflow import MlflowClient

    return MlflowClient(uri)


def client_of(home: Path):
    return client(database_of(home))


def runs_of(mlflow, run: str) -> dict[str, object]:
    """MLflow's runs of a pipeline run, by stage; the parent under the empty name."""
    experiment = mlflow.get_experiment_by_name("tests").experiment_id
    found = mlflow.search_runs([experiment], f"tags.`trnflow.run` = '{run}'")
    by_stage = {item.data.tags["trnflow.stage"]: item for item in found}
    assert len(by_stage) == len(found), "a run was made twice"
    return by_stage


def check_complete(mlflow, run: str, points: int = 1200) -> None:
    """Everything that `speak` said is there, once."""
    runs = runs_of(mlflow, run)
    assert set(runs) == {"", "tokenize_text", "train", "evaluate_model"}
    assert {item.info.status for item in runs.values()} == {"FINISHED"}
    parent, train, evaluate = runs[""], runs["train"], runs["evaluate_model"]
    assert train.data.tags["mlflow.parentRunId"] == parent.info.run_id
    for name in ("loss", "learning_rate"):
        steps = [point.step for point in mlflow.get_metric_history(train.info.run_id, name)]
        assert sorted(steps) == list(range(points))
    assert train.data.params == {"learning_rate": "3e-05"}
    assert train.data.metrics["train_loss"] == 0.25
    assert train.data.metrics["samples_per_second"] == 70.0
    assert evaluate.data.metrics["per_class/joy/f1"] == 0.9
    assert parent.data.metrics["evaluate_model/f1_weighted"] == 0.92
    assert parent.data.metrics["train/seconds"] == 12.5


def trained(spool: Spool, key: str, steps: range, end: str | None) -> None:
    """What a run says of a training: these steps, and how it ended (None: not at all)."""
    spool.stage_started("train", key, {"learning_rate": 3e-5})
    for step in steps:
        spool.metrics("train", step, {"loss": 1 / step})
    if end == "ran":
        spool.stage_ended(
            "train", action="ran", key=key, artifact="sha256:" + "b" * 64, seconds=1.0, metrics={"train_loss": 0.5}
        )
    spool.run_ended({"ran": "FINISHED", None: "KILLED"}.get(end, str(end)))


def not_uploaded(home: Path, run: str, **tags: str) -> Spool:
    """A run whose spool nobody uploads yet."""
    spool = Spool(home, run)
    spool.run_started(
        "demo", settings={"name": "demo"}, tags=tags, experiment="tests", uri=database_of(home), artifacts=home.as_uri()
    )
    return spool


def wait_until(true) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int):
    """A real tracking server with a database of its own."""
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "served"),
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        environ = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False
