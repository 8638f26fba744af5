"""What runs write in their event logs, and what MLflow should have of it; for tests."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.serving import answers
from tests.helpers.waiting import wait_for
from trnflow.tasks.artifact import Json
from trnflow.tasks.events import Emit, EventLog, log_file
from trnflow.tasks.system.redaction import hide_secrets
from trnflow.tasks.tracking import MlflowDelivery, destination, tracking_address
from trnflow.tasks.tracking.follower import Unsent

PATIENCE = 120.0
SETTINGS = {
    "name": "demo",
    "train": {"learning_rate": 3e-5, "epochs": "auto", "devices": None, "betas": [0.9, 0.999]},
    "data": {"source": "s3://KEY:hunter2@bucket/emotion?X-Amz-Signature=hunter2&part=1"},
    "model": {"config": {"pad_token": "<pad>"}, "hf_token": "sesame"},
    "launch": {"environment": {"ANYTHING": "hunter2"}},
}
STAGES = ("load_data", "tokenize_text", "train", "evaluate_model")


@contextlib.contextmanager
def tracked(
    home: Path, run: str = "r1", uri: str | None = None, *, is_sent: bool = True, parent: str | None = None
) -> Iterator[EventLog]:
    """A run with a plan, sent to MLflow while it runs, or left unsent."""
    uri, log = uri or database_of(home), EventLog()
    if is_sent:
        log.readers.append(MlflowDelivery(home, tracking_address(home, uri), wait_seconds=PATIENCE))
    else:
        Unsent(home, run).save({"offset": 0})
    tracking = {**destination(home, uri, Path(), "tests"), "tags": {"commit": "abc"}}
    begun = {"settings": hide_secrets(SETTINGS), "options": {}, "store": "s", "host": {}, "checkout": None}
    with log.writing(home, run, recipe="demo", kind="run", parent=parent, tracking=tracking, **begun):
        log.write("planned", stages=[{"stage": name, "action": "run"} for name in STAGES])
        yield log


def begin(log: EventLog, stage: str, key: str, **settings: Json) -> Emit:
    return log.stage(stage, key=key, attempt=f"{log.state.run}-{stage}-1", settings=settings)


def end(log: EventLog, stage: str, key: str, artifact: str, **fields: Json) -> None:
    known = {"action": "ran", "seconds": None, "metrics": {}, "figures": {}, "facts": {}, "why": ""}
    log.write("stage_ended", stage=stage, key=key, artifact=f"sha256:{artifact * 64}", **(known | fields))


def speak(log: EventLog, home: Path, points: int = 1200, *, metrics: bool = True, keys: str = "dbc") -> None:
    """What a run of three stages says, and of two that are not in its plan; load_data was a hit. keys: of the others, 64
    times each letter."""
    tokenize, train, evaluate = (letter * 64 for letter in keys)
    plot = Unsent(home, log.state.run).folder / "evaluate_model" / "confusion_matrix.png"
    plot.parent.mkdir(parents=True)
    plot.write_bytes(b"\x89PNG plot")
    end(log, "load_data", "a" * 64, "a", action="hit", kind="rows")
    begin(log, "tokenize_text", tokenize)
    lengths = {"train": {"8": 3, "16": 5}, "test": {"8": 1}}
    end(log, "tokenize_text", tokenize, "d", metrics={"tokens": 9}, lengths=lengths)
    emit = begin(log, "train", train, learning_rate=3e-5)
    for step in range(points if metrics else 0):
        emit({"metrics": {"step": step, "values": {"loss": 1 / (step + 1), "learning_rate": 3e-5}}})
    figures = {"samples_per_second": 70.0, "device": "cpu"}
    end(log, "train", train, "b", seconds=12.5, metrics={"train_loss": 0.25}, figures=figures, chosen={"epochs": 12})
    begin(log, "evaluate_model", evaluate)
    scores = {"f1_weighted": 0.92, "per_class": {"joy": {"f1": 0.9}}}
    end(log, "evaluate_model", evaluate, "c", seconds=1.0, metrics=scores, plots=[plot.name])
    begin(log, "score_rows", "e" * 64)
    end(log, "score_rows", "e" * 64, "e", metrics={"f1_weighted": 0.9})
    begin(log, "tokenize_text", "f" * 64)  # of the rows that are scored
    end(log, "tokenize_text", "f" * 64, "f", metrics={"tokens": 2}, lengths={"test": {"8": 1}})


@functools.cache
def empty_database() -> Path:
    """A database with MLflow's tables, to copy: MLflow takes a second to make them."""
    from mlflow import MlflowClient

    file = Path(tempfile.mkdtemp(prefix="trnflow-mlflow-")) / "mlflow.db"
    atexit.register(shutil.rmtree, file.parent)
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


def database_of(home: Path) -> str:
    """The address of a home's own database."""
    return tracking_address(home, f"sqlite:///{home}/mlflow.db")


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
    assert parent.data.tags["trnflow.artifact.tokenize_text"] == f"sha256:{'d' * 64}"
    assert runs["tokenize_text"].data.metrics["tokens"] == 9


def trained(
    home: Path, run: str, key: str, steps: range, *, is_killed: bool = False, parent: str | None = None
) -> None:
    """A run that trains these steps, unsent. is_killed: it was killed in its training."""
    with tracked(home, run, is_sent=False, parent=parent) as log:
        emit = begin(log, "train", key, learning_rate=3e-5)
        for step in steps:
            emit({"metrics": {"step": step, "values": {"loss": 1 / step}}})
        if not is_killed:
            end(log, "train", key, "b", seconds=1.0, metrics={"train_loss": 0.5})
    if is_killed:
        file = log_file(home, run)
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]) + b'{"n": 9, "ti')


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
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
