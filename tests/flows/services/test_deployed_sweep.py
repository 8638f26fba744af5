"""The deployment `sweep`, on a real server with a real worker: refused, cancelled, and run to its end."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.flows.prefect_api import Api
from tests.flows.services.test_recovery import start, state, wait_for, worker

pytestmark = pytest.mark.slow

RATE = "train.learning_rate=1e-4..1e-1:log"
LONG = ["train.max_steps=700", "train.checkpoint_every=20", "train.log_every=2", "export.target=none"]


@pytest.fixture(scope="module")
def deployed(own_api: Api, tmp_path_factory: pytest.TempPathFactory) -> Api:
    own_api.environ["RECIPE"] = str(write_tiny(tmp_path_factory.mktemp("tiny")) / "tiny.yaml")
    own_api.prefect("work-pool", "create", "local", "--type", "process", "--overwrite")
    own_api.prefect("deploy", "--name", "sweep")
    return own_api


def begin(api: Api, name: str, **parameters: Any) -> str:
    given = {"vary": [RATE], "trials": 3, "name": name, "sampler": "random", **parameters}
    return start(api, "sweep", **given)


def result(api: Api, name: str) -> Any:
    file = api.home / "sweeps" / name / "sweep.json"
    return json.loads(file.read_text()) if file.exists() else {"trials": []}


def trial_trains(api: Api, name: str, after: int) -> Callable[[], bool]:
    """Whether so many trials of a study have ended and the next one has saved the state of its training."""

    def found() -> bool:
        ended = [trial for trial in result(api, name)["trials"] if trial["state"] == "completed"]
        return len(ended) == after and bool(list((api.home / "store/partial").glob("*/step-*/COMMIT")))

    return found


def newest_table(api: Api, run: str) -> Any:
    wanted = {"flow_run_id": {"any_": [run]}, "type": {"any_": ["table"]}}
    return api.post("artifacts/filter", artifacts=wanted, sort="UPDATED_DESC")[0]


def stage_processes(api: Api) -> list[str]:
    """The command lines of processes that work in the home of these runs."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if file.resolve().is_relative_to(api.home / "work"):
                found.append((file.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"sampler": "gird"}, "tpe"), ({"trials": 0}, "trials"), ({"direction": "up"}, "max"), ({"vary": 5}, "vary")],
)
def test_the_server_refuses_parameters_of_another_type(deployed: Api, parameters: Any, said: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        begin(deployed, "refused", **parameters)
    assert refused.value.code in (409, 422)
    assert said in refused.value.read().decode()


@pytest.mark.parametrize("kinds", [4, pytest.param(8, marks=pytest.mark.nightly)])
def test_wrong_parameters_fail_the_run_with_one_line_before_a_trial(deployed: Api, kinds: int) -> None:
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "misspelt": ({"vary": ["train.learnin_rate=1e-5..1e-4"]}, "did you mean"),
        "many": ({"parallel": 4000}, "trials at a time"),
        "code": ({"overrides": ["launch.environment={PYTHONPATH: /tmp}"]}, "launch.environment: it may run code"),
        "../there": ({}, "can't be named"),
        "empty": ({"vary": ["train.learning_rate=1e-4..1e-5"]}, "is empty"),
        "fixed": ({"vary": ["train.learning_rate=1e-4"]}, "neither a range nor choices"),
        "nothing": ({"vary": []}, "varies nothing"),
        "read": ({"vary": ["model.source=/root/a,/root/b"]}, "/root/a is neither a hub's name"),
    }
    runs = {begin(deployed, name, **parameters): said for name, (parameters, said) in [*wrong.items()][:kinds]}
    with worker(deployed):
        wait_for(lambda: {state(deployed, run) for run in runs} == {"Failed"})
    for run, said in runs.items():
        message = deployed.get(f"flow_runs/{run}")["state"]["message"]
        assert said in message
        assert "Traceback" not in message
    assert not (deployed.home / "sweeps").exists()


def test_a_cancelled_sweep_ends_its_trial_and_the_next_run_goes_on(deployed: Api) -> None:
    """As after a kill, which a worker resumes (test_recovery.py) as a sweep's next command does (sweeps/test_sweep.py)."""
    begin_long = partial(begin, deployed, "cancelled", overrides=LONG, trials=2)
    run = begin_long()
    with worker(deployed):
        wait_for(trial_trains(deployed, "cancelled", after=1))
        # as `prefect flow-run cancel` does, but without the seconds that its start takes: the trial must not end before
        deployed.post(f"flow_runs/{run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
        wait_for(lambda: state(deployed, run) == "Cancelled")
        wait_for(lambda: not stage_processes(deployed))
        first = result(deployed, "cancelled")["trials"][0]
        again = begin_long()
        wait_for(lambda: state(deployed, again) == "Completed")
    found = result(deployed, "cancelled")
    trials = found["trials"]
    assert trials[0] == first
    assert [trial["state"] for trial in trials] == ["completed", "killed", "completed"]
    assert trials[2]["settings"] == trials[1]["settings"]
    records = [json.loads(file.read_text())["run"] for file in (deployed.home / "store/runs").glob("*.json")]
    assert {found["winner"]["run"], *(trial["run"] for trial in trials if trial["state"] == "completed")} <= {*records}
    check_page(deployed, again, found)


def check_page(api: Api, run: str, found: Any) -> None:
    """Name, message and table of a sweep's run, as Prefect's page shows them."""
    shown = api.get(f"flow_runs/{run}")
    assert shown["name"] == "tiny: sweep cancelled"
    best = f"the best is trial {found['best']['number']}"
    assert best in shown["state"]["message"]
    newest = newest_table(api, run)
    assert (newest["key"], best in newest["description"]) == ("sweep", True)
    rows = json.loads(newest["data"])
    assert [row["state"] for row in rows] == [trial["state"] for trial in found["trials"]]
    assert [row["run"] for row in rows] == [trial["run"] for trial in found["trials"]]
    assert all(row["train.learning_rate"] for row in rows)
