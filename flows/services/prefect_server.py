"""A local Prefect server in the background, one for each home, used by all runs of that home.

The server's state, database and log lie in `<home>/prefect`; the user's own Prefect profile is never changed. The
server listens on 127.0.0.1, on port 4200 or, if that port is taken, on another one. Starting a server takes about 5 s
(9 s with a new database); using one that runs takes milliseconds.

`prefect server start --background` is not used: it writes no log, fails when the port is taken or when a crash left a
pid file, leaves the server in the session of the process that started it, and fails when two processes start a server
at once. Here a file lock lets one process at a time start the server. That process binds the port and passes the
listening socket to the server. Whether the server runs is decided by its process, not by a pid file.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.services.prefect_address import configured_url, recorded_server
from tasks.errors import ProcessFailed
from tasks.system.private_files import make_home
from tasks.system.process import process_of, read_tag

HOST = "127.0.0.1"
PREFERRED_PORT = 4200
START_SECONDS = 120.0
STOP_SECONDS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0))
ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception)\b: |.*\| ERROR +\|")

# Does what `prefect server start` does, without loading Prefect's command line (1.5 s). Python's garbage collector is
# off during the imports, which makes them faster.
_SERVE = """
import gc, sys
gc.disable()
import socket, uvicorn
from prefect.server.api.server import create_app
server = uvicorn.Server(uvicorn.Config(create_app(final=True), log_level="warning"))
gc.freeze()
gc.enable()
server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


def ensure_server(home: Path) -> str:
    """Return the URL of a Prefect API for a run. A configured URL is returned unchecked; otherwise the local server is
    started if need be.

    Raises:
        ProcessFailed: the local server ended at once or did not answer in time; the message names its log.
    """
    if url := configured_url():
        return url
    start_server(home)
    return _wait(home)


def start_server(home: Path) -> None:
    """Start the local server of `home` unless it runs already. Returns before the server answers."""
    make_home(home)
    folder = home / "prefect"
    folder.mkdir(exist_ok=True)
    with _one_starter(folder):
        if running_server(home) is None:
            with contextlib.closing(_listener((PREFERRED_PORT, recorded_server(home).get("port", 0), 0))) as listener:
                _spawn(folder, listener)


def stop_server(home: Path) -> bool:
    """Stop the local server of `home`, even if another process started it. Return False when no server was running."""
    server = running_server(home)
    if server is None:
        return False
    for number, seconds in STOP_SECONDS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server["pid"], number)
        deadline = time.monotonic() + seconds
        while running_server(home) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not running_server(home):
            (home / "prefect" / "server.json").unlink(missing_ok=True)
            return True
    raise ProcessFailed(f"the local Prefect server (process {server['pid']}) does not stop", f"kill -9 {server['pid']}")


def running_server(home: Path) -> dict[str, Any] | None:
    """Return the record of the local server of `home` (see `recorded_server`) if its process runs on this machine, else
    None. The server may not answer yet."""
    server = recorded_server(home)
    process = read_tag(server.get("process", ""))
    return server if process and process.is_running_here() else None


def last_error(home: Path) -> str:
    """Return the last error in the log of the local server of `home` (the last line of a traceback); empty when the log
    has no error."""
    server = recorded_server(home)
    log = home / "prefect" / "server.log"
    if configured_url() not in (None, server.get("url")) or not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if ERROR_LINE.match(line)]
    return errors[-1] if errors else ""


def _wait(home: Path) -> str:
    """Wait until the local server answers, and return its URL."""
    deadline = time.monotonic() + START_SECONDS
    while (server := running_server(home)) and time.monotonic() < deadline:
        if _answers(server["url"]):
            return str(server["url"])
        time.sleep(0.1)
    log = home / "prefect" / "server.log"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    raise ProcessFailed(
        "the local Prefect server did not start" + (f": {lines[-1]}" if lines else ""),
        f"read {log}; or set PREFECT_API_URL to a server of yours, or run with --direct (no Prefect)",
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def _one_starter(folder: Path) -> Iterator[None]:
    """Hold the file lock for starting the server; wait while another process holds it. The kernel releases the lock of
    a process that dies."""
    with (folder / "server.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _spawn(folder: Path, listener: socket.socket) -> None:
    """Start the server on a listening socket, in a session of its own, and write server.json."""
    port = listener.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, str(listener.fileno())],
            env=_environment(folder, port),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(listener.fileno(),),
        )
    server.returncode = 0  # the server outlives this process on purpose; without this, `Popen` would warn about it
    page = f"http://{HOST}:{port}"
    state = {
        "url": f"{page}/api", "page": page, "port": port, "pid": server.pid, "process": process_of(server.pid).tag,
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "log": str(log),
    }  # fmt: skip
    (folder / "server.json.new").write_text(json.dumps(state), encoding="utf-8")
    (folder / "server.json.new").replace(folder / "server.json")


def _environment(folder: Path, port: int) -> dict[str, str]:
    """Return the environment variables of the server. All of Prefect's services stay on: idle, they take 1.5 % of a
    core. The web page is unpacked into `folder`, in case Prefect's own folder is read-only."""
    foreign = {"PREFECT_PROFILE", "PREFECT_PROFILES_PATH"}
    environ = {name: value for name, value in os.environ.items() if name not in foreign}
    environ |= {
        "PREFECT_HOME": str(folder.resolve()),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    prefect = importlib.util.find_spec("prefect")
    if prefect and prefect.origin and not os.access(Path(prefect.origin).parent / "server", os.W_OK):
        environ["PREFECT_UI_STATIC_DIRECTORY"] = str(folder.resolve() / "ui")
    return environ


def _listener(ports: tuple[int, ...]) -> socket.socket:
    """Return a listening socket on the first of `ports` that is free; port 0 means any free port."""
    for port in dict.fromkeys(ports):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(128)
            return listener
        except OSError:
            listener.close()
    raise ProcessFailed(f"no port is free on {HOST} for the local Prefect server", "free one, or set PREFECT_API_URL")
