"""A real Slurm of two nodes on this machine, in a folder of its own, from Debian's packages `slurm-wlm` and `munge`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.chaos.outside import free_port
from tests.helpers.waiting import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("n1", "n2")
CONFIGURATION = """\
ClusterName=trnflow
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={slurmd_timeout}
SlurmctldTimeout=10
KillWait=10
JobRequeue=1
MailProg=/bin/true
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=2,requeue_delay=100
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=1-0 State=UP
PartitionName=shut Nodes=n1 MaxTime=1-0 State=DOWN
"""
"""Both nodes share this machine's disk and network; `requeue_delay` is two minutes elsewhere."""


class Slurm:
    """A controller, two nodes and their munge, as child processes of this one."""

    def __init__(self, *, slurmd_timeout: int = 300) -> None:
        # short, since a socket's path has at most 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="trnflow-slurm-", dir="/tmp"))
        self.config = self.folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        ports = [free_port() for _ in range(3)]
        host = socket.gethostname().partition(".")[0]
        self.config.write_text(
            CONFIGURATION.format(host=host, ports=ports, folder=self.folder, slurmd_timeout=slurmd_timeout)
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        files = (f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed", "log"))
        self._begin("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files)
        wait_for((self.folder / "munge.socket").exists, 20)
        self._begin("slurmctld", "-D")
        for node in NODES:
            self.begin_node(node)
        wait_for(lambda: self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == ["idle"] * len(NODES), 60)

    def begin_node(self, node: str) -> None:
        self._begin("slurmd", "-D", "-N", node, label=node)

    def _begin(self, program: str, *arguments: str, label: str = "") -> None:
        with open(self.folder / f"{label or program}.out", "ab") as output:
            self._daemons[label or program] = subprocess.Popen(
                [program, *arguments], env=self.environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Slurm's programs find this cluster."""
        return os.environ | {"SLURM_CONF": str(self.config), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def run(self, *command: str) -> str:
        """Return what a program of Slurm's prints; "" if it fails."""
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60).stdout

    def log(self) -> str:
        return (self.folder / "slurmctld.log").read_text()

    def kill_node(self, node: str) -> None:
        """End all processes of a node at once, as when its machine loses power."""
        own = (f"{self.folder}/spool-{node}", f"{self.folder}/slurmd-{node}")
        victims = {self._daemons[node].pid}
        for pid in self.processes():
            # a slurmstepd has its node in its files alone
            if f"SLURMD_NODENAME={node}".encode() in _environ(pid).split(b"\0") or any(
                file.startswith(own) for file in _files(pid)
            ):
                victims.add(pid)
        # stopped first: a slurmstepd that outlives its job by a moment reports the job's end
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._daemons.pop(node).wait()

    def processes(self) -> list[int]:
        """Return the processes of this cluster and its jobs: those with its SLURM_CONF, or files of its folder."""
        mark = f"SLURM_CONF={self.config}".encode()
        return [
            pid
            for pid in _processes()
            if mark in _environ(pid).split(b"\0") or any(file.startswith(f"{self.folder}/") for file in _files(pid))
        ]

    def of_jobs(self) -> list[int]:
        """The processes of jobs: their scripts, and all that these started."""
        return [pid for pid in self.processes() if b"\0SLURM_JOB_ID=" in _environ(pid)]

    def close(self) -> None:
        """End all, by pid; AssertionError if a process was left by a job."""
        self.run("scancel", "--user=root")
        with suppress(AssertionError):
            wait_for(lambda: not self.run("squeue", "-h").strip(), 20)
        for process in reversed(self._daemons.values()):
            process.terminate()
        for process in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        time.sleep(0.2)
        left = self.processes()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"left running by Slurm: {left}"


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _files(pid: int) -> list[str]:
    try:
        return [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def require_slurm() -> None:
    """Skip a test visibly where no Slurm can be started; in CI it fails, unless `.ci/run` said that there is none."""
    search = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=search) is None]
    why = "Slurm needs root here" if os.geteuid() else f"{', '.join(missing)} not installed" if missing else ""
    if why and os.environ.get("CI") and not os.environ.get("TRNFLOW_NO_SLURM"):
        pytest.fail(f"{why}: apt-get install slurm-wlm munge")
    if why:
        pytest.skip(f"{why} (Debian: apt-get install slurm-wlm munge)")


@contextmanager
def slurm_cluster(*, slurmd_timeout: int = 300) -> Iterator[Slurm]:
    """A cluster whose programs and SLURM_CONF this process's environment has as long as it runs."""
    require_slurm()
    cluster = Slurm(slurmd_timeout=slurmd_timeout)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("SLURM_CONF", "PATH"):
                patch.setenv(name, cluster.environ[name])
            yield cluster
    finally:
        cluster.close()
