"""MLflow through the spool: everything once, nothing secret, whoever is down or killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.tracking.runs import (
    PATIENCE,
    check_complete,
    client,
    client_of,
    database_of,
    mlflow_server,
    runs_of,
    speak,
    started,
    wait_until,
)  # fmt: skip
from trnflow.tasks.tracking import tracking_page, upload_left
from trnflow.tasks.tracking.spool import SpoolFiles


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home with one finished run in its own sqlite MLflow."""
    home = tmp_path_factory.mktemp("home")
    tracker = started(home)
    speak(tracker, home)
    os.link(tracker.files.events, home / "events")
    assert tracker.finish("FINISHED", PATIENCE) is None
    assert not tracker.files.events.exists()
    return home


def test_a_run_is_in_mlflow_once_it_is_finished(home):
    mlflow = client_of(home)
    check_complete(mlflow, "r1")
    parent = runs_of(mlflow, "r1")[""]
    assert parent.info.run_name == "demo r1"
    assert parent.data.params["train.learning_rate"] == "3e-05"
    assert parent.data.params["train.betas"] == "[0.9, 0.999]"
    assert parent.data.tags["commit"] == "abc"
    assert parent.data.tags["trnflow.action.load_data"] == "hit"
    assert parent.data.tags["trnflow.artifact.train"] == "sha256:" + "b" * 64
    lineage = parent.inputs.dataset_inputs[0]
    assert (lineage.dataset.name, lineage.tags[0].value) == ("emotion", "training")
    assert json.loads(lineage.dataset.source)["note"] == "philschmid/emotion"


def test_plots_and_the_recipe_are_artifacts(home, tmp_path):
    mlflow = client_of(home)
    runs = runs_of(mlflow, "r1")
    recipe = mlflow.download_artifacts(runs[""].info.run_id, "recipe.yaml", str(tmp_path))
    assert "learning_rate: 3.0e-05" in Path(recipe).read_text()
    plot = mlflow.download_artifacts(runs["evaluate_model"].info.run_id, "confusion_matrix.png", str(tmp_path))
    assert Path(plot).read_bytes() == b"\x89PNG plot"
    lengths = mlflow.download_artifacts(runs["tokenize_text"].info.run_id, "row_lengths.png", str(tmp_path))
    assert Path(lengths).read_bytes().startswith(b"\x89PNG")
    assert str(home / "mlartifacts") in runs[""].info.artifact_uri


def test_no_secret_reaches_the_disk(home):
    files = [file for file in home.rglob("*") if file.is_file()]
    assert any(file.name == "mlflow.db" for file in files)
    assert [file for file in files if b"hunter2" in file.read_bytes()] == []


def test_uploading_the_same_again_changes_nothing(home):
    """As after a crash between sending and noting that it was sent."""
    files = SpoolFiles(home, "r1")
    os.link(home / "events", files.events)
    (files.plots / "evaluate_model").mkdir(parents=True)
    (files.plots / "evaluate_model/confusion_matrix.png").write_bytes(b"\x89PNG plot")
    assert upload_left(home) == 1
    check_complete(client_of(home), "r1")


def test_a_killed_run_is_shown_as_killed(home):
    script = (
        "import os, sys, signal; from pathlib import Path; sys.path.insert(0, '.');"
        "from tests.tracking.runs import started; tracker = started(Path(sys.argv[1]), 'killed');"
        "tracker.stage_started('train', 'k'); tracker.metrics('train', 3, {'loss': 0.5});"
        "os.write(tracker._handle.fileno(), b'{\"half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(home)], cwd=PROJECT)
    assert killed.returncode == -signal.SIGKILL
    wait_until(lambda: not SpoolFiles(home, "killed").events.exists())
    runs = runs_of(client_of(home), "killed")
    assert {stage: item.info.status for stage, item in runs.items()} == {"": "KILLED", "train": "KILLED"}
    assert runs["train"].data.metrics == {"loss": 0.5}


def test_a_server_that_is_down_costs_one_line(tmp_path):
    tracker = started(tmp_path, uri="http://me:hunter2@127.0.0.1:9")
    speak(tracker, tmp_path)
    warning = tracker.finish("FINISHED", PATIENCE)
    assert warning == (
        f"MLflow at http://***@127.0.0.1:9 does not answer; the run is kept in {tracker.files.events} "
        "and uploaded by the next run"
    )
    assert tracker.files.events.exists()


@pytest.mark.nightly
def test_what_a_server_missed_is_uploaded_by_a_later_run(tmp_path):
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    uri = f"http://me:hunter2@127.0.0.1:{port}"
    first = started(tmp_path, "first", uri)
    speak(first, tmp_path)
    assert "does not answer" in (first.finish("FINISHED", PATIENCE) or "")
    with mlflow_server(tmp_path, port):
        second = started(tmp_path, "second", uri)
        speak(second, tmp_path, keys="efg")  # of the same keys it would be the same stages, begun again
        assert second.finish("FINISHED", PATIENCE) is None
        wait_until(lambda: not first.files.events.exists())
        for run in ("first", "second"):
            check_complete(client(f"http://127.0.0.1:{port}"), run)
    assert not first.files.warning.exists()
    assert [file for file in (tmp_path / "tracking").rglob("*.jsonl") if b"hunter2" in file.read_bytes()] == []


def test_a_killed_uploader_is_made_good_by_the_next(home):
    tracker = started(home, "shot")
    wait_until(tracker.files.state.exists)
    tracker._uploader.send_signal(signal.SIGKILL)
    speak(tracker, home)
    assert tracker.finish("FINISHED", PATIENCE) is None
    assert tracker.files.events.exists()
    assert upload_left(home) == 1
    check_complete(client_of(home), "shot")


def test_a_run_left_by_an_exception_failed(tmp_path):
    files = SpoolFiles(tmp_path, "r1")
    with files.upload_lock(), pytest.raises(ValueError, match="stage"), started(tmp_path):
        raise ValueError("stage")
    assert files.read(0)[0][-1]["status"] == "FAILED"


def test_the_page_is_that_of_the_experiments_runs_once_its_id_is_known(home, tmp_path):
    """Without the id in the address, an experiment's page opens on "Traces"."""
    assert (
        tracking_page(tmp_path, "https://me:pw@mlflow.example/", "tests") == "https://***@mlflow.example/#/experiments"
    )
    uri = database_of(home)
    number = client(uri).get_experiment_by_name("tests").experiment_id
    page, _, command = tracking_page(home, uri, "tests").partition(" after ")
    assert page == f"http://127.0.0.1:5000/#/experiments/{number}/runs?workflowType=machine_learning"
    assert command.endswith(f"mlflow ui --host 127.0.0.1 --workers 1 --backend-store-uri {uri}`")
    assert tracking_page(home, uri, "others").startswith("http://127.0.0.1:5000/#/experiments after ")


def test_a_driver_that_is_not_installed_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "psycopg2.py").write_text("raise ModuleNotFoundError('no such module', name='psycopg2')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        tracker = started(tmp_path, "r1", "postgresql://me:pw@127.0.0.1:9/mlflow")
        warning = tracker.finish("FINISHED", PATIENCE)
    assert warning and warning.startswith(
        "MLflow at postgresql://***@127.0.0.1:9/mlflow needs a driver that is not installed: pip install 'trnflow[postgres]'; "
    )


def test_the_first_two_runs_of_a_home_may_be_uploaded_at_once(tmp_path: Path) -> None:
    """MLflow makes the tables of a new database at the first request, and two processes at once leave half of them."""
    runs = [started(tmp_path, run) for run in ("r1", "r2")]
    for run, keys in zip(runs, ("dbc", "efg"), strict=True):  # two runs with one key share its nested run
        speak(run, tmp_path, points=2, keys=keys)
    assert [run.finish("FINISHED", wait_seconds=PATIENCE) for run in runs] == [None, None]
    mlflow = client_of(tmp_path)
    assert all(len(runs_of(mlflow, run)) > 1 for run in ("r1", "r2"))
