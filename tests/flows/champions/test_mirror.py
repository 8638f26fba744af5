"""MLflow's registry shows the champion, read by MLflow's own client; a dead MLflow stops nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.champions.mirror import mirror
from flows.recipes import recipe as settings
from tasks.promotion.bootstrap import Comparison
from tasks.store import Store
from tasks.store.garbage.numbered_roots import Numbered
from tasks.tracking import upload_left
from tasks.tracking.registry import mirror_champion
from tests.flows.champions.conftest import RECIPE

FIRST, SECOND, THIRD = (f"sha256:{digit * 64}" for digit in "abc")
COMPARED = Comparison("f1_weighted", 0.8, 0.9, 0.1, 0.05, 0.15, 200, True)


def champion(number: int, artifact: str) -> Numbered:
    return Numbered(number, {"artifact": artifact, "action": "promoted", "task": "classification", "frozen": FIRST})


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")


def event(number: int, winner: str, loser: str | None = None) -> dict[str, Any]:
    return {"recipe": "my/tiny", "task": "classification", "number": number, "champion": winner, "challenger": loser}


def shown(client: MlflowClient, name: str) -> dict[str, str]:
    """{alias: digest of the model that it names}"""
    found = {}
    for alias in client.get_registered_model(name).aliases:
        version = client.get_model_version_by_alias(name, alias)
        found[alias] = client.get_logged_model(version.source.removeprefix("models:/")).tags["trnflow.artifact"]
    return found


def test_aliases_follow_the_store_and_never_an_older_event(client: MlflowClient, tmp_path: Path) -> None:
    experiment = client.create_experiment("x", (tmp_path / "files").as_uri())
    run = client.create_run(experiment).info.run_id
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
        assert shown(client, "my-tiny") == aliases
    assert len(client.search_model_versions("name = 'my-tiny'")) == 3
    model = client.search_logged_models([experiment])[0]
    files = {path.name for path in tmp_path.rglob(f"*{model.model_id}*/artifacts/*")}
    assert files == {"MLmodel", "input_example.json"}  # no weights
    signature = (next(tmp_path.rglob("MLmodel"))).read_text()
    assert "signature" in signature and "label" in signature


def test_a_promotion_reaches_mlflow_with_its_frozen_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is dead at first: the promotion ends at once, and what it wrote is uploaded when MLflow answers."""
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    uri = f"sqlite:///{tmp_path / 'missing' / 'mlflow.db'}"  # its folder is not there yet
    recipe = settings.load(str(tmp_path / "tiny.yaml"), ["tracking.enabled=true", f"tracking.uri={uri}"])
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    store.prepare()
    (tmp_path / "missing").write_text("no folder")
    mirror(recipe, store, champion(2, SECOND), None, COMPARED)
    spools = list((tmp_path / "home/tracking").glob("*.jsonl"))
    assert len(spools) == 1
    wait_for_uploader(tmp_path / "home")
    assert spools[0].exists()
    (tmp_path / "missing").unlink()
    (tmp_path / "missing").mkdir()
    done = upload_left(tmp_path / "home")
    assert done == 1, [path.read_text() for path in (tmp_path / "home/tracking").glob("*.warning")]
    client = MlflowClient(uri)
    assert shown(client, "tiny") == {"champion": SECOND}
    (run,) = client.search_runs([client.get_experiment_by_name("trnflow").experiment_id])
    assert run.data.metrics == pytest.approx(
        {"champion": 0.8, "challenger": 0.9, "difference": 0.1, "low": 0.05, "high": 0.15}
    )
    (given,) = run.inputs.dataset_inputs
    assert json.loads(given.dataset.source)["digest"] == FIRST
    assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "evaluation")]


def wait_for_uploader(home: Path) -> None:
    """Wait until the uploading process has tried and ended."""
    import time

    deadline = time.monotonic() + 120
    while not list((home / "tracking").glob("*.warning")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    while any(
        str(home) in read(path) for path in Path("/proc").glob("[0-9]*/cmdline") if str(os.getpid()) not in str(path)
    ):
        time.sleep(0.2)


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
