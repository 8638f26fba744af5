"""MLflow by the followers of event logs: everything once, nothing secret, whoever is down or killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.chaos.outside import free_port
from tests.conftest import PROJECT
from tests.helpers.browser import browser_at
from tests.helpers.products import few
from tests.helpers.serving import answers, serving
from tests.helpers.waiting import wait_for
from tests.tracking.runs import (
    begin,
    check_complete,
    client,
    client_of,
    database_of,
    mlflow_server,
    runs_of,
    speak,
    tracked,
)  # fmt: skip
from trnflow.tasks.events import follow, log_file, unsent_runs
from trnflow.tasks.tracking import send_logs, tracking_page
from trnflow.tasks.tracking.addresses import LOCAL_HOSTS
from trnflow.tasks.tracking.follower import Unsent
from trnflow.tasks.tracking.mlflow_values import VIEW_TAG

EVIL = "evil.example"
"""A name that its owner lets point to this machine."""
TRIES = """
(async () => {
  const said = {}, url = "%s/ajax-api/2.0/mlflow/", json = {"Content-Type": "application/json"};
  const attempt = async (name, call) => { try { said[name] = await call(); } catch (error) { said[name] = "no answer"; } };
  const body = JSON.stringify({name: "planted"}), create = url + "experiments/create";
  await attempt("read", async () => (await fetch(url + "experiments/search?max_results=9")).status);
  await attempt("json", async () => (await fetch(create, {method: "POST", body, headers: json})).status);
  for (const [name, sent] of [["text", body], ["blob", new Blob([body])], ["form", new URLSearchParams({name: "planted"})]])
    await attempt(name, async () => (await fetch(create, {method: "POST", body: sent, mode: "no-cors"})).type);
  const upload = {method: "PUT", body: "<script>1</script>"};
  await attempt("upload", async () => (await fetch(url + "../mlflow-artifacts/artifacts/planted.html", upload)).status);
  window.said = said;
})()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home with one finished run in its own sqlite MLflow."""
    home = tmp_path_factory.mktemp("home")
    with tracked(home) as log:
        speak(log, home)
    assert log.readers[0].note == ""
    wait_for(lambda: not Unsent(home, "r1").folder.exists())
    return home


def test_a_run_is_in_mlflow_once_it_is_finished(home):
    mlflow = client_of(home)
    check_complete(mlflow, "r1")
    parent = runs_of(mlflow, "r1")[""]
    assert parent.info.run_name == "demo r1"
    assert parent.data.params["train.learning_rate"] == "3e-05"
    assert parent.data.params["train.betas"] == "[0.9, 0.999]"
    assert parent.data.params["train.epochs"] == "12"  # auto in the recipe
    assert parent.data.tags["commit"] == "abc"
    assert parent.data.tags["trnflow.action.load_data"] == "hit"
    assert parent.data.tags["trnflow.artifact.train"] == "sha256:" + "b" * 64
    lineage = parent.inputs.dataset_inputs[0]
    source = "s3://***@bucket/emotion?X-Amz-Signature=***&part=1"
    assert (lineage.dataset.name, lineage.tags[0].value) == (source, "training")
    assert json.loads(lineage.dataset.source)["note"] == f"data.source={source}"


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
    assert [file for file in files if b"sesame" in file.read_bytes()] == [log_file(home, "r1")], "it looks like a token"


def test_sending_the_same_again_changes_nothing(home):
    """As after a crash between sending and noting that it was sent."""
    unsent = Unsent(home, "r1")
    unsent.save({"offset": 0})
    (unsent.folder / "evaluate_model").mkdir()
    (unsent.folder / "evaluate_model/confusion_matrix.png").write_bytes(b"\x89PNG plot")
    assert send_logs(home) == 1
    check_complete(client_of(home), "r1")


def test_a_killed_run_is_shown_as_killed(home):
    script = (
        "import os, sys, signal; from pathlib import Path; sys.path.insert(0, '.');"
        "from tests.tracking.runs import begin, tracked; context = tracked(Path(sys.argv[1]), 'killed');"
        "log = context.__enter__(); emit = begin(log, 'train', 'k'); emit({'metrics': {'step': 3, 'values': {'loss': 0.5}}});"
        "os.write(log._descriptor, b'{\"half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(home)], cwd=PROJECT)
    assert killed.returncode == -signal.SIGKILL
    wait_for(lambda: not Unsent(home, "killed").exists())
    runs = runs_of(client_of(home), "killed")
    assert {stage: item.info.status for stage, item in runs.items()} == {"": "KILLED", "train": "KILLED"}
    assert runs["train"].data.metrics == {"loss": 0.5}
    assert log_file(home, "killed").read_bytes().endswith(b'{"half'), "a follower changes no log"


def test_a_server_that_is_down_costs_one_line(tmp_path):
    with tracked(tmp_path, uri="http://me:hunter2@127.0.0.1:9") as log:
        speak(log, tmp_path)
        wait_for(lambda: Unsent(tmp_path, "r1").warning.exists())
        log.note("another event")
        log.note("and one more")
    warned = [event for event in follow(log_file(tmp_path, "r1"))[0] if event["event"] == "note"]
    assert [event["level"] for event in warned] == ["info", "warning", "info"], "told once, while the run goes on"
    assert log.readers[0].note == (
        f"MLflow at http://***@127.0.0.1:9 does not answer; the run is kept in {log_file(tmp_path, 'r1')} "
        "and uploaded by the next run"
    )
    assert unsent_runs(tmp_path) == ["r1"]


@pytest.mark.nightly
def test_what_a_server_missed_is_sent_by_a_later_run(tmp_path):
    port = free_port()
    uri = f"http://me:hunter2@127.0.0.1:{port}"
    with tracked(tmp_path, "first", uri) as log:
        speak(log, tmp_path)
    assert "does not answer" in log.readers[0].note
    with mlflow_server(tmp_path, port):
        with tracked(tmp_path, "second", uri) as log:
            speak(log, tmp_path, keys="efg")  # of the same keys it would be the same stages, begun again
        assert log.readers[0].note == ""
        wait_for(lambda: not unsent_runs(tmp_path))
        for run in ("first", "second"):
            check_complete(client(f"http://127.0.0.1:{port}"), run)
    assert [file for file in tmp_path.rglob("*.jsonl") if b"hunter2" in file.read_bytes()] == []


@pytest.mark.slow
def test_a_run_whose_server_lost_its_database_is_sent_whole(tmp_path: Path) -> None:
    """In mid run MLflow's server gets an empty database: the ids of its runs, which the follower had, mean nothing any more."""
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with tracked(tmp_path, uri=uri) as log:
        with mlflow_server(tmp_path, port):
            begin(log, "tokenize_text", "d" * 64)
            wait_for(lambda: Unsent(tmp_path, "r1").load()["offset"] > 0)
        for file in tmp_path.glob("server.db*"):
            file.unlink()
        speak(log, tmp_path)
        wait_for(lambda: Unsent(tmp_path, "r1").warning.exists())
    with mlflow_server(tmp_path, port):
        assert send_logs(tmp_path) == 1
        check_complete(client(uri), "r1")


@pytest.mark.slow
@pytest.mark.parametrize("instead", few(["nothing", "a folder", "other bytes"], 2))
def test_a_local_database_that_is_gone_for_good_costs_its_pages_until_it_is_mended(
    tmp_path: Path, instead: str
) -> None:
    """Nothing in its place: MLflow makes another, which gets the run whole. A folder or other bytes: one line names them."""
    database = tmp_path / "mlflow.db"
    with tracked(tmp_path) as log:
        begin(log, "tokenize_text", "d" * 64)
        wait_for(lambda: Unsent(tmp_path, "r1").load()["offset"] > 0)
        for file in tmp_path.glob("mlflow.db*"):
            file.unlink()
        if instead == "a folder":
            database.mkdir()
        elif instead == "other bytes":
            database.write_bytes(b"no database" * 1000)
        speak(log, tmp_path)
    if instead != "nothing":
        assert "mlflow.db" in log.readers[0].note and "Traceback" not in log.readers[0].note
        assert unsent_runs(tmp_path) == ["r1"]
        database.rmdir() if database.is_dir() else database.unlink()
    assert send_logs(tmp_path) in (0, 1)
    check_complete(client_of(tmp_path), "r1")
    assert unsent_runs(tmp_path) == []


def test_a_killed_follower_is_made_good_by_the_next(home):
    with tracked(home, "shot") as log:
        begin(log, "tokenize_text", "d" * 64)
        wait_for(lambda: Unsent(home, "shot").load()["offset"] > 0)
        log.readers[0]._process.kill()
        log.readers[0]._process.wait()
        speak(log, home, points=600)
    assert unsent_runs(home) == ["shot"]
    assert send_logs(home) == 1
    check_complete(client_of(home), "shot", points=600)


def test_a_run_that_an_exception_ends_failed(tmp_path):
    with pytest.raises(ValueError, match="stage"), tracked(tmp_path, is_sent=False):
        raise ValueError("stage")
    assert send_logs(tmp_path) == 1
    assert runs_of(client_of(tmp_path), "r1")[""].info.status == "FAILED"


@pytest.mark.parametrize("error", [None, "no such column"])
def test_a_run_without_a_stage_that_begins_is_not_sent_unless_it_fails(error: str | None, tmp_path: Path) -> None:
    """The server does not answer, so what is worth sending stays."""
    with contextlib.suppress(ValueError), tracked(tmp_path, uri="http://127.0.0.1:9") as log:
        log.write("stage_begun", stage="score_rows", key="k", attempt="a", settings={})  # not in the plan
        if error:
            raise ValueError(error)
    assert bool(unsent_runs(tmp_path)) == bool(log.readers[0].note) == bool(error)
    assert (log.readers[0]._process is not None) == bool(error)


def test_runs_that_an_earlier_version_left_are_named(tmp_path: Path) -> None:
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking/old.jsonl").write_text("{}\n")
    with tracked(tmp_path) as log:
        begin(log, "train", "k")
    assert log.readers[0].note.startswith("1 runs of an earlier version of trnflow, such as ")


def test_the_page_is_that_of_the_experiments_runs_once_its_id_is_known(home):
    """Without the id in the address, an experiment's page opens on "Traces"."""
    uri = database_of(home)
    number = client(uri).get_experiment_by_name("tests").experiment_id
    page, _, command = tracking_page(home, uri, Path(), "tests").partition(" after ")
    assert page.startswith(f"http://127.0.0.1:5000/#/experiments/{number}/runs?workflowType=machine_learning&")
    assert command.endswith(
        f"mlflow ui --host 127.0.0.1 --workers 1 --allowed-hosts {LOCAL_HOSTS} --backend-store-uri {uri}`"
    )
    assert tracking_page(home, uri, Path(), "others").startswith("http://127.0.0.1:5000/#/experiments after ")


@pytest.mark.slow
def test_the_printed_command_answers_to_the_names_of_this_machine_alone(tmp_path: Path) -> None:
    port = free_port()
    page = tracking_page(tmp_path, f"sqlite:///{tmp_path}/mlflow.db", Path(), "tests")
    command = page.partition("`")[2].rstrip("`").replace(":5000", f":{port}") + f" --port {port}"
    with (tmp_path / "log").open("wb") as log:
        environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        server = subprocess.Popen(
            f"exec env {command}", shell=True, cwd=tmp_path, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
        hosts = [
            f"127.0.0.1:{port}",
            f"localhost:{port}",
            f"evil.example:{port}",
            f"10.evil.example:{port}",
            "10.evil.example",
        ]
        assert [status(port, host) for host in hosts] == [200, 200, 403, 403, 403]
        check_other_origins(tmp_path, port)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def check_other_origins(folder: Path, port: int) -> None:
    """A page of another site neither reads nor writes, by the server's address or by a name of its own that leads here."""
    (folder / "page").mkdir()
    (folder / "page/index.html").write_text("<title>another</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=folder / "page")
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as other:
        site = f"http://{EVIL}:{other.server_port}"
        with browser_at(site, folder, f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as page:
            page.wait_for("document.title == 'another'")
            for name in ("127.0.0.1", EVIL):
                page.value(f"(delete window.said, {TRIES % f'http://{name}:{port}'})")
                page.wait_for("window.said")
                said = page.value("window.said")
                assert said["read"] == said["json"] == said["upload"] == "no answer"
                assert {"text", "blob", "form"} <= said.keys()
    address = f"http://127.0.0.1:{port}/ajax-api/2.0/mlflow/experiments/search?max_results=9"
    with urllib.request.urlopen(address) as answer:
        assert [each["name"] for each in json.load(answer)["experiments"]] == ["Default"]
    assert not [*folder.rglob("planted.html")]


def status(port: int, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/ajax-api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host})
    return connection.getresponse().status


@pytest.mark.slow
def test_the_page_of_the_runs_shows_their_metrics_and_whole_names(tmp_path: Path) -> None:
    """Also of an experiment that was made without the view. A view that a user changed stays."""
    from mlflow.tracking import MlflowClient

    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    run = "20261125T153215Z-07e29b"
    with mlflow_server(tmp_path, port):
        number = MlflowClient(uri).create_experiment("tests")
        with tracked(tmp_path, run, uri) as log:
            speak(log, tmp_path, points=2)
        wait_for(lambda: not unsent_runs(tmp_path))
        with browser_at(tracking_page(tmp_path, uri, Path(), "tests"), tmp_path) as page:
            page.call("Emulation.setDeviceMetricsOverride", width=1800, height=700, deviceScaleFactor=1, mobile=False)
            page.wait_for("document.body.innerText.includes('evaluate_model/f1_weighted')")
            page.wait_for("document.body.innerText.includes('0.92')")
            name = f"[...document.querySelectorAll('.ag-row a span')].find(name => name.innerText == 'demo {run}')"
            page.wait_for(f"{name}?.scrollWidth <= {name}.clientWidth")  # MLflow would end it in dots
        MlflowClient(uri).set_experiment_tag(number, VIEW_TAG, "changed")
        with tracked(tmp_path, "r2", uri) as log:
            speak(log, tmp_path, points=2, keys="efg")
        wait_for(lambda: not unsent_runs(tmp_path))
        assert MlflowClient(uri).get_experiment(number).tags[VIEW_TAG] == "changed"


def test_a_driver_that_is_not_installed_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "psycopg2.py").write_text("raise ModuleNotFoundError('no such module', name='psycopg2')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with tracked(tmp_path, uri="postgresql://me:pw@127.0.0.1:9/mlflow") as log:
            begin(log, "train", "k")
    assert log.readers[0].note.startswith(
        "MLflow at postgresql://***@127.0.0.1:9/mlflow needs a driver that is not installed: pip install 'trnflow[postgres]'; "
    )


def test_the_first_two_runs_of_a_home_may_be_sent_at_once(tmp_path: Path) -> None:
    """MLflow makes the tables of a new database at the first request, and two processes at once leave half of them."""
    with tracked(tmp_path, "r1") as first, tracked(tmp_path, "r2") as second:
        for log, keys in ((first, "dbc"), (second, "efg")):  # two runs with one key share its nested run
            speak(log, tmp_path, points=2, keys=keys)
    assert [log.readers[0].note for log in (first, second)] == ["", ""]
    mlflow = client_of(tmp_path)
    assert all(len(runs_of(mlflow, run)) > 1 for run in ("r1", "r2"))
