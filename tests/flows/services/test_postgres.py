"""Prefect and MLflow on a real PostgreSQL, store and MLflow's files on S3: the commands of the units in services/, with their
variables filled in for this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tests.chaos.data import NAMES, rows
from tests.chaos.house import House, is_final, wait_for
from tests.chaos.outside import BUCKET, KEYS, ObjectStore, end, free_port, wait_for_answer
from tests.flows.prefect_api import Api
from tests.helpers.postgres import OWNER, PASSWORD, Postgres, postgres  # noqa: F401 - a fixture
from tests.helpers.units import start_unit

pytestmark = pytest.mark.nightly  # its six tests take minutes each

KEY = "q8b1C0mWm8dJ2mNf0xT3yZk5uPz7rVh9sLw4aEo6iB8="
LOGIN = "trnflow:a-login-of-a-team-0123456789"
TOKEN = "n0tify-s3cret-token"
"""A part of the address of notifications, which Prefect keeps encrypted in its database."""
DATABASES = ("prefect", "mlflow", "optuna", "own")
NESTED = {"mlflow.parentRunId", "trnflow.stage", "trnflow.action"}
LONG = "train.max_steps=600"
PATIENCE = 900.0
"""Seconds after which something that is awaited counts as lost. On a machine with a load of 13 a retrain took 6 minutes."""


class Operated(House):
    """A project whose servers and worker are the units' commands, and whose commands have the worker's variables."""

    def __init__(self, folder: Path, database: Postgres, store: ObjectStore) -> None:
        self.database, self.store = database, store
        self.ports = {"prefect": free_port(), "mlflow": free_port()}
        self.mlflow_url = f"http://127.0.0.1:{self.ports['mlflow']}"
        self.worker_environ = KEYS | {
            "PREFECT_API_URL": f"http://127.0.0.1:{self.ports['prefect']}/api", "PREFECT_API_AUTH_STRING": LOGIN,
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "TRNFLOW_STORE": f"s3://{BUCKET}/store", "AWS_ENDPOINT_URL": store.url,
        }  # fmt: skip
        super().__init__(folder / "house", 10**6, environ=self.worker_environ)
        self.outside = folder / "servers"
        self.outside.mkdir()

    @property
    def api(self) -> Api:
        return Api(self.home, self.worker_environ["PREFECT_API_URL"], LOGIN)

    def start_prefect(self) -> subprocess.Popen[bytes]:
        filled = {
            "PGPASSWORD": PASSWORD, "PREFECT_SERVER_ENCRYPTION_KEY": KEY, "PREFECT_HOME": str(self.outside / "prefect"),
            "PREFECT_SERVER_API_AUTH_STRING": LOGIN, "PREFECT_SERVER_API_PORT": str(self.ports["prefect"]),
            "PREFECT_UI_STATIC_DIRECTORY": str(self.outside / "ui"),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database.url(
                "prefect", "postgresql+asyncpg", has_password=False
            ),
        }  # fmt: skip
        return self._start("trnflow-prefect", filled, f"{self.worker_environ['PREFECT_API_URL']}/health")

    def start_mlflow(self) -> subprocess.Popen[bytes]:
        filled = KEYS | {
            "PGPASSWORD": PASSWORD, "MLFLOW_PORT": str(self.ports["mlflow"]), "AWS_ENDPOINT_URL": self.store.url,
            "MLFLOW_BACKEND_STORE_URI": self.database.url("mlflow", has_password=False),
            "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
        }  # fmt: skip
        return self._start("trnflow-mlflow", filled, f"{self.mlflow_url}/health")

    def _start(self, unit: str, filled: dict[str, str], url: str) -> subprocess.Popen[bytes]:
        base = {name: value for name, value in self.environ.items() if name not in self.worker_environ}
        server = start_unit(unit, self.outside, self.outside / f"{unit}.log", filled, base)
        wait_for_answer(url, server)
        return server

    def start_worker(self) -> None:
        filled = self.worker_environ | {"TRNFLOW_HOME": str(self.home)}
        self.worker = start_unit("trnflow-worker", self.folder, self.folder / "worker.log", filled, self.environ)

    def retrain(self, *overrides: str) -> str:
        """Ask Prefect for a run of the deployment; return the id of the flow run."""
        parameters = {"recipe": NAMES.recipe, "overrides": [*overrides]}
        made = self.api.post(f"deployments/{self.deployment()['id']}/create_flow_run", parameters=parameters)
        return str(made["id"])

    def ended(self, run: str) -> dict[str, Any]:
        """Wait until a flow run is in a final state, and return the flow run."""
        wait_for(lambda: is_final(self.api.get(f"flow_runs/{run}")), PATIENCE, f"the flow run {run} ends")
        return dict(self.api.get(f"flow_runs/{run}"))

    def store_records(self) -> list[dict[str, Any]]:
        return [self.store.document(name) for name in self.store.names("runs/")]

    def completed(self) -> set[str]:
        return {record["run"] for record in self.store_records() if record["outcome"] == "completed"}


@pytest.fixture(scope="module")
def house(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:  # noqa: F811
    folder = tmp_path_factory.mktemp("postgres")
    with ExitStack() as stack:
        store = ObjectStore(folder)
        stack.callback(store.close)
        postgres.create(*DATABASES)
        house = Operated(folder, postgres, store)
        stack.callback(house.kill_all)
        for start in (house.start_prefect, house.start_mlflow):
            stack.callback(end, start())
        house.environ["TRNFLOW_NOTIFY"] = f"http://127.0.0.1:9/hook?token={TOKEN}"
        house.put(rows(400))
        house.open()
        yield house


def mlflow_runs(house: Operated) -> list[Any]:
    """Return all runs as MLflow's own client reads them from the server."""
    from mlflow import MlflowClient

    client = MlflowClient(house.mlflow_url)
    return [*client.search_runs([one.experiment_id for one in client.search_experiments()])]


def parents(house: Operated) -> list[Any]:
    """Return the runs of pipelines, without those of stages and promotions that are nested in them."""
    return [one for one in mlflow_runs(house) if not any(map(one.data.tags.get, NESTED))]


def finished(house: Operated) -> set[str]:
    """Return the ids of the pipelines' runs that have ended in MLflow."""
    return {one.data.tags["trnflow.run"] for one in parents(house) if one.info.status == "FINISHED"}


def test_a_retrain_by_the_worker_is_in_both_databases_and_on_s3(house: Operated) -> None:
    run = house.ended(house.retrain())
    assert run["state_name"] == "Promoted", run["state"]
    ask = f"select state_name from flow_run where id = '{run['id']}'"
    assert house.database.rows("prefect", ask) == [["Promoted"]]
    tasks = house.database.rows("prefect", f"select state_name from task_run where flow_run_id = '{run['id']}'")
    assert tasks == [["Completed"]] * 9
    wait_for(lambda: house.events().get(run["id"]), PATIENCE, "the event of the retrain")
    said = house.database.rows("prefect", "select event from events where event like 'trnflow.retrain.%'")
    assert said == [["trnflow.retrain.promoted"]]
    (record,) = house.store_records()
    wait_for(lambda: all(one.info.status == "FINISHED" for one in mlflow_runs(house)), PATIENCE, "the upload to MLflow")
    (parent,) = parents(house)
    assert parent.data.tags["trnflow.run"] == record["run"]
    assert parent.data.metrics["evaluate_model/accuracy"] > 0.5
    ask = "select status, count(*) from runs group by status"
    assert [status for status, _ in house.database.rows("mlflow", ask)] == ["FINISHED"]
    files = house.store.client.list_objects_v2(Bucket=BUCKET, Prefix="mlflow/")["Contents"]
    assert any(item["Key"].endswith("report.html") for item in files)
    assert house.store.names("roots/ledger/")


def test_a_retrain_from_the_command_line_is_there_too(house: Operated) -> None:
    house.put(rows(404, wrong=0.9))
    told = json.loads(house.must("retrain", NAMES.recipe, "--json"))
    assert (told["changed"], told["promoted"]) == (True, False)
    ask = "select state_name, parameters ->> 'recipe' from flow_run order by created desc limit 1"
    assert house.database.rows("prefect", ask) == [["Kept", NAMES.recipe]]
    wait_for(lambda: len(parents(house)) == 2, PATIENCE, "the upload to MLflow")


def test_mlflow_and_a_sweep_take_a_database_whose_password_is_a_variable(house: Operated) -> None:
    """No server in between: the address is a setting, and its password is filled in where it is used."""
    house.environ["DB_PASSWORD"] = quote(PASSWORD, safe="")
    address = f"postgresql://{OWNER}:${{DB_PASSWORD}}@127.0.0.1:{house.database.port}"
    settings = ("train.learning_rate=1e-3..1e-2:log", "--trials", "2", "--json")
    direct = (f"sweep.database={address}/optuna", f"tracking.uri={address}/own", "train.max_steps=4")
    told = json.loads(house.must("sweep", NAMES.recipe, *settings, *direct))
    assert [trial["state"] for trial in told["trials"]] == ["completed", "completed"]
    assert house.database.rows("optuna", "select state from trials") == [["COMPLETE"], ["COMPLETE"]]
    wait_for(
        lambda: house.database.rows("own", "select distinct status from runs") == [["FINISHED"]], PATIENCE, "the upload"
    )
    place = house.database.rows("own", "select artifact_location from experiments where name = 'trnflow'")
    assert place == [[(house.home / "mlartifacts").as_uri()]]
    again = json.loads(house.must("sweep", NAMES.recipe, *settings, *direct))
    assert again["trials"] == told["trials"]


def test_a_run_ends_though_postgresql_went_away_and_says_so(house: Operated) -> None:
    before, runs = house.trainings(), house.completed()
    command = [sys.executable, "-m", "trnflow", "run", NAMES.recipe, LONG]
    run = subprocess.Popen(
        command, cwd=house.folder, env=house.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(lambda: house.trainings() - before, PATIENCE, "the training")
    house.database.kill()
    try:
        said = run.communicate(timeout=PATIENCE)[0]
        assert run.returncode == 0, said
        deployed = house.trnflow("deploy")
        refused = house.trnflow("run", NAMES.recipe, "train.max_steps=2")
    finally:
        house.database.start()
    assert f"Prefect's server at {house.worker_environ['PREFECT_API_URL']} went away" in said
    assert "Traceback" not in said
    assert (refused.returncode, refused.stderr.count("error: ")) == (2, 1)
    assert "failed: Server error '500 Internal Server Error'" in refused.stderr
    assert (deployed.returncode, deployed.stderr.count("error: ")) == (2, 1), deployed.stderr
    assert house.store_records()[-1]["outcome"] == "completed"
    house.must("run", NAMES.recipe, "train.max_steps=3")
    runs = house.completed() - runs  # those of the sweep are in another database
    assert len(runs) == 2
    wait_for(lambda: runs <= finished(house), PATIENCE, "both runs in MLflow, also that whose upload failed")


def test_a_deployed_run_outlasts_a_restart_of_postgresql(house: Operated) -> None:
    before = house.trainings()
    house.put(rows(408))
    run = house.retrain(LONG)
    wait_for(lambda: house.trainings() - before, PATIENCE, "the training")
    house.database.kill()
    house.database.start()
    assert house.ended(run)["state_name"] in ("Promoted", "Kept")


def forms(secret: str) -> set[str]:
    """A secret as it stands in a text, in a URL or in JSON."""
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}


def dumped(database: Postgres) -> dict[str, str]:
    return {f"database {name}": database.dump(name) for name in DATABASES}


def test_no_log_no_record_and_no_command_line_has_the_password(house: Operated) -> None:
    folders = (house.folder, house.outside)
    texts = {
        str(path): path.read_bytes().decode(errors="replace")
        for folder in folders for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip
    assert {"worker.log", "trnflow-prefect.log", "trnflow-mlflow.log"} <= {Path(name).name for name in texts}
    bucket = house.store.client.list_objects_v2(Bucket=BUCKET)["Contents"]
    for item in bucket:
        body = house.store.client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
        texts[f"s3 {item['Key']}"] = body.decode(errors="replace")
    texts |= dumped(house.database) | {"PostgreSQL's log": house.database.log}
    texts |= {f"process {number}": line for number, line in house.processes().items()}
    assert len(bucket) > 20 and len(house.processes()) > 2
    assert "trnflow.retrain" in texts["database prefect"]
    hidden = forms(PASSWORD) | forms(LOGIN) | {KEY, TOKEN}
    assert not [name for name, text in texts.items() if any(form in text for form in hidden)]
