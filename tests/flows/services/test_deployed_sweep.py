"""The deployment `sweep`, on a real server with a real worker: refused, cancelled, killed, and run to its end."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.flows.prefect_api import Api
from tests.flows.services.test_recovery import kill_and_resume, start, state, states, wait_for, worker

pytestmark = pytest.mark.slow

RATE = "train.learning_rate=1e-4..1e-1:log"
STEPS = ["train.max_steps=200", "train.checkpoint_every=20", "train.log_every=2"]
LONG = ["train.max_steps=1500", *STEPS[1:]]


@pytest.fixture(scope="module")
def deployed(own_api: Api, tmp_path_factory: pytest.TempPathFactory) -> Api:
    own_api.environ["RECIPE"] = str(write_tiny(tmp_path_factory.mktemp("tiny")) / "tiny.yaml")
    own_api.prefect("work-pool", "create", "local", "--type", "process", "--overwrite")
    own_api.prefect("deploy", "--name", "sweep")
    return own_api


def begin(api: Api, name: str, **parameters: Any) -> str:
    given = {"vary": [RATE], "overrides": STEPS, "trials": 3, "name": name, "sampler": "random", **parameters}
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


def test_wrong_parameters_fail_the_run_with_one_line_before_a_trial(deployed: Api) -> None:
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "misspelt": ({"vary": ["train.learnin_rate=1e-5..1e-4"]}, "did you mean"),
        "empty": ({"vary": ["train.learning_rate=1e-4..1e-5"]}, "is empty"),
        "fixed": ({"vary": ["train.learning_rate=1e-4"]}, "neither a range nor choices"),
        "nothing": ({"vary": []}, "varies nothing"),
        "many": ({"parallel": 4000}, "trials at a time"),
        "../there": ({}, "can't be named"),
    }
    runs = {begin(deployed, name, **parameters): said for name, (parameters, said) in wrong.items()}
    with worker(deployed):
        wait_for(lambda: {state(deployed, run) for run in runs} == {"Failed"})
    for run, said in runs.items():
        message = deployed.get(f"flow_runs/{run}")["state"]["message"]
        assert said in message
        assert "Traceback" not in message
    assert not (deployed.home / "sweeps").exists()


def test_a_cancelled_sweep_ends_its_trial_and_the_next_run_goes_on(deployed: Api) -> None:
    run = begin(deployed, "cancelled", overrides=LONG)
    with worker(deployed):
        wait_for(trial_trains(deployed, "cancelled", after=1))
        deployed.prefect("flow-run", "cancel", run)
        wait_for(lambda: state(deployed, run) == "Cancelled")
        wait_for(lambda: not stage_processes(deployed))
        first = result(deployed, "cancelled")["trials"][0]
        again = begin(deployed, "cancelled", overrides=LONG)
        wait_for(lambda: state(deployed, again) == "Completed")
    trials = result(deployed, "cancelled")["trials"]
    assert trials[0] == first
    assert [trial["state"] for trial in trials] == ["completed", "killed", "completed", "completed"]
    assert trials[2]["settings"] == trials[1]["settings"]


def test_a_sweep_whose_worker_and_process_are_killed_is_resumed(deployed: Api) -> None:
    run = begin(deployed, "killed", overrides=[*STEPS, "train.seed=2"])  # no trial is in the store
    kill_and_resume(deployed, run, trial_trains(deployed, "killed", after=1))
    assert [name for name in states(deployed, run) if name in ("Running", "Crashed", "Completed")] == [
        "Running", "Crashed", "Running", "Completed",
    ]  # fmt: skip
    found = result(deployed, "killed")
    assert [trial["state"] for trial in found["trials"]] == ["completed", "killed", "completed", "completed"]
    records = [json.loads(file.read_text())["run"] for file in (deployed.home / "store/runs").glob("*.json")]
    assert {trial["run"] for trial in found["trials"] if trial["state"] == "completed"} <= {*records}
    assert found["winner"]["run"] in records

    shown = deployed.get(f"flow_runs/{run}")
    assert shown["name"] == "tiny: sweep killed"
    best = f"the best is trial {found['best']['number']}"
    assert best in shown["state"]["message"]
    newest = newest_table(deployed, run)
    assert (newest["key"], best in newest["description"]) == ("sweep", True)
    rows = json.loads(newest["data"])
    assert [row["state"] for row in rows] == [trial["state"] for trial in found["trials"]]
    assert [row["run"] for row in rows] == [trial["run"] for trial in found["trials"]]
    assert all(row["train.learning_rate"] for row in rows)
