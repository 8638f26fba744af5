"""Jobs on a real Slurm of two nodes, with small shell commands in place of `trnflow job`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.outside import free_port
from tests.helpers.slurm import Slurm as Cluster
from tests.helpers.slurm import slurm_cluster
from tests.helpers.waiting import wait_for
from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.platforms import slurm
from trnflow.tasks.platforms.protocol import Platform, Standing
from trnflow.tasks.platforms.slurm import Slurm

CHILD = "trap 'echo TERM of a child' TERM; while sleep 0.2; do true; done"
SAVES = f"""
import os, signal, subprocess, sys, time

child = subprocess.Popen(["bash", "-c", {CHILD!r}, *sys.argv[1:]])

def save(*_):
    print("TERM", flush=True)
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
try:
    time.sleep(0 if os.environ.get("SLURM_RESTART_COUNT") else 600)
finally:
    child.kill()
"""
"""Saves its state on SIGTERM, as training does; a second start ends well."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def platform(cluster: Cluster) -> Slurm:
    return Slurm(cluster.folder / "a home of %j", max_hours=1, grace_seconds=1, retries=1)


@pytest.fixture(scope="module")
def near_its_limit(platform: Slurm, cluster: Cluster) -> str:
    """A job whose time limit is a minute away; Slurm looks at limits twice a minute, so that other tests run meanwhile."""
    ticket = platform.submit("limit", ["python3", "-c", SAVES])
    wait_for(lambda: "begun" in platform.printed(ticket), 20)
    cluster.run("scontrol", "update", f"JobId={ticket}", "TimeLimit=1")
    return ticket


def shell(platform: Platform, job: str, script: str) -> str:
    return platform.submit(job, ["bash", "-c", script])


def ended(platform: Platform, ticket: str, seconds: float = 60) -> Standing:
    return wait_for(lambda: (at := platform.look(ticket)).state == "ended" and at, seconds)


def test_a_job_waits_runs_and_ends(
    platform: Slurm, near_its_limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI", "SLURM_RESTART_COUNT", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "of this process")
    monkeypatch.setenv("OURS", "kept")
    platform.check()
    script = f"env; echo 'it''s \"one\"' $TRNFLOW_HOME; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    ticket = shell(platform, "a1", script)
    assert platform.look(ticket).state == "waiting"
    wait_for(lambda: platform.look(ticket) == Standing("running"), 20)
    (tmp_path / "go").touch()
    assert ended(platform, ticket) == Standing("ended")
    printed = platform.printed(ticket).splitlines()
    assert f'its "one" {platform.home}/nodes/n1' in printed or f'its "one" {platform.home}/nodes/n2' in printed
    assert "OURS=kept" in printed and "SLURM_JOB_NAME=trnflow-a1" in printed
    assert not [line for line in printed if "of this process" in line]


def test_a_job_that_was_stopped_or_killed_starts_again_and_no_other(platform: Slurm) -> None:
    codes = {75: "exit 75", 137: "kill -9 $$", 1: "exit 1", 130: "exit 130"}
    once = 'echo begun; [ -n "$SLURM_RESTART_COUNT" ] || {}'
    tickets = {code: shell(platform, f"b{code}", once.format(end)) for code, end in codes.items()}
    always = shell(platform, "always", "exit 75")
    states = {code: ended(platform, ticket) for code, ticket in tickets.items()}
    assert states[75] == states[137] == Standing("ended")
    assert states[1] == states[130] == Standing("ended", "FAILED NonZeroExitCode")
    starts = {code: platform.printed(ticket).splitlines().count("begun") for code, ticket in tickets.items()}
    assert starts == {75: 2, 137: 2, 1: 1, 130: 1}
    assert ended(platform, always).why == "FAILED NonZeroExitCode"
    printed = platform.printed(always)
    assert "exit code 75, restart 1 of 1" in printed and "exit code 75 after 1 restarts" in printed


def test_end_leaves_no_process_and_brings_no_job_back(platform: Slurm, cluster: Cluster) -> None:
    ticket = replace(platform, retries=9).submit("c1", ["python3", "-c", SAVES, "mark"])
    wait_for(lambda: "begun" in platform.printed(ticket), 20)
    # the job, and its child
    assert len(with_argument(cluster, "mark")) == 2
    platform.end(ticket)
    assert ended(platform, ticket).why.startswith("CANCELLED")
    wait_for(lambda: "trnflow-c1" not in cluster.run("squeue", "-o", "%j"), 20)
    assert not with_argument(cluster, "mark")
    assert platform.printed(ticket).count("begun") == 1
    platform.end(ticket)
    platform.end("987654")
    assert platform.look("987654") == Standing("ended")


def with_argument(cluster: Cluster, argument: str) -> list[int]:
    """Return the processes of the cluster and its jobs that have an argument, but for the batch script."""
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in cluster.processes()}
    return [pid for pid, file in lines.items() if file.exists() and argument in file.read_text().split("\0")]


def test_of_two_submits_of_a_job_the_second_begins_when_the_first_has_ended(platform: Slurm, tmp_path: Path) -> None:
    script = f"date +%s.%N >> {tmp_path}/times; sleep 1; date +%s.%N >> {tmp_path}/times"
    tickets = [shell(platform, "d1", script) for _ in range(2)]
    wait_for(lambda: platform.look(tickets[0]).state == "running", 20)
    assert platform.look(tickets[1]) == Standing("waiting", "Dependency")
    assert ended(platform, tickets[1]) == ended(platform, tickets[0]) == Standing("ended")
    times = [*map(float, (tmp_path / "times").read_text().split())]
    assert len(times) == 4 and times == sorted(times)


def test_a_user_s_export_hides_nothing_that_a_job_needs(platform: Slurm) -> None:
    wide = replace(platform, options={"cpus-per-task": 2, "export": "NONE", "exclusive": True})
    ticket = shell(wide, "e1", "echo cpus $SLURM_CPUS_ON_NODE home $TRNFLOW_HOME")
    assert ended(wide, ticket) == Standing("ended")
    assert f"cpus 2 home {platform.home}/nodes/n" in platform.printed(ticket)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"options": {"partition": "nope"}}, "sbatch: invalid partition specified: nope"),
        ({"options": {"partition": "shut"}}, "Slurm's partition shut is down"),
        ({"max_hours": 48}, "launch.max_hours is 48, and Slurm's partition main gives 1-00:00:00 at most"),
        ({"options": {"gres": "gpu:1"}}, "sbatch: Invalid generic resource (gres) specification"),
        ({"options": {"no-such-option": True}}, "sbatch: unrecognized option '--no-such-option'"),
        ({"options": {"mem": "9T"}}, "sbatch: Requested node configuration is not available"),
    ],
)  # fmt: skip
def test_what_slurm_refuses_is_said_before_a_job_is_submitted(platform: Slurm, changes: dict, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(platform, **changes).check()
    assert caught.value.message.startswith(says) and "\n" not in caught.value.message
    assert "launch." in caught.value.fix


def test_one_of_several_partitions_is_enough(platform: Slurm) -> None:
    replace(platform, options={"partition": "shut,main"}).check()


def test_variables_of_sbatch_change_nothing_that_a_job_needs(platform: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OPEN_MODE": "truncate", "NO_REQUEUE": "1", "TIMELIMIT": "5", "SIGNAL": "USR1@9"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    ticket = shell(platform, "f1", 'scontrol -o show job $SLURM_JOB_ID; [ -n "$SLURM_RESTART_COUNT" ] || exit 75')
    assert ended(platform, ticket) == Standing("ended")
    printed = platform.printed(ticket)
    assert printed.count("TimeLimit=01:00:00") == 2 and printed.count("Requeue=1") == 2


def test_a_machine_without_slurm_is_named(platform: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        platform.check()
    assert str(caught.value).startswith("sbatch is not installed here. Fix: run it on the cluster's login node")


def elsewhere(cluster: Cluster, port: int) -> str:
    """A configuration whose controller is said to be at another port."""
    lines = [line for line in cluster.config.read_text().splitlines() if "SlurmctldPort" not in line]
    file = cluster.folder / f"port-{port}.conf"
    file.write_text("\n".join([*lines, f"SlurmctldPort={port}", "MessageTimeout=1", ""]))
    return str(file)


def test_a_controller_that_is_away_is_unknown_and_no_end(
    platform: Slurm, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", elsewhere(cluster, free_port()))
    standing = platform.look("1")
    assert standing.state == "unknown" and standing.why.startswith("squeue: Unable to contact slurm controller")
    for call in (platform.check, lambda: shell(platform, "i1", "true"), lambda: platform.end("1")):
        with pytest.raises(MachineError, match="Unable to contact slurm controller") as caught:
            call()
        assert "sinfo" in caught.value.fix


def test_a_controller_that_never_answers_is_not_waited_for(
    platform: Slurm, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "CALL_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SLURM_CONF", elsewhere(cluster, silent.getsockname()[1]))
        assert platform.look("1") == Standing("unknown", "squeue did not answer within 0.3 s")
        with pytest.raises(MachineError, match=r"sbatch did not answer within 0\.3 s"):
            platform.check()


def test_training_is_told_before_the_time_limit_saves_and_goes_on(platform: Slurm, near_its_limit: str) -> None:
    assert ended(platform, near_its_limit, 60) == Standing("ended")
    printed = platform.printed(near_its_limit)
    places = [printed.index(word) for word in ("begun", "TERM\n", "saved", "exit code 75, restart 1 of 1")]
    assert places == sorted(places) and printed.count("begun") == 2 and "TIME LIMIT" not in printed
    # a stage's process takes a second SIGTERM for the wish to leave without saving
    assert printed.count("TERM\n") == 1 and "of a child" not in printed


@pytest.mark.nightly
def test_the_job_of_a_node_that_died_runs_on_another(tmp_path: Path) -> None:
    with slurm_cluster(slurmd_timeout=10) as cluster:
        platform = Slurm(tmp_path, max_hours=1, grace_seconds=1, retries=1)
        ticket = shell(platform, "g1", 'echo "start $SLURMD_NODENAME"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600')
        wait_for(lambda: "start" in platform.printed(ticket), 20)
        node = platform.printed(ticket).split()[-1]
        cluster.kill_node(node)
        states = []

        def over() -> bool:
            states.append(platform.look(ticket))
            return states[-1].state == "ended"

        wait_for(over, 180, pause=1)
        assert states[-1] == Standing("ended"), states
        other = {"n1": "n2", "n2": "n1"}[node]
        assert f"start {other}" in platform.printed(ticket)


def test_nothing_is_asked_of_a_shell(platform: Slurm, tmp_path: Path) -> None:
    """Values of options and commands are arguments, whatever is in them."""
    odd = replace(platform, options={"comment": f"$(touch {tmp_path}/a) `touch {tmp_path}/b`; touch {tmp_path}/c"})
    ticket = odd.submit("h1", ["printf", "%s|", f"$(touch {tmp_path}/d)", "'", "a b", ""])
    assert ended(odd, ticket) == Standing("ended")
    assert f"$(touch {tmp_path}/d)|'|a b||" in odd.printed(ticket) and not os.listdir(tmp_path)


@pytest.mark.parametrize("words", ["Invalid job id specified", "Job/step already completing or completed"])
def test_to_end_what_is_over_is_harmless_also_where_scancel_calls_it_an_error(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 22.05 ends with 0 there."""
    program = tmp_path / "scancel"
    program.write_text(f"#!/bin/sh\necho 'scancel: error: Kill job error on job id 5: {words}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Slurm(tmp_path, max_hours=1, grace_seconds=1, retries=1).end("5")
