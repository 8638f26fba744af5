"""MLflow's registry shows the champion, read by MLflow's own client; a dead MLflow stops nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.flows.champions.conftest import RECIPE
from tests.helpers.stores import new_store
from tests.helpers.waiting import wait_for
from tests.tracking.runs import empty_database
from trnflow.flows.champions.frozen_rows import Frozen
from trnflow.flows.champions.mirror import mirror
from trnflow.flows.champions.promote import Decision
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.events import unsent_runs
from trnflow.tasks.promotion.compare import Comparison
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger
from trnflow.tasks.store.ledger.entries import NewEntry
from trnflow.tasks.tracking import send_logs
from trnflow.tasks.tracking.follower import Unsent
from trnflow.tasks.tracking.registry import mirror_champion

if TYPE_CHECKING:
    from mlflow import MlflowClient

FIRST, SECOND, THIRD = (f"sha256:{digit * 64}" for digit in "abc")
REGISTERED = "my-tiny-0d9c773b"
"""The name of the model of recipe my/tiny."""
FILES = {"MLmodel", "conda.yaml", "input_example.json", "python_env.yaml", "requirements.txt", "stored_model.py"} | {
    "serving_input_example.json"
}
COMPARED = Comparison("f1_weighted", 0.8, 0.9, 0.1, 0.05, 0.15, 200, True, 40, 1e-4)


def crown(store: Store, number: int, artifact: str) -> None:
    entry = NewEntry(
        outcome="promoted", by="promote", why="better", champion=artifact, task="classification", frozen=FIRST,
        created=f"2026-01-01T00:00:0{number}Z",
    )  # fmt: skip
    assert append_ledger(store, "tiny", entry, number - 1)


@pytest.fixture(autouse=True)
def no_address_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's client sets the variable."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # so that it is taken back
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    from mlflow import MlflowClient

    shutil.copyfile(empty_database(), tmp_path / "mlflow.db")
    return MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")


def event(number: int, winner: str, loser: str | None = None, series: str = "a", day: int = 1) -> dict[str, Any]:
    return {
        "recipe": "my/tiny", "task": "classification", "number": number, "champion": winner, "challenger": loser,
        "series": series, "created": f"2026-01-{day:02}T00:00:0{number}Z", "store": "s3://***@bucket/store",
        "why": "better than the champion on 300 frozen rows", "metrics": {"f1_weighted": 0.91234},
        "columns": ["title", "body"], "optional": ["context"],
    }  # fmt: skip


@pytest.fixture
def made(client: MlflowClient, tmp_path: Path) -> tuple[str, str]:
    """(id of an experiment, id of a run in it)"""
    experiment = client.create_experiment("x", (tmp_path / "files").as_uri())
    return experiment, client.create_run(experiment).info.run_id


def shown(client: MlflowClient, name: str) -> dict[str, str]:
    """{alias: digest of the model that it names}"""
    found = {}
    for alias in client.get_registered_model(name).aliases:
        version = client.get_model_version_by_alias(name, alias)
        found[alias] = client.get_logged_model(version.source.removeprefix("models:/")).tags["trnflow.artifact"]
    return found


def test_recipes_whose_names_differ_in_a_refused_character_share_no_registered_model(
    client: MlflowClient, made: tuple[str, str]
) -> None:
    recipes = {"a-b": FIRST, "a/b": SECOND, "a:b": THIRD}
    for recipe, artifact in recipes.items():
        mirror_champion(client, *made, event(1, artifact) | {"recipe": recipe})
    models = [model.name for model in client.search_registered_models()]
    assert len(models) == 3 and "a-b" in models
    assert {shown(client, name)["champion"] for name in models} == set(recipes.values())


def test_aliases_follow_the_store_and_never_an_older_event(
    client: MlflowClient, made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "somebody")
    experiment, run = made
    events = [event(1, FIRST), event(1, FIRST, SECOND), event(2, SECOND), event(2, SECOND), event(1, FIRST, THIRD)]
    expected = [
        {"champion": FIRST},
        {"champion": FIRST, "challenger": SECOND},
        {"champion": SECOND},
        {"champion": SECOND},
        {"champion": SECOND},  # the last came late, from a machine that could not reach MLflow
    ]
    for one, aliases in zip(events, expected, strict=True):
        mirror_champion(client, experiment, run, one)
        assert shown(client, REGISTERED) == aliases
    assert len(client.search_model_versions(f"name = '{REGISTERED}'")) == 3
    model = client.search_logged_models([experiment])[0]
    files = {path.name for path in tmp_path.rglob(f"*{model.model_id}*/artifacts/*")}
    assert files == FILES  # neither weights nor pickles
    assert model.tags["mlflow.user"] == "unknown" and model.tags["mlflow.source.name"] == "trnflow"
    assert "somebody" not in str(client.search_logged_models([experiment]))
    shown_model = yaml.safe_load(next(tmp_path.rglob("MLmodel")).read_text())
    inputs = {column["name"]: column["required"] for column in json.loads(shown_model["signature"]["inputs"])}
    assert inputs == {"title": True, "body": True, "context": False}
    assert shown_model["flavors"]["python_function"]["config"]["store"] == "s3://***@bucket/store"


def test_the_registered_model_says_why_how_good_and_how_to_get_it(client: MlflowClient, made: tuple[str, str]) -> None:
    mirror_champion(client, *made, event(1, FIRST))
    model = client.get_registered_model(REGISTERED)
    for part in (
        "better than the champion on 300",
        "f1_weighted 0.9123",
        "trnflow get 'my/tiny@champion' consolidate DIR",
        FIRST,
    ):
        assert part in model.description
    mirror_champion(client, *made, event(2, SECOND) | {"why": "better still"})
    assert "better still" in client.get_registered_model(REGISTERED).description
    descriptions = [version.description for version in client.search_model_versions(f"name = '{REGISTERED}'")]
    assert len(descriptions) == 2 and sum("better still" in text for text in descriptions) == 1


def test_a_model_that_an_earlier_version_registered_can_be_loaded_after_the_next_event(
    client: MlflowClient, made: tuple[str, str], tmp_path: Path
) -> None:
    import mlflow

    mlflow.set_tracking_uri(client.tracking_uri)
    old = mlflow.create_external_model(
        "my-tiny", source_run_id=made[1], tags={"trnflow.artifact": FIRST, "trnflow.complete": "true"},
        model_type="classification", experiment_id=made[0],
    )  # fmt: skip
    mlflow.register_model(f"models:/{old.model_id}", REGISTERED)
    mirror_champion(client, *made, event(1, FIRST))
    (version,) = client.search_model_versions(f"name = '{REGISTERED}'")
    before = dict(os.environ)
    with pytest.raises(mlflow.MlflowException, match="there is no store at s3"):
        mlflow.pyfunc.load_model(f"models:/{REGISTERED}@champion")
    assert dict(os.environ) == before  # which is that of the tests after this one
    assert version.source == f"models:/{old.model_id}"


def test_a_new_store_begins_at_one_again(client: MlflowClient, made: tuple[str, str]) -> None:
    for one in (event(4, FIRST), event(1, SECOND, series="b", day=2), event(5, THIRD)):
        mirror_champion(client, *made, one)
        assert shown(client, REGISTERED) == {
            "champion": FIRST if one["series"] == "a" and one["number"] == 4 else SECOND
        }
    mirror_champion(client, *made, event(2, FIRST, series="b", day=2))
    assert shown(client, REGISTERED) == {"champion": FIRST}


@pytest.mark.slow
@pytest.mark.parametrize("last_call", ["log_model_artifacts", "_create_model_version"])
def test_the_model_of_a_killed_follower_is_finished_by_the_next(
    client: MlflowClient, made: tuple[str, str], tmp_path: Path, last_call: str
) -> None:
    """Killed, in a process of its own, as it makes this call."""
    script = (
        "import json, os, signal, sys; from mlflow import MlflowClient;"
        "from trnflow.tasks.tracking.registry import mirror_champion;"
        f"setattr(MlflowClient, {last_call!r}, lambda *given, **more: os.kill(os.getpid(), signal.SIGKILL));"
        "mirror_champion(MlflowClient(sys.argv[1]), *json.loads(sys.argv[2]))"
    )
    given = json.dumps([*made, event(1, FIRST)])
    killed = subprocess.run([sys.executable, "-c", script, client.tracking_uri, given], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    mirror_champion(client, *made, event(1, FIRST))
    assert shown(client, REGISTERED) == {"champion": FIRST}
    (model,) = client.search_logged_models([made[0]])
    assert model.status == "READY"
    assert {path.name for path in tmp_path.rglob(f"*{model.model_id}*/artifacts/*")} == FILES
    assert "signature" in next(tmp_path.rglob("MLmodel")).read_text()
    assert len(client.search_model_versions(f"name = '{REGISTERED}'")) == 1


def test_a_promotion_reaches_mlflow_with_its_frozen_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    """MLflow is dead at first: the promotion ends at once, and what it wrote is uploaded when MLflow answers."""
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    uri = f"sqlite:///{tmp_path / 'missing' / 'mlflow.db'}"  # its folder is not there yet
    recipe = settings.load(str(tmp_path / "tiny.yaml"), ["tracking.enabled=true", f"tracking.uri={uri}"])
    store = new_store(tmp_path)
    (tmp_path / "missing").write_text("no folder")
    for number, artifact in enumerate((FIRST, SECOND), 1):
        crown(store, number, artifact)
    rows = Frozen(1, Artifact(FIRST, "rows", {}, ()))
    mirror(recipe, store, Decision(True, 2, SECOND, SECOND, COMPARED, rows, False, "better"))
    (run,) = unsent_runs(tmp_path / "home")
    unsent = Unsent(tmp_path / "home", run)
    wait_for_follower(unsent)
    assert unsent.exists()
    (tmp_path / "missing").unlink()
    (tmp_path / "missing").mkdir()
    assert send_logs(tmp_path / "home") == 1, unsent.warning.read_text()
    client = MlflowClient(uri)
    assert shown(client, "tiny") == {"champion": SECOND}
    (run,) = client.search_runs([client.get_experiment_by_name("trnflow").experiment_id])
    assert run.data.metrics == pytest.approx(
        {"champion": 0.8, "challenger": 0.9, "difference": 0.1, "low": 0.05, "high": 0.15}
    )
    (given,) = run.inputs.dataset_inputs
    assert json.loads(given.dataset.source)["digest"] == FIRST
    assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "evaluation")]


def wait_for_follower(unsent: Unsent) -> None:
    wait_for(unsent.warning.exists)

    def sending() -> list[Path]:
        paths = Path("/proc").glob("[0-9]*/cmdline")
        return [path for path in paths if path.parts[2] != str(os.getpid()) and str(unsent.home) in read(path)]

    wait_for(lambda: not sending())


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_without_mlflow_nothing_is_mirrored_for_other_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    off = ["tracking.enabled=false", "tracking.also=[tensorboard]"]
    recipe, store = settings.load(str(tmp_path / "tiny.yaml"), off), new_store(tmp_path)
    crown(store, 1, FIRST)
    assert mirror(recipe, store) is None
    assert not (tmp_path / "home" / "runs").exists() and not (tmp_path / "home" / "tensorboard").exists()
