"""Slurm: a job is a batch job of one node, submitted by `sbatch`.

The batch script starts a job again that was stopped or killed: Slurm itself does so only if the node dies.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.platforms.protocol import MARGIN_SECONDS, STOPPED, Standing

OWN_OPTIONS = (
    "array", "clusters", "dependency", "error", "help", "input", "job-name", "nodes", "no-requeue", "open-mode", "output",
    "parsable", "requeue", "signal", "test-only", "time", "usage", "version", "wait", "wrap",
)  # fmt: skip
"""Options of sbatch that the platform sets itself, or that would break it."""
CALL_SECONDS = 30.0
LAST_BYTES = 4096
NAME = "trnflow-"
EARLY_SECONDS = 60.0
"""Slurm may send the signal before a time limit so much earlier than asked."""
LONGEST_SIGNAL = 65535.0
"""Seconds before the time limit; Slurm takes no more."""
HOLD_SECONDS = 5
"""What a requeued job waits before it starts again."""
LONGEST_HOLD = 10.0
KEPT = frozenset({"SLURM_CONF", "SLURM_JWT"})
"""Variables of Slurm that a job takes over; the others describe the allocation in which this process itself may run."""

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "RESIZING"})

# No `srun`: shell and job are on one node. The shell alone gets Slurm's signal, and passes it on.
# `scontrol requeue` would bring back a job that is being cancelled: it is not RUNNING.
SCRIPT = """\
#!/bin/bash
export TRNFLOW_HOME={home}/nodes/"$SLURMD_NODENAME"
{command} &
job=$!
stopped=
trap 'stopped=yes; kill -TERM $job' TERM
wait $job
rc=$?
# the trap ended `wait`, which did not see the exit code; 127: it did
while [ -n "$stopped" ]; do
    stopped=
    wait $job
    seen=$?
    [ $seen -eq 127 ] || rc=$seen
done
restarts=${{SLURM_RESTART_COUNT:-0}}
if [ $rc -eq {stopped} ] || {{ [ $rc -gt 128 ] && [ $rc -ne 130 ]; }}; then
    if [ "$restarts" -ge {retries} ]; then
        echo "trnflow: exit code $rc after $restarts restarts, as many as launch.retries allows"
    elif [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" = RUNNING ]; then
        echo "trnflow: exit code $rc, restart $((restarts + 1)) of {retries}"
        scontrol requeue "$SLURM_JOB_ID" && sleep 60 # until Slurm ends this shell
    fi
fi
exit $rc
"""


@dataclass(frozen=True)
class Slurm:
    """The cluster of this machine's `sbatch`.

    Attributes:
        home: A folder on a disk that the nodes share with this machine.
        max_hours: The time limit of each start.
        grace_seconds: What training needs to save its state.
        retries: How often the batch script starts a job again.
        options: Further long options of sbatch; True is one without a value.
    """

    kind: ClassVar[str] = "slurm"
    python: ClassVar[str] = sys.executable
    home: Path
    max_hours: float
    grace_seconds: float
    retries: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ConfigError for what Slurm refuses, and for a partition that would let the job wait for ever."""
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "sbatch is not installed here", "run it on the cluster's login node, or set launch={} to run it here"
            )
        # says nothing of a partition that is down, nor of its time limit
        self._sbatch("check", ["true"], "--test-only")
        self._check_partition()

    def submit(self, job: str, command: Sequence[str]) -> str:
        """Submit a batch job; of two with one `job` the second waits until the first has ended."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ticket = self._sbatch(job, command, "--parsable").strip()
        if not ticket.isdecimal():
            raise MachineError(f"sbatch gave no job number: {_brief(ticket)}", "check launch.options")
        return ticket

    def find(self, job: str) -> str | None:
        # the name of a job is of its order's digest; of two the one that runs stands first
        if not re.fullmatch("[0-9a-z]+", job):
            return None
        return next(iter(_call("squeue", "-h", "--sort=-t", f"--name={NAME}{job}", "-o", "%i").split()), None)

    def look(self, ticket: str) -> Standing:
        try:
            line = _call("squeue", "-h", "-t", "all", "-j", ticket, "-o", "%T|%S|%r").strip()
        except MachineError as error:
            is_over = "Invalid job id" in error.message
            return Standing("ended") if is_over else Standing("unknown", error.message)
        state, start, reason = line.split("|", 2) if line else ("", "", "")
        if state in WAITING:
            if reason == "BeginTime" and "begin" not in self.options and _seconds_until(start) > LONGEST_HOLD:
                self._skip_hold(ticket)
            return Standing("waiting", _words(reason))
        if state in RUNNING:
            return Standing("running", "" if state == "RUNNING" else state.lower())
        is_well = state in ("", "COMPLETED")
        return Standing("ended", "" if is_well else f"{state} {_words(reason)}".strip())

    def end(self, ticket: str) -> None:
        try:
            _call("scancel", ticket)
        except MachineError as error:
            if "Invalid job id" not in error.message and "already complet" not in error.message:
                raise

    def printed(self, ticket: str) -> str:
        try:
            with open(self._folder / f"slurm-{ticket}.out", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def script(self, command: Sequence[str]) -> str:
        return SCRIPT.format(
            home=shlex.quote(str(self.home.absolute())),
            command=shlex.join(command),
            stopped=STOPPED,
            retries=self.retries,
        )

    @property
    def _folder(self) -> Path:
        return self.home.absolute() / "nodes"

    @property
    def _seconds(self) -> float:
        return self.max_hours * 3600

    def _arguments(self, job: str) -> Iterator[str]:
        for name, value in self.options.items():
            yield f"--{name}" if value is True else f"--{name}={value}"
        # as arguments, since variables such as SBATCH_SIGNAL win over lines of the script; the last of two equal ones counts
        yield from ("--nodes=1", "--requeue", "--open-mode=append", "--dependency=singleton", f"--job-name={NAME}{job}")
        yield f"--output={str(self._folder).replace('%', '%%')}/slurm-%j.out"
        yield f"--time={math.ceil(self._seconds / 60)}"
        yield f"--signal=B:TERM@{math.ceil(signal_seconds(self.grace_seconds))}"

    def _sbatch(self, job: str, command: Sequence[str], *how: str) -> str:
        try:
            return _call("sbatch", *self._arguments(job), *how, text=self.script(command))
        except MachineError as error:
            # no cluster answers, or none is configured here
            if any(words in error.message for words in ("contact slurm controller", "within", "resolve_ctls")):
                raise
            raise ConfigError(error.message, "change launch.options, or launch.max_hours") from None

    def _check_partition(self) -> None:
        wanted = self.options.get("partition") or os.environ.get("SBATCH_PARTITION")
        lines = _call("sinfo", "-h", "-o", "%P|%a|%l", *([f"--partition={wanted}"] if wanted else ())).splitlines()
        rows = [line.split("|") for line in lines]
        wrong = [self._unfit(*row) for row in rows if wanted or row[0].endswith("*")]
        if wrong and all(wrong):
            raise ConfigError(wrong[0], "choose another with launch.options.partition, or change launch.max_hours")

    def _unfit(self, partition: str, state: str, limit: str) -> str:
        """Return why a partition would never start the job; "" if it would."""
        name = partition.rstrip("*")
        if state != "up":
            return f"Slurm's partition {name} is {state}"
        if self._seconds > _seconds_of(limit):
            return f"launch.max_hours is {self.max_hours:g}, and Slurm's partition {name} gives {limit} at most"
        return ""

    def _skip_hold(self, ticket: str) -> None:
        # Slurm holds a requeued job for two minutes; one that starts within the second of its requeue is refused by its
        # old node (`Job credential revoked`), and ends as FAILED
        with contextlib.suppress(MachineError):
            _call("scontrol", "update", f"JobId={ticket}", f"StartTime=now+{HOLD_SECONDS}")


def signal_seconds(grace_seconds: float) -> float:
    """Return how long before the time limit a job gets SIGTERM."""
    return grace_seconds + MARGIN_SECONDS


def check_times(max_hours: float, grace_seconds: float) -> None:
    """Raise ValueError if a job can't save its state within its time limit."""
    ahead = signal_seconds(grace_seconds)
    if ahead > LONGEST_SIGNAL:
        raise ValueError(f"grace_seconds may be {LONGEST_SIGNAL - MARGIN_SECONDS:,.0f} at most with kind slurm")
    least = ahead + EARLY_SECONDS
    if max_hours * 3600 <= least:
        raise ValueError(
            f"max_hours is {max_hours:g}, and a job is stopped {least:.0f} seconds before its end (grace_seconds and two "
            f"minutes): set max_hours={math.ceil(least / 360 + 0.01) / 10:g} or more"
        )


def option_error(name: str, value: Any) -> str:
    """Return why an option can't be given to sbatch; "" if it can."""
    if not re.fullmatch(r"[a-z][a-z-]+", name):
        return f"{name!r} is no long option of sbatch, such as partition"
    # sbatch takes the beginning of an option's name for the whole
    if any(own.startswith(name) for own in OWN_OPTIONS):
        by = "launch.max_hours" if "time".startswith(name) else "trnflow"
        return f"{name} is set by {by}: leave it out"
    if value is False:
        return f"{name} is false: leave it out, or set it to true for an option without a value"
    if not isinstance(value, str | int | float):
        return f"{name}: {value!r} is no value of an option"
    if isinstance(value, str) and not value.isprintable():
        return f"{name} holds a line break or another control character"
    return ""


def job_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job gets: without this machine's services, nor an allocation's in which this process runs."""
    ours = ("PREFECT_", "MLFLOW_", "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "TRNFLOW_JOB_")
    return {name: value for name, value in environ.items() if name in KEPT or not name.startswith(ours)}


def _call(program: str, *arguments: str, text: str = "") -> str:
    """Return what a program of Slurm's prints. Raises MachineError with its own words."""
    try:
        ran = subprocess.run(
            [program, *arguments], input=text, capture_output=True, text=True, errors="replace", timeout=CALL_SECONDS,
            env=job_environ(os.environ),
        )  # fmt: skip
    except FileNotFoundError:
        raise MachineError(f"{program} is not installed here", "run it on the cluster's login node") from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"{program} did not answer within {CALL_SECONDS:g} s", "try again later: sinfo") from None
    if ran.returncode:
        raise MachineError(
            f"{program}: {_brief(ran.stderr or ran.stdout)}", "check with `sinfo` that the cluster answers"
        )
    return ran.stdout


def _brief(text: str) -> str:
    """Return the first line of a program's errors that says something, shortened."""
    lines = [
        re.sub(r"^(s\w+: )?(\w+ )?(error|fatal): |^(sbatch|allocation failure): ", "", line)
        for line in text.splitlines()
    ]
    return next((line.strip() for line in lines if line.strip()), "no reason given")[:200]


def _words(reason: str) -> str:
    """Return Slurm's reason, such as `Resources`; "" for none."""
    return "" if reason in ("None", "") else reason


def _seconds_until(start: str) -> float:
    """Return the seconds from now to one of Slurm's local times; 0 of `N/A`."""
    try:
        return float(datetime.fromisoformat(start).timestamp()) - time.time()
    except ValueError:
        return 0.0


def _seconds_of(limit: str) -> float:
    """Return a time limit in seconds: `infinite`, or `days-hours:minutes:seconds` with its last parts alone."""
    days, _, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in parts):
        return math.inf
    return float(days or 0) * 86400 + sum(int(part) * 60.0**place for place, part in enumerate(reversed(parts)))
