"""Which addresses the processes of a run listen on: Prefect's server and worker, a local Dask, a training of two ranks."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from tests.flows.test_deployments import PROJECT
from tests.launch.processes import marked

LISTENING = "0A"
RUN = [
    "data.limit=60",
    "train.global_batch=32",
    "train.engine=native",
    "train.devices=2",
    "train.epochs=1",
    "task_runner.kind=dask",
]
RUN += ["task_runner.workers=1", "tracking.enabled=false"]


def listeners(pid: int) -> set[tuple[str, str]]:
    """(program, address) of each TCP socket on which a process listens."""
    found = set()
    with contextlib.suppress(OSError):
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
        program = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and fields[9] in inodes:
                    found.add((program[:300], address(fields[1])))
    return found


def address(hexadecimal: str) -> str:
    """The IP address of `0100007F:1F90`, as the kernel writes it: words of four bytes, each in the machine's order."""
    words = hexadecimal.partition(":")[0]
    packed = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    found = ipaddress.ip_address(packed)
    return str(getattr(found, "ipv4_mapped", None) or found)


def test_everything_listens_on_this_machine_alone(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "TRNFLOW_"))}
    environ = kept | {"HOME": str(tmp_path), "TRNFLOW_HOME": str(tmp_path / "home"), "TRNFLOW_TEST_MARK": mark}
    trnflow = [sys.executable, "-m", "trnflow"]
    quiet = {"cwd": PROJECT, "env": environ, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    found: set[tuple[str, str]] = set()
    worker = subprocess.Popen([*trnflow, "worker"], start_new_session=True, **quiet)
    try:
        with subprocess.Popen([*trnflow, "run", "demo", "--until", "train", *RUN], **quiet) as run:
            while run.poll() is None:
                found |= {one for pid in marked(f"TRNFLOW_TEST_MARK={mark}") for one in listeners(pid)}
                time.sleep(0.2)
        assert run.returncode == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGTERM)
        worker.wait(60)
        subprocess.run([*trnflow, "down"], timeout=60, check=True, **quiet)
    # ranks are forked from a fork of the warm parent, and bear its command line
    for part in ("server_process.py", "prefect_worker", "spawn_main", "warm_parent:serve"):
        assert any(part in program for program, _ in found), f"no socket of {part} was seen: {found}"
    assert {host for _, host in found} <= {"127.0.0.1", "::1"}, found
