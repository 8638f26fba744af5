"""A local Prefect server in the background, one for each home (the folder of local state, TRNFLOW_HOME), used by all
runs of that home.

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
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trnflow.flows.services.prefect_address import configured_url, recorded_server
from trnflow.tasks.errors import ConfigError, ProcessFailed
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.process import process_of, read_tag
from trnflow.tasks.system.redaction import scrub

HOST = "127.0.0.1"
PREFERRED_PORT = 4200
START_SECONDS = 120.0
STOP_SECONDS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0))
DATABASE_SETTINGS = tuple(
    f"PREFECT_{of}_DATABASE_{what}" for what in ("CONNECTION_URL", "HOST") for of in ("SERVER", "API")
)
"""Environment variables of Prefect that name the server's database."""
LEAST_FREE = 1 << 20
"""The free bytes below which a disk counts as full: a server's database and log begin with more."""
DATABASE_TROUBLES = {
    "Can't locate revision": "was made by another version of Prefect",
    "file is not a database": "is damaged",
    "disk image is malformed": "is damaged",
}
"""Part of what Prefect logs when it can't use its database -> what our error says about the database."""
MOVE_ASIDE = "move that file away and run `trnflow deploy` again, which loses the pages of past runs but no result"
FREE_SPACE = "free some space there"
ERROR_LINE = re.compile(r"(\w+\.)*\w*([Ee]rror|Exception)\b: |.*\| ERROR +\|")

IDLE_SECONDS = 3600.0
"""After this time without use, a server ends that was started by a run or another command, not by `trnflow up`."""
IDLE = "TRNFLOW_SERVER_IDLE_SECONDS"
"""The environment variable whose value, a number of seconds, replaces IDLE_SECONDS."""
PROGRAM = Path(__file__).with_name("server_process.py")


def ensure_server(home: Path, *, stays: bool = False) -> str:
    """Return the URL of a Prefect API for a run, and start the local server of `home` (the folder of local
    state, TRNFLOW_HOME) if need be.

    A URL that the user configured (such as PREFECT_API_URL) is returned unchecked, and no server is started. Otherwise
    return when the local server answers. stays: whether the server runs until `stop_server`; otherwise it ends by
    itself when nothing has used it for an hour, or for TRNFLOW_SERVER_IDLE_SECONDS.

    Raises:
        ConfigError: TRNFLOW_SERVER_IDLE_SECONDS is no positive number.
        ProcessFailed: the local server ended at once or did not answer in time; the message names its log.
    """
    if url := configured_url():
        return url
    start_server(home, stays=stays)
    return _wait(home)


def start_server(home: Path, *, stays: bool = False) -> None:
    """Start the local server of `home` unless it runs already. Returns before the server answers.

    Args:
        home: The folder of local state, whose folder `prefect` has the server's database and log.
        stays: Whether the server runs until `stop_server`; also changes a server that runs already. Otherwise the
            server ends by itself when nothing has used it for an hour, or TRNFLOW_SERVER_IDLE_SECONDS
            (`server_process.py`).

    Raises:
        ConfigError: TRNFLOW_SERVER_IDLE_SECONDS is no positive number.
        ProcessFailed: No port is free.
    """
    make_home(home)
    folder = home / "prefect"
    folder.mkdir(exist_ok=True)
    seconds = _idle_seconds()
    with _one_starter(folder):
        server = running_server(home)
        if server is not None:
            if stays and not server.get("stays"):
                _record(folder, server | {"stays": True})
            return
        with contextlib.closing(_listener((PREFERRED_PORT, recorded_server(home).get("port", 0), 0))) as listener:
            _record(folder, _spawn(folder, listener, seconds) | {"stays": stays})


def stop_server(home: Path) -> bool:
    """Stop the local Prefect server of `home` (the folder of local state, TRNFLOW_HOME), even if another process
    started it, and wait until it has ended. Return whether a server was running. ProcessFailed when the server does not
    end within 30 s."""
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
    """Return the content of `<home>/prefect/server.json`, such as "url", "pid" and "log" of the local server, if the
    server's process runs on this machine, else None. The server may not answer yet."""
    server = recorded_server(home)
    process = read_tag(server.get("process", ""))
    return server if process and process.is_running_here() else None


def last_error(home: Path) -> str:
    """Return the last error in the log of the local Prefect server, `<home>/prefect/server.log` (the last line of a
    traceback); empty when the log has no error or is missing, or when the user configured another server."""
    server = recorded_server(home)
    log = home / "prefect" / "server.log"
    if configured_url() not in (None, server.get("url")) or not log.exists():
        return ""
    return _last_error(log.read_text(encoding="utf-8", errors="replace").splitlines())


def cause_of_failure(home: Path) -> tuple[str, str]:
    """Return (cause, fix) as text, for the Prefect server in use, when it answers requests with errors: why the server
    fails, and what the user can do.

    The only cause that is recognised is a full disk of the local server (folder `<home>/prefect`). For all others the
    cause is empty, and the fix says where to look. The server's log is not searched: it may hold errors from days ago.
    """
    folder = home / "prefect"
    if configured_url() not in (None, recorded_server(home).get("url")):
        return "", "read the server's log; does its database run?"
    if setting := _database_setting():
        return "", f"check {setting}, read {folder / 'server.log'}"
    if folder.is_dir() and shutil.disk_usage(folder).free < LEAST_FREE:
        return f"the disk of {folder} is full", FREE_SPACE
    return "", f"read {folder / 'server.log'}"


def _last_error(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if ERROR_LINE.match(line)), "")


def _wait(home: Path) -> str:
    """Wait until the local server answers, and return its URL."""
    deadline = time.monotonic() + START_SECONDS
    while (server := running_server(home)) and time.monotonic() < deadline:
        if _answers(server["url"]):
            return str(server["url"])
        time.sleep(0.1)
    log = home / "prefect" / "server.log"
    if server is not None:
        raise ProcessFailed(
            f"the local Prefect server (process {server['pid']}) runs, but does not answer after {START_SECONDS:.0f} s",
            f"try again in a while, if this machine is busy; else read {log}, or run with --direct (no Prefect)",
        )
    raise _not_started(home / "prefect")


def _not_started(folder: Path) -> ProcessFailed:
    """Return the error about a server that ended at once. Its cause is known by its log, or by the disk."""
    log = folder / "server.log"
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    what, fix = _cause(folder, text)
    elsewhere = "or set PREFECT_API_URL to a server of yours, or run with --direct (no Prefect)"
    return ProcessFailed(
        "the local Prefect server did not start" + (f": {what}" if what else ""), f"{fix}; {elsewhere}"
    )


def _cause(folder: Path, text: str) -> tuple[str, str]:
    """Return why a server did not start or fails, and the fix. text: its log."""
    log, file = folder / "server.log", folder / "prefect.db"
    if setting := _database_setting():
        return scrub(_last_error(text.splitlines())), f"check {setting}, read {log}"
    if shutil.disk_usage(folder).free < LEAST_FREE or "disk is full" in text:
        return f"the disk of {folder} is full", FREE_SPACE
    for sign, found in DATABASE_TROUBLES.items():
        if sign in text:
            return f"its database {file} {found}", f"{MOVE_ASIDE}, or install the Prefect that made it"
    lines = text.splitlines()
    return scrub(_last_error(lines) or (lines[-1] if lines else "")), f"read {log}"


def _database_setting() -> str:
    """Return the name of the environment variable that names the server's database; empty for the default, a SQLite file."""
    return next((name for name in DATABASE_SETTINGS if os.environ.get(name)), "")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def _one_starter(folder: Path) -> Iterator[None]:
    """Hold the file lock for starting the server; wait while another process holds it. The kernel releases the lock of
    a process that dies. The file is touched, by which a server that is about to end by itself stays."""
    with (folder / "server.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(lock.fileno())
        yield


def _spawn(folder: Path, listener: socket.socket, seconds: float) -> dict[str, Any]:
    """Start the server on a listening socket, in a session of its own, and return its record. seconds: the time without
    use after which the server ends."""
    port = listener.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), str(listener.fileno()), str(seconds)],
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
    return {
        "url": f"{page}/api", "page": page, "port": port, "pid": server.pid, "process": process_of(server.pid).tag,
        "started": now(), "log": str(log),
    }  # fmt: skip


def _record(folder: Path, server: dict[str, Any]) -> None:
    """Write the record of a server to server.json."""
    (folder / "server.json.new").write_text(json.dumps(server), encoding="utf-8")
    (folder / "server.json.new").replace(folder / "server.json")


def _idle_seconds() -> float:
    """Return the time without use after which a server ends."""
    text = os.environ.get(IDLE) or str(IDLE_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ConfigError(f"{IDLE} is {text!r}, and must be a positive number of seconds", f"correct or unset {IDLE}")
    return seconds


def _environment(folder: Path, port: int) -> dict[str, str]:
    """Return the environment variables of the server. All of Prefect's services stay on: idle, they take 1.5 % of a
    core. The web page is unpacked into `folder`, in case Prefect's own folder is read-only."""
    foreign = {"PREFECT_PROFILE", "PREFECT_PROFILES_PATH"}
    environ = {name: value for name, value in os.environ.items() if name not in foreign}
    environ |= {
        "PREFECT_HOME": str(folder.resolve()),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_URL": os.environ.get("PREFECT_UI_URL") or f"http://{HOST}:{port}",  # for links in notifications
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
