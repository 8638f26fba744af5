"""A recipe whose stages a real Slurm runs: one run here and there, joined, stopped, killed, and found again without a machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.flows.jobs.test_job import MODULE, shell_in, stages_of, write_own
from tests.flows.prefect_api import Api
from tests.helpers.command_line import Shell
from tests.helpers.s3_server import halted, requests, s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.slurm import Slurm, slurm_cluster
from tests.helpers.waiting import wait_for

ON_SLURM = ("launch.kind=slurm", "launch.grace_seconds=40")
LONG = ("train.max_steps=3000", "train.checkpoint_every=100", "export.target=none")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def here(cluster: Slurm, tmp_path: Path) -> Shell:
    (tmp_path / "here").mkdir()
    shell = Shell(tmp_path / "here")
    write_own(shell.folder)
    return shell


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict[str, str]]:
    """{settings: {stage: digest}} of runs without a job."""
    digests = {}
    for settings in ((), LONG):
        shell = Shell(tmp_path_factory.mktemp("alone"))
        write_own(shell.folder)
        made = stages_of(shell.json("run", "own.yaml", "--direct", *settings))
        digests[settings] = {stage: digest for stage, (_, digest) in made.items()}
    return digests


def digests(document: Any) -> dict[str, str]:
    return {stage: digest for stage, (_, digest) in stages_of(document).items()}


def actions(document: Any) -> dict[str, str]:
    return {stage: action for stage, (action, _) in stages_of(document).items()}


def events_of(shell: Shell, run: str) -> list[dict[str, Any]]:
    whole, _, _ = (shell.folder / f".trnflow/runs/{run}/events.jsonl").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def planned_of(shell: Shell, *settings: str) -> dict[str, str]:
    return {stage["stage"]: stage["action"] for stage in shell.json("plan", "own.yaml", *settings)["stages"]}


def curve(shell: Shell, run: str) -> list[int]:
    """The steps of the events with the training loss, as they stand in a run's log."""
    events = events_of(shell, run)
    return [event["step"] for event in events if event["event"] == "metrics" and "loss" in event["values"]]


def test_a_run_whose_stages_slurm_runs_is_one_run(
    cluster: Slurm, here: Shell, wanted: dict[tuple[str, ...], dict[str, str]]
) -> None:
    done = here.json("run", "own.yaml", "--direct", *ON_SLURM)
    assert digests(done) == wanted[()]
    assert actions(done)["train"] == "ran" and actions(done)["evaluate_model"] == "ran"
    begun = [event["stage"] for event in events_of(here, done["run"]) if event["event"] == "stage_begun"]
    assert begun[-4:] == ["train", "consolidate", "export_neuron", "evaluate_model"]
    assert curve(here, done["run"]) == sorted(set(curve(here, done["run"])))
    assert "Loading weights" in here("logs", done["run"]).stdout
    jobs = tickets(cluster)
    assert {*planned_of(here, *ON_SLURM).values()} == {"hit"}
    again = here.json("run", "own.yaml", "--direct", *ON_SLURM)
    assert set(actions(again).values()) <= {"hit", "skip"} and digests(again)["train"] == digests(done)["train"]
    assert tickets(cluster) == jobs, "no job was needed"


def test_a_job_outlives_its_submitter_is_joined_stops_and_goes_on(
    cluster: Slurm, here: Shell, wanted: dict[tuple[str, ...], dict[str, str]]
) -> None:
    command = ("run", "own.yaml", "--direct", *ON_SLURM, *LONG)
    run = here.start(*command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: any(curve(here, name) for name in runs(here)), 120)
    begun = tickets(cluster)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run = here.start(*command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_for(lambda: len(runs(here)) > 1 and curve(here, runs(here)[-1]), 120)
    assert len(cluster.of_jobs()) >= 5, "script, job, warm parent, guard, worker"
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 130 and "training was stopped at step" in said, said
    assert "joined slurm" in said and tickets(cluster) == begun
    joined = curve(here, runs(here)[-1])
    assert joined == sorted(set(joined)) and joined[0] <= 10, "all of its events, each once"
    wait_for(lambda: not cluster.run("squeue", "-h").strip(), 30)
    wait_for(lambda: not cluster.of_jobs(), 10)
    assert [job["state"] for job in here.json("jobs")["jobs"]] == ["stopped"]
    done = here.json(*command)
    assert digests(done)["train"] == wanted[LONG]["train"]
    steps = curve(here, done["run"])
    assert steps == sorted(set(steps)) and steps[0] > joined[-2] and steps[-1] == 3000, "it went on"


@pytest.mark.nightly
def test_scancel_saves_the_state_and_leaves_nothing_running(
    cluster: Slurm, here: Shell, wanted: dict[tuple[str, ...], dict[str, str]]
) -> None:
    """It sends SIGTERM to each process of the job, and SIGKILL after KillWait."""
    command = ("run", "own.yaml", "--direct", *ON_SLURM, *LONG)
    run = here.start(*command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for(lambda: any(curve(here, name) for name in runs(here)), 120)
    assert len(cluster.of_jobs()) >= 5, "script, job, warm parent, guard, worker"
    cluster.run("scancel", cluster.run("squeue", "-h", "-o", "%i").strip())
    _, said = run.communicate(timeout=240)
    assert run.returncode == 130 and "training was stopped at step" in said and "its state is" not in said, said
    wait_for(lambda: not cluster.of_jobs(), 30)
    assert not cluster.run("squeue", "-h").strip(), "it does not start again"
    reached = curve(here, runs(here)[-1])
    done = here.json(*command)
    assert digests(done)["train"] == wanted[LONG]["train"]
    assert curve(here, done["run"])[0] > reached[-2], "no step was lost"


def tickets(cluster: Slurm) -> set[str]:
    return {*cluster.run("squeue", "-h", "-t", "all", "-o", "%i").split()}


def runs(shell: Shell) -> list[str]:
    folder = shell.folder / ".trnflow/runs"
    return sorted(path.parent.name for path in folder.glob("*/events.jsonl")) if folder.exists() else []


def test_an_error_there_is_this_runs_and_is_not_repeated(cluster: Slurm, here: Shell) -> None:
    (here.folder / "mine.py").write_text(MODULE.replace("return 0.5", "raise ValueError('no half')"))
    said = here.error("run", "own.yaml", "--direct", *ON_SLURM, code=1)
    assert "evaluate_model" in said and "no half" in said
    (job,) = here.json("jobs")["jobs"]
    assert job["state"] == "failed" and "no half" in job["why"]
    wait_for(lambda: not cluster.run("squeue", "-h").strip(), 30)
    # what was made stays
    (here.folder / "mine.py").write_text(MODULE)
    done = actions(here.json("run", "own.yaml", "--direct", *ON_SLURM))
    assert done["train"] == "hit" and done["evaluate_model"] == "ran"


@pytest.mark.nightly
def test_prefect_has_a_task_run_of_each_stage_that_ran_there(cluster: Slurm, here: Shell, api: Api) -> None:
    here.environ |= {name: api.environ[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")}
    done = here.json("run", "own.yaml", *ON_SLURM, "train.max_steps=20")
    states = api.task_states(api.newest_run("own.yaml")["id"], len(actions(done)))
    assert states.keys() == actions(done).keys() and states["precompile"] == states["train"] == "Completed"


@pytest.mark.nightly
def test_two_who_run_it_at_a_time_start_one_training(cluster: Slurm, tmp_path: Path) -> None:
    shells = [shell_in(tmp_path / name, tmp_path / "store") for name in ("one", "two")]
    for shell in shells:
        write_own(shell.folder)
    runs = [shell.start("run", "own.yaml", "--direct", *ON_SLURM, "--json", stdout=subprocess.PIPE) for shell in shells]
    done = [json.loads(run.communicate(timeout=300)[0]) for run in runs]
    assert digests(done[0]) == digests(done[1]) and actions(done[0])["train"] == actions(done[1])["train"] == "ran"
    assert len([*(tmp_path / "store/attempts").glob(f"{key_of(done[0], 'train')}/*")]) == 1
    wait_for(lambda: not cluster.run("squeue", "-h").strip(), 30)


def key_of(document: Any, stage: str) -> str:
    return next(str(ended["key"]) for ended in document["stages"] if ended["stage"] == stage)


@pytest.mark.nightly
def test_a_result_of_this_machine_is_not_taken_for_one_of_there(cluster: Slurm, here: Shell) -> None:
    local = here.json("run", "own.yaml", "--direct", "--until", "train", "train.max_steps=20")
    planned = planned_of(here, *ON_SLURM, "train.max_steps=20")
    assert planned["pack_chunks"] == "hit" and planned["train"] == planned["precompile"] == "maybe"
    # one processor there, so one thread
    (narrow := here.folder / "python").write_text(f'#!/bin/sh\nexec taskset -c 0 {sys.executable} "$@"\n')
    narrow.chmod(0o755)
    few = (*ON_SLURM, "train.max_steps=20", f"launch.python={narrow}")
    done = here.json("run", "own.yaml", "--direct", *few)
    assert key_of(done, "train") != key_of(local, "train") and digests(done).keys() > digests(local).keys()
    assert {*planned_of(here, *few).values()} == {"hit"}
    # what a recipe fixes is not what the machine chose
    fixed = {
        stage["stage"]: stage["action"] for stage in here.json("plan", "own.yaml", *few, "train.threads=2")["stages"]
    }
    assert fixed["train"] == "maybe"
    for _ in range(2):
        again = actions(here.json("run", "own.yaml", "--direct", *few, "--force", "train"))
        assert again["train"] == "ran"
    said = here("run", "own.yaml", "--direct", *few, "launch.options.mem=9T")
    assert said.returncode == 2 and "Requested node configuration is not available" in said.stderr


def test_a_ticket_in_the_store_ends_no_other_job(cluster: Slurm, here: Shell) -> None:
    job = str(here.json("run", "own.yaml", "--direct", "--detach")["job"])
    (folder := here.folder / f".trnflow/store/jobs/{job}/submitted").mkdir()
    forged = {"platform": "slurm", "ticket": "--me", "earlier": [], "host": "x", "time": "2026-01-01T00:00:00Z"}
    (folder / "0.json").write_text(json.dumps(forged))
    other = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 60").strip()
    assert f"job {job} does not run: it is ordered" in here.error("jobs", job, "--cancel", code=2)
    assert other in tickets(cluster) and "CANCELLED" not in cluster.run(
        "squeue", "-h", "-t", "all", "-j", other, "-o", "%T"
    )
    cluster.run("scancel", other)


@pytest.mark.nightly
def test_a_sweeps_trials_are_jobs(cluster: Slurm, here: Shell, tmp_path: Path) -> None:
    settings = ("train.learning_rate=0.0003,0.001,0.003,0.01", "--sampler", "grid", "train.max_steps=40")
    there = here.json("sweep", "own.yaml", *settings, *ON_SLURM)
    alone = shell_in(tmp_path / "alone", tmp_path / "other")
    write_own(alone.folder)
    local = alone.json("sweep", "own.yaml", *settings)
    assert [trial["value"] for trial in there["trials"]] == [trial["value"] for trial in local["trials"]]
    for name in ("number", "settings", "value"):
        assert there["best"][name] == local["best"][name]
    assert len(here.json("jobs")["jobs"]) >= 4


def begun(here: Shell) -> subprocess.Popen[str]:
    write_own(here.folder)
    command = ("run", "own.yaml", "--direct", "--json", *ON_SLURM, *LONG)
    return here.start(*command, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)


def lose_node(cluster: Slurm) -> None:
    """Kill the node that runs the job, and start its slurmd again."""
    (node,) = {line.split()[0] for line in cluster.run("squeue", "-h", "-t", "R", "-o", "%N").splitlines()}
    cluster.kill_node(node)
    cluster.begin_node(node)


def check_trained(here: Shell, run: subprocess.Popen[str], wanted: dict[str, str]) -> None:
    printed, _ = run.communicate(timeout=900)
    done = json.loads(printed)
    assert digests(done)["train"] == wanted["train"]
    steps = curve(here, done["run"])
    assert steps == sorted(set(steps)), "each event once"


@pytest.mark.nightly
def test_a_node_that_dies_costs_the_steps_since_the_last_checkpoint(
    tmp_path: Path, wanted: dict[tuple[str, ...], dict[str, str]]
) -> None:
    (tmp_path / "here").mkdir()
    with slurm_cluster(slurmd_timeout=10) as cluster:
        run = begun(here := Shell(tmp_path / "here"))
        wait_for(lambda: any(curve(here, name) for name in runs(here)), 180)
        lose_node(cluster)
        check_trained(here, run, wanted[LONG])


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("slurmd_timeout", [10, 300])
def test_a_node_that_dies_while_it_uploads_a_checkpoint_costs_no_bit(
    slurmd_timeout: int,
    tmp_path: Path,
    s3_root: str,  # noqa: F811
    wanted: dict[tuple[str, ...], dict[str, str]],
) -> None:
    (tmp_path / "here").mkdir()
    bucket = s3_root.split("/")[2]

    def uploads() -> list[tuple[str, ...]]:
        """(step, file) of each upload to partial state that the server has answered."""
        found = (re.fullmatch(r"PUT /\S+/partial/\w+/(step-\d+)/(\S+)", line) for line in requests(bucket))
        return [match.groups() for match in found if match]

    def halted_in_an_upload(resume: ExitStack) -> str | None:
        """Return the step of which the server has the first file alone, and halt it; there must be a complete one."""
        seen = uploads()
        step = seen[-1][0] if seen else ""
        if [name for name, _ in seen].count(step) == 1 and any(file == "COMMIT" for _, file in seen):
            resume.enter_context(halted())
            if uploads() == seen:
                return step
            resume.close()
        return None

    with slurm_cluster(slurmd_timeout=slurmd_timeout) as cluster:
        here = Shell(tmp_path / "here")
        here.environ["TRNFLOW_STORE"] = s3_root
        run = begun(here)
        with ExitStack() as resume:
            step = wait_for(lambda: halted_in_an_upload(resume), 300, pause=0.005)
            lose_node(cluster)
        assert (step, "COMMIT") not in uploads(), "it was cut short"
        check_trained(here, run, wanted[LONG])
