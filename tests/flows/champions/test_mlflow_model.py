"""MLflow alone loads, serves and runs the champion, with the answers of `trnflow predict`."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import RECIPE, write_rows
from tests.flows.champions.test_language_model import RECIPE as LM_RECIPE
from tests.helpers.command_line import InProcessShell
from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.serving import answers, free_port
from tests.helpers.waiting import wait_for
from trnflow.tasks.events import unsent_runs

pytestmark = pytest.mark.slow

NO_TRACKING = "tracking: {enabled: false}\n"
LOAD = """
import json, sys, mlflow
from pandas import DataFrame
model = mlflow.pyfunc.load_model("models:/tiny@champion")
print(json.dumps(model.predict(DataFrame(json.loads(sys.argv[1])))))
"""
SECRET = "hunter2hunter2"


class Champion:
    """A recipe's champion, as MLflow shows it to a process that knows its tracking address alone."""

    def __init__(self, folder: Path, recipe: str, store: str | None = None) -> None:
        self.shell, self.elsewhere = InProcessShell(folder), folder / "elsewhere"
        self.elsewhere.mkdir()
        if store is not None:
            self.shell.environ["TRNFLOW_STORE"] = store
        (folder / "tiny.yaml").write_text(recipe.replace(NO_TRACKING, ""))
        self.shell.environ["ANY_TOKEN"] = SECRET
        self.shell.json("run", "tiny.yaml", "--direct", "--until", "consolidate", "export.target=none")
        self.shell.json("promote", "tiny.yaml", "export.target=none")
        wait_for(lambda: not unsent_runs(folder / ".trnflow"))
        self.environ = {
            **{name: value for name, value in self.shell.environ.items() if name != "TRNFLOW_STORE"},
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/.trnflow/mlflow.db",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # MLflow starts `uvicorn` by its name
        }

    def predict(self, rows: list[dict[str, str]]) -> Any:
        (self.shell.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return self.shell.json("predict", "tiny@champion", "--file", "rows.jsonl")["results"]

    def alone(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=self.elsewhere, env=self.environ, capture_output=True, text=True
        )

    def load(self, rows: list[dict[str, str]]) -> Any:
        loaded = self.alone("-c", LOAD, json.dumps(rows))
        assert loaded.returncode == 0, loaded.stderr
        return json.loads(loaded.stdout)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Champion:
    folder = tmp_path_factory.mktemp("classifier")
    write_rows(folder / "rows", {"pos": "pos", "neg": "neg"})
    return Champion(folder, RECIPE)


ROWS = [{"text": "a happy day"}, {"text": "rainy and sad, 2"}, {"text": " ".join(["long"] * 40)}]


def test_a_loaded_classifier_answers_as_predict(classifier: Champion) -> None:
    expected = classifier.predict([*ROWS, {"text": " "}])
    rows = [{**row, "id": number} for number, row in enumerate([*ROWS, {"text": " "}])]  # MLflow drops the id
    assert classifier.load(rows) == expected and expected[2]["cut"] > 0
    assert (expected[3]["label"], expected[3]["remark"]) == (None, "the text is empty")


@pytest.mark.nightly
def test_a_loaded_text_generator_of_a_store_on_s3_answers_as_predict(tmp_path: Path, s3_root: str) -> None:  # noqa: F811
    """The model names the store: the process that loads it has the credentials alone."""
    champion = Champion(tmp_path, LM_RECIPE, s3_root)
    rows = [{"instruction": "Return the absolute value of a number."}, {"instruction": "Add two numbers."}]
    expected = champion.predict(rows)
    assert champion.load(rows) == expected and len(expected[0]["generated"]) > 0
    assert not (tmp_path / ".trnflow/store").exists()


def test_a_batch_of_csv_is_predicted_as_by_predict(classifier: Champion) -> None:
    """JSON is what the server below takes."""
    (classifier.elsewhere / "rows.csv").write_text("\n".join(["text", *(f'"{row["text"]}"' for row in ROWS)]))
    found = classifier.alone(
        "-m", "mlflow", "models", "predict", "-m", "models:/tiny@champion", "--env-manager", "local",
        "-t", "csv", "-i", "rows.csv", "-o", "out.json",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    document = json.loads((classifier.elsewhere / "out.json").read_text())
    assert document == {"predictions": classifier.predict(ROWS)}


def test_a_served_classifier_answers_as_predict_and_says_what_a_row_lacks(classifier: Champion) -> None:
    with served(classifier) as url:
        assert post(url, {"dataframe_records": ROWS}) == (200, {"predictions": classifier.predict(ROWS)})
        status, document = post(url, {"dataframe_records": [{"text": None}]})
        assert status == 400
        assert "row 1: the column text is missing or null. Fix: give every row a text" in document["message"]


def test_the_description_names_a_command_that_gets_the_weights(classifier: Champion) -> None:
    script = "import mlflow; print(mlflow.MlflowClient().get_registered_model('tiny').description)"
    lines = classifier.alone("-c", script).stdout.splitlines()
    (command,) = [line.strip() for line in lines if line.strip().startswith("trnflow get")]
    gotten = classifier.shell(*shlex.split(command)[1:-1], "weights")
    assert gotten.returncode == 0, gotten.stderr
    assert (classifier.shell.folder / "weights/model.safetensors").exists()


def test_predict_names_what_helps_against_a_lost_blob_of_the_champion(classifier: Champion, tmp_path: Path) -> None:
    blobs = classifier.shell.folder / ".trnflow/store/blobs"
    kept = tmp_path / "blobs"
    shutil.copytree(blobs, kept)
    weights = classifier.shell.folder / "weights/model.safetensors"
    same = [file for file in blobs.rglob("*") if file.is_file() and file.read_bytes() == weights.read_bytes()]
    assert same
    for file in same:
        file.unlink()
    try:
        error = classifier.shell.error("predict", "tiny@champion", "a text", code=1)
        assert "the blob of model.safetensors" in error and len(error.strip().splitlines()) == 2
        assert "`trnflow run tiny` makes anew" in error and "`trnflow rollback tiny`" in error
    finally:
        shutil.rmtree(blobs)
        shutil.move(kept, blobs)


def test_weights_that_someone_changed_in_the_store_are_not_loaded(classifier: Champion, tmp_path: Path) -> None:
    """The bytes have to be those of the digest that MLflow keeps, also where size and time of the file are as before."""
    blobs, kept = classifier.shell.folder / ".trnflow/store/blobs", tmp_path / "blobs"
    shutil.copytree(blobs, kept)
    classifier.shell("get", "last", "consolidate", str(tmp_path / "model"))
    digest = hashlib.sha256((tmp_path / "model/model.safetensors").read_bytes()).hexdigest()
    (weights,) = (file for file in blobs.rglob("*") if digest.endswith(file.name))
    content, times = bytearray(weights.read_bytes()), weights.stat()
    content[-1] ^= 1
    weights.chmod(0o600)
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        loaded = classifier.alone("-c", LOAD, json.dumps(ROWS))
        assert loaded.returncode == 1 and "the blob of model.safetensors" in loaded.stderr.splitlines()[-1]
    finally:
        shutil.rmtree(blobs)
        shutil.copytree(kept, blobs)


def test_a_lost_model_is_one_line_with_the_fix(classifier: Champion, tmp_path: Path) -> None:
    kept = tmp_path / "blobs"
    shutil.move(classifier.shell.folder / ".trnflow/store/blobs", kept)
    try:
        last = classifier.alone("-c", LOAD, json.dumps(ROWS)).stderr.strip().splitlines()[-1]
        assert "mlflow.exceptions.MlflowException: the manifest sha256:" in last and "Fix: `trnflow run`" in last
    finally:
        shutil.move(kept, classifier.shell.folder / ".trnflow/store/blobs")


def test_a_store_that_moved_is_named_by_its_variable(classifier: Champion, tmp_path: Path) -> None:
    place, moved = classifier.shell.folder / ".trnflow/store", tmp_path / "moved"
    expected = classifier.predict(ROWS)
    shutil.move(place, moved)
    try:
        assert "Fix: set TRNFLOW_STORE" in classifier.alone("-c", LOAD, json.dumps(ROWS)).stderr
        classifier.environ["TRNFLOW_STORE"] = str(moved)
        assert classifier.load(ROWS) == expected
    finally:
        classifier.environ.pop("TRNFLOW_STORE", None)
        shutil.move(moved, place)


def test_mlflow_holds_no_secret_and_no_weights(classifier: Champion) -> None:
    files = [file for file in (classifier.shell.folder / ".trnflow/mlartifacts").rglob("*") if file.is_file()]
    assert any(file.name == "stored_model.py" for file in files)
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []
    assert [file for file in files if file.suffix in (".safetensors", ".pkl")] == []


@contextmanager
def served(champion: Champion) -> Iterator[str]:
    """The address of `mlflow models serve`, while the context lasts."""
    port = free_port()
    command = [
        sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/tiny@champion", "--env-manager", "local",
        "-h", "127.0.0.1", "-p", str(port), "-w", "1",
    ]  # fmt: skip
    with (champion.elsewhere / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=champion.elsewhere, env=champion.environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not answers(f"http://127.0.0.1:{port}/ping"):
            assert time.monotonic() < deadline and server.poll() is None, (champion.elsewhere / "serve.log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def post(url: str, document: Any) -> tuple[int, Any]:
    """Return (status, document) of a POST of JSON."""
    request = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
