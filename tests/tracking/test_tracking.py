"""MLflow through the spool: everything once, nothing secret, whoever is down or killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.system.redaction import redact
from tasks.tracking import Tracker, absolute_uri, tracking_page, upload_left
from tasks.tracking.mlflow_values import flatten, numbers
from tasks.tracking.spool import Spool, SpoolFiles

PROJECT = Path(__file__).resolve().parents[2]
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


def client(uri: str):
    from mlflow import MlflowClient

    return MlflowClient(uri)


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
    mlflow = client(absolute_uri(f"sqlite:///{home}/mlflow.db"))
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
    mlflow = client(absolute_uri(f"sqlite:///{home}/mlflow.db"))
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
    check_complete(client(absolute_uri(f"sqlite:///{home}/mlflow.db")), "r1")


def test_a_killed_run_is_shown_as_killed(home):
    script = (
        "import os, sys, signal; from pathlib import Path; sys.path.insert(0, '.');"
        "from tests.tracking.test_tracking import started; tracker = started(Path(sys.argv[1]), 'killed');"
        "tracker.stage_started('train', 'k'); tracker.metrics('train', 3, {'loss': 0.5});"
        "os.write(tracker._handle.fileno(), b'{\"half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(home)], cwd=PROJECT)
    assert killed.returncode == -signal.SIGKILL
    wait_until(lambda: not SpoolFiles(home, "killed").events.exists())
    runs = runs_of(client(absolute_uri(f"sqlite:///{home}/mlflow.db")), "killed")
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
    check_complete(client(absolute_uri(f"sqlite:///{home}/mlflow.db")), "shot")


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


def test_a_run_left_by_an_exception_failed(tmp_path):
    files = SpoolFiles(tmp_path, "r1")
    with files.upload_lock(), pytest.raises(ValueError, match="stage"), started(tmp_path):
        raise ValueError("stage")
    assert files.read(0)[0][-1]["status"] == "FAILED"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("learning_rate", True), ("tokenizer", True), ("max_length", True), ("pad_token", True), ("max_tokens", True),
        ("hf_token", False), ("token", False), ("AWS_SECRET_ACCESS_KEY", False), ("api-key", False), ("password", False),
        ("environment", False), ("github_pat", False),
    ],
)  # fmt: skip
def test_names_that_speak_of_secrets_are_dropped(name, kept):
    assert (name in redact({name: "x"})) is kept


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_redaction_keeps_what_is_no_secret(value):
    assert json.dumps(redact({"a": value})) == json.dumps({"a": value})


def test_settings_and_figures_become_flat():
    assert flatten({"a": {"b": 1, "c": {}}, "d": "x" * 7000, "e é!": None}) == {
        "a.b": "1", "a.c": "{}", "d": "x" * 5999 + "…", "e é_": "null",
    }  # fmt: skip
    assert numbers({"f1": 1, "ok": True, "names": ["a"], "by": {"x": 0.5}}) == {"f1": 1.0, "by/x": 0.5}


def test_the_page_is_that_of_the_experiments_runs_once_its_id_is_known(home, tmp_path):
    """Without the id in the address, an experiment's page opens on "Traces"."""
    assert (
        tracking_page(tmp_path, "https://me:pw@mlflow.example/", "tests") == "https://***@mlflow.example/#/experiments"
    )
    uri = absolute_uri(f"sqlite:///{home}/mlflow.db")
    number = client(uri).get_experiment_by_name("tests").experiment_id
    page, _, command = tracking_page(home, uri, "tests").partition(" after ")
    assert page == f"http://127.0.0.1:5000/#/experiments/{number}/runs?workflowType=machine_learning"
    assert command.endswith(f"mlflow ui --host 127.0.0.1 --workers 1 --backend-store-uri {uri}`")
    assert tracking_page(home, uri, "others").startswith("http://127.0.0.1:5000/#/experiments after ")


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
    runs = runs_of(client(absolute_uri(f"sqlite:///{tmp_path}/mlflow.db")), "r1")
    single = {stage: {*run.data.metrics} - {"curve"} for stage, run in runs.items()}
    assert all(len(names) <= 8 for names in single.values()), single
    assert {"evaluate_model/f1_weighted", "evaluate_model/accuracy", "train/seconds"} <= single[""]
    assert {"f1_weighted", "accuracy", "seconds"} <= single["evaluate_model"]
    assert "curve" in runs["train"].data.metrics


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
    uri = absolute_uri(f"sqlite:///{home}/mlflow.db")
    spool.run_started(
        "demo", settings={"name": "demo"}, tags=tags, experiment="tests", uri=uri, artifacts=home.as_uri()
    )
    return spool


def check_one_training(home: Path, runs: list[str], key: str, steps: range) -> None:
    """All of `runs` trained the same key: one nested run, the last one's, with the whole curve."""
    mlflow = client(absolute_uri(f"sqlite:///{home}/mlflow.db"))
    experiment = mlflow.get_experiment_by_name("tests").experiment_id
    (train,) = mlflow.search_runs([experiment], f"tags.`trnflow.key` = '{key}'")
    parents = {run: mlflow.search_runs([experiment], f"tags.`trnflow.run` = '{run}' and tags.`trnflow.stage` = ''")[0]
               for run in runs}  # fmt: skip
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
    mlflow = client(absolute_uri(f"sqlite:///{tmp_path}/mlflow.db"))
    assert {run: set(runs_of(mlflow, run)) for run in ("r1", "r2", "r3", "r4")} == {
        run: {"", "train"} for run in ("r1", "r2", "r3", "r4")
    }


def test_a_driver_that_is_not_installed_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "psycopg2.py").write_text("raise ModuleNotFoundError('no such module', name='psycopg2')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        tracker = started(tmp_path, "r1", "postgresql://me:pw@127.0.0.1:9/mlflow")
        warning = tracker.finish("FINISHED", PATIENCE)
    assert warning and warning.startswith(
        "MLflow at postgresql://***@127.0.0.1:9/mlflow needs a driver that is not installed: pip install 'trnflow[postgres]'; "
    )


def test_trials_are_nested_in_the_run_of_their_sweep(tmp_path: Path) -> None:
    for run in ("s1", "t1"):
        trained(
            not_uploaded(tmp_path, run, **({"trnflow.sweep": "s1"} if run == "t1" else {})),
            "d" * 64,
            range(1, 3),
            "ran",
        )
        assert upload_left(tmp_path) == 1
    mlflow = client(absolute_uri(f"sqlite:///{tmp_path}/mlflow.db"))
    experiment = mlflow.get_experiment_by_name("tests").experiment_id
    sweep, trial = (mlflow.search_runs([experiment], f"tags.`trnflow.run` = '{run}' and tags.`trnflow.stage` = ''")[0]
                    for run in ("s1", "t1"))  # fmt: skip
    assert trial.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert "mlflow.parentRunId" not in sweep.data.tags


def test_the_first_two_runs_of_a_home_may_be_uploaded_at_once(tmp_path: Path) -> None:
    """MLflow makes the tables of a new database at the first request, and two processes at once leave half of them."""
    runs = [started(tmp_path, run) for run in ("r1", "r2")]
    for run, keys in zip(runs, ("dbc", "efg"), strict=True):  # two runs with one key share its nested run
        speak(run, tmp_path, points=2, keys=keys)
    assert [run.finish("FINISHED", wait_seconds=PATIENCE) for run in runs] == [None, None]
    mlflow = client(absolute_uri(f"sqlite:///{tmp_path}/mlflow.db"))
    assert all(len(runs_of(mlflow, run)) > 1 for run in ("r1", "r2"))
