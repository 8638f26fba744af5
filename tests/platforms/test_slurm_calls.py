"""What is asked of Slurm's programs, and how their answers are read, without a cluster: `test_slurm.py` has a real one."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.platforms import slurm
from trnflow.tasks.platforms.protocol import Standing
from trnflow.tasks.platforms.slurm import Slurm, check_times, job_environ, option_error


@pytest.fixture
def platform(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path / "home", max_hours=1.51, grace_seconds=30, retries=2)


def answers(monkeypatch: pytest.MonkeyPatch, **said: str | Exception) -> list[tuple[str, ...]]:
    """Give programs' answers, and return what is asked of them."""
    asked: list[tuple[str, ...]] = []

    def call(program: str, *arguments: str, text: str = "") -> str:
        asked.append((program, *arguments))
        answer = said.get(program, "")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "_call", call)
    return asked


def test_a_job_gets_all_its_time_and_the_signal_before_its_end(platform: Slurm) -> None:
    arguments = [*replace(platform, options={"partition": "a", "exclusive": True})._arguments("a1")]
    # 90.6 minutes; a minute beside the grace
    assert "--time=91" in arguments and "--signal=B:TERM@90" in arguments
    assert {"--partition=a", "--exclusive", "--job-name=trnflow-a1"} <= {*arguments}
    # two jobs of one name take turns, and an option of the user's comes before ours
    assert "--dependency=singleton" in arguments and arguments.index("--partition=a") < arguments.index("--nodes=1")


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ("main*|up|infinite", ""),
        ("main*|up|2:00:00", ""),
        ("main*|up|1:30:36", ""),
        ("main*|up|1:30:35", "launch.max_hours is 1.51, and Slurm's partition main gives 1:30:35 at most"),
        ("main*|up|90:35", "gives 90:35 at most"),
        ("main*|up|0-02:00:00", ""),
        ("main*|up|1-00:00:00", ""),
        ("main*|drain|infinite", "Slurm's partition main is drain"),
        ("main*|down|infinite\nother|up|infinite", "Slurm's partition main is down"),
    ],
)
def test_a_partition_that_would_never_start_the_job_is_named(
    rows: str, wrong: str, platform: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    answers(monkeypatch, sinfo=rows)
    if not wrong:
        platform._check_partition()
        return
    with pytest.raises(ConfigError) as caught:
        platform._check_partition()
    assert wrong in caught.value.message


def test_one_of_the_partitions_that_a_recipe_names_is_enough(platform: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, sinfo="shut|down|infinite\nmain|up|infinite")
    replace(platform, options={"partition": "shut,main"})._check_partition()
    assert asked[0][-1] == "--partition=shut,main"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("1:00", 60),
        ("1:00:00", 3600),
        ("2-00:00:00", 172800),
        ("infinite", math.inf),
        ("UNLIMITED", math.inf),
    ],
)
def test_a_limit_is_read_in_seconds(text: str, seconds: float) -> None:
    assert slurm._seconds_of(text) == seconds


def test_each_state_of_slurm_waits_runs_or_has_ended(platform: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {
        "PENDING|N/A|Resources": Standing("waiting", "Resources"),
        "CONFIGURING|N/A|None": Standing("waiting", ""),
        "RUNNING|N/A|None": Standing("running", ""),
        "SUSPENDED|N/A|None": Standing("running", "suspended"),
        "COMPLETING|N/A|None": Standing("running", "completing"),
        "COMPLETED|N/A|None": Standing("ended", ""),
        "CANCELLED|N/A|None": Standing("ended", "CANCELLED"),
        "TIMEOUT|N/A|TimeLimit": Standing("ended", "TIMEOUT TimeLimit"),
        "": Standing("ended", ""),
    }
    for line, standing in states.items():
        answers(monkeypatch, squeue=f"{line}\n")
        assert platform.look("7") == standing
    answers(monkeypatch, squeue=MachineError("squeue: Invalid job id specified"))
    assert platform.look("7") == Standing("ended")
    answers(monkeypatch, squeue=MachineError("squeue: Unable to contact slurm controller"))
    assert platform.look("7") == Standing("unknown", "squeue: Unable to contact slurm controller")


@pytest.mark.parametrize(
    ("options", "ahead", "skipped"), [({}, 100, True), ({}, 5, False), ({"begin": "now+1hour"}, 100, False)]
)
def test_the_hold_of_a_requeued_job_is_skipped_but_not_a_begin_of_the_user_s(
    options: dict[str, Any], ahead: float, skipped: bool, platform: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = (datetime.now() + timedelta(seconds=ahead)).isoformat(timespec="seconds")
    asked = answers(monkeypatch, squeue=f"PENDING|{start}|BeginTime")
    assert replace(platform, options=options).look("7").state == "waiting"
    assert (("scontrol", "update", "JobId=7", "StartTime=now+5") in asked) is skipped


def test_what_ends_a_job_again_is_harmless_and_another_error_is_not(
    platform: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ("Invalid job id specified", "Job/step already completing or completed"):
        answers(monkeypatch, scancel=MachineError(f"scancel: {words}"))
        platform.end("7")
    answers(monkeypatch, scancel=MachineError("scancel: Access/permission denied"))
    with pytest.raises(MachineError, match="denied"):
        platform.end("7")


def test_a_refused_option_is_the_user_s_and_a_silent_controller_is_not(
    platform: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, sbatch=MachineError("sbatch: invalid partition specified: nope"))
    with pytest.raises(ConfigError, match="nope"):
        platform.submit("a1", ["true"])
    for words in ("Unable to contact slurm controller", "sbatch did not answer within 30 s"):
        answers(monkeypatch, sbatch=MachineError(words))
        with pytest.raises(MachineError):
            platform.submit("a1", ["true"])
    answers(monkeypatch, sbatch="submitted 7\n")
    with pytest.raises(MachineError, match="gave no job number"):
        platform.submit("a1", ["true"])


def test_logs_lie_in_a_folder_of_the_user_s_alone_and_their_end_is_shown(
    platform: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, sbatch="7\n")
    assert platform.submit("a1", ["true"]) == "7"
    folder = platform.home / "nodes"
    assert folder.stat().st_mode & 0o077 == 0
    assert platform.printed("7") == ""
    (folder / "slurm-7.out").write_text("x" * 9000 + "\nthe end\n")
    assert platform.printed("7").endswith("x\nthe end") and len(platform.printed("7")) <= slurm.LAST_BYTES


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("partition", "a", ""),
        ("exclusive", True, ""),
        ("time", 5, "is set by launch.max_hours"),
        # sbatch takes the beginning of a name for the whole
        ("job-n", "x", "is set by trnflow"),
        ("Partition", "a", "is no long option of sbatch"),
        ("p", "a", "is no long option of sbatch"),
        ("exclusive", False, "leave it out, or set it to true"),
        ("partition", ["a"], "is no value of an option"),
        ("comment", "a\n#SBATCH --uid=0", "holds a line break"),
    ],
)
def test_options_that_can_not_be_given_are_named(name: str, value: Any, wrong: str) -> None:
    said = option_error(name, value)
    assert wrong in said and bool(said) == bool(wrong)


def test_a_job_gets_no_service_of_this_machine_and_no_allocation_of_its_submitter() -> None:
    prefixes = ("PREFECT_", "MLFLOW_", "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "TRNFLOW_JOB_")
    theirs = {f"{prefix}X": "1" for prefix in prefixes}
    ours = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "t", "TRNFLOW_HOME": "/h"}
    assert job_environ({**theirs, **ours}) == ours


def test_times_in_which_training_can_not_save_are_refused() -> None:
    check_times(max_hours=0.09, grace_seconds=100)
    # 100 s of grace, a minute, and the minute that Slurm may be early
    with pytest.raises(ValueError, match=r"stopped 220 seconds before its end .* set max_hours=0\.1 or more"):
        check_times(max_hours=220 / 3600, grace_seconds=100)
    with pytest.raises(ValueError, match="grace_seconds may be 65,475 at most"):
        check_times(max_hours=100, grace_seconds=65476)


@pytest.mark.parametrize(
    ("code", "restarts", "state", "again"),
    [
        (75, "", "RUNNING", True), (137, 1, "RUNNING", True), (75, 2, "RUNNING", False), (75, 0, "COMPLETING", False),
        (1, 0, "RUNNING", False), (128, 0, "RUNNING", False), (130, 0, "RUNNING", False), (0, 0, "RUNNING", False),
    ],
)  # fmt: skip
def test_the_batch_script_starts_again_what_was_stopped_or_killed(
    code: int, restarts: int | str, state: str, again: bool, platform: Slurm, tmp_path: Path
) -> None:
    for name, text in {
        "squeue": f"echo {state}",
        "scontrol": f'echo "$@" >> {tmp_path}/asked',
        "sleep": "true",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", platform.script(["sh", "-c", f"exit {code}"])], capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)},
    )  # fmt: skip
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert (done.returncode, asked) == (code, "requeue 7\n" if again else "")
