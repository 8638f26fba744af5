"""A local Prefect server in the background, one for each home, on 127.0.0.1.

State, database and log lie in `<home>/prefect`. Starting takes 5 s. It is not `prefect server
start --background`, which writes no log, and fails on a taken port, a left pid file or a second start.
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
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from trnflow.flows.services.login import SERVER, forget_login, make_login, read_login, write_helpers
from trnflow.flows.services.prefect_address import CLIENT, ServerRecord, configured_login, foreign_url, recorded_server
from trnflow.tasks.errors import ConfigError, ProcessFailed
from trnflow.tasks.system.child_environ import LOGINS
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.process import process_of, read_tag
from trnflow.tasks.system.redaction import scrub
from trnflow.tasks.system.whole_file import write_whole

HOST = "127.0.0.1"
PREFERRED_PORT = 4200
START_SECONDS = 120.0
STOP_SECONDS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0))
DATABASE_SETTINGS = tuple(
    f"PREFECT_{of}_DATABASE_{what}" for what in ("CONNECTION_URL", "HOST") for of in ("SERVER", "API")
)
"""Prefect's variables that name the server's database."""
ASK_SECONDS = 1.5
"""How long a server may take for a question that is no part of a run."""
LEAST_FREE = 1 << 20
"""Bytes; a disk with fewer free counts as full."""
DATABASE_TROUBLES = {
    "Can't locate revision": "was made by another version of Prefect",
    "file is not a database": "is damaged",
    "disk image is malformed": "is damaged",
}
"""{part of Prefect's log: what our error says about the database}"""
MOVE_ASIDE = "move that file away and run `trnflow deploy` again, which loses the pages of past runs but no result"
FREE_SPACE = "free some space there"
ERROR_LINE = re.compile(r"(\w+\.)*\w*([Ee]rror|Exception)\b: |.*\| ERROR +\|")

SERVER_NEEDS = re.compile(
    r"(PREFECT|TRNFLOW|PG|PYTHON|LC_)\w*|(?i:(http|https|all|no)_proxy)|(SSL_CERT|CURL_CA|REQUESTS_CA)_\w+"
    r"|LANG|LANGUAGE|TZ|PATH|HOME|USER|TMPDIR|LD_LIBRARY_PATH"
)
"""The names of variables that the server's process gets."""

# a server that `trnflow up` did not start ends after this time without use
IDLE_SECONDS = 3600.0
IDLE = "TRNFLOW_SERVER_IDLE_SECONDS"
"""The variable that replaces IDLE_SECONDS."""
PROGRAM = Path(__file__).with_name("server_process.py")


def ensure_server(home: Path, *, stays: bool = False) -> str:
    """Return the URL of a Prefect API; start the home's local server if no other
    is configured. stays: it runs until
    `stop_server`. Raises ConfigError for a wrong TRNFLOW_SERVER_IDLE_SECONDS, ProcessFailed if the server ended at once or did
    not answer in time."""
    if url := foreign_url(home):
        return url
    start_server(home, stays=stays)
    return _wait(home)


def use_server(home: Path) -> str:
    """Set the variables by which Prefect, imported later, finds the API of `ensure_server`, and logs in; return its URL. Raises
    as `ensure_server`."""
    url = os.environ["PREFECT_API_URL"] = ensure_server(home)
    if login := client_login(home, url):
        os.environ[CLIENT] = login
    else:
        os.environ.pop(CLIENT, None)
    return url


def client_login(home: Path, url: str) -> str | None:
    """Return the login for Prefect's API at `url`: the home's for its own running server, and for no other; else the user's, if
    any."""
    server = running_server(home)
    own = make_login(home) if server and server.get("login") else None
    if server and url == server["url"]:
        return own or configured_login()
    configured = configured_login()
    return None if configured and configured == read_login(home) else configured


def asks_for_login(url: str) -> bool:
    """Return whether Prefect's API at `url` refuses whoever has no login; True if it does not answer in time."""
    try:
        with urllib.request.urlopen(f"{url}/admin/version", timeout=ASK_SECONDS):
            return False
    except OSError:
        return True


def start_server(home: Path, *, stays: bool = False) -> None:
    """Start the local server of `home` unless it runs, and return before it answers. stays: also changes a running
    server.

    Raises ConfigError for a wrong TRNFLOW_SERVER_IDLE_SECONDS, ProcessFailed if no port is free.
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
            write_helpers(home, f"http://{HOST}:{listener.getsockname()[1]}")
            _record(folder, _spawn(home, listener, seconds) | {"stays": stays})
    if not stays:
        sys.stderr.write(
            "starting the local Prefect server: up to half a minute, once; later commands find it running\n"
        )


def stop_server(home: Path) -> bool:
    """Stop the local server and wait for its end; return whether one ran. Raises ProcessFailed after 30 s."""
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
            forget_login(home / "prefect")
            return True
    raise ProcessFailed(f"the local Prefect server (process {server['pid']}) does not stop", f"kill -9 {server['pid']}")


def stop_open_server(home: Path) -> list[str] | None:
    """Stop a local server of an earlier version, which asks for no login; return the names of its flow runs in progress, None
    if no such server runs. Raises as `stop_server`."""
    server = running_server(home)
    if server is None or server.get("login"):
        return None
    wanted = json.dumps({"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}).encode()
    request = urllib.request.Request(f"{server['url']}/flow_runs/filter", wanted, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=ASK_SECONDS) as answer:
            names = [str(run["name"]) for run in json.load(answer)]
    except (OSError, ValueError):  # it does not answer: no page shows a run
        names = []
    stop_server(home)
    return names


def running_server(home: Path) -> ServerRecord | None:
    """Return the local server's record if its process runs here, else None. It may not answer yet."""
    server = recorded_server(home)
    process = read_tag(server.get("process", ""))
    return server if process and process.is_running_here() else None


def last_error(home: Path) -> str:
    """Return the last error in the local server's log; "" without one, or if another server is configured."""
    log = home / "prefect" / "server.log"
    if foreign_url(home) or not log.exists():
        return ""
    return _last_error(log.read_text(encoding="utf-8", errors="replace").splitlines())


def cause_of_failure(home: Path) -> tuple[str, str]:
    """Return (cause, fix) for a server that answers with errors; the cause is "" unless the disk is full."""
    if foreign_url(home):
        return "", "read the server's log; does its database run?"
    cause, fix = _cause(home / "prefect", "")
    return cause, fix if cause else f"{fix}; if its database is lost, `trnflow down`, `up` and `deploy` make another"


def _last_error(lines: list[str]) -> str:
    return next((line.strip() for line in reversed(lines) if ERROR_LINE.match(line)), "")


def _wait(home: Path) -> str:
    """Wait until the local server answers, and return its URL. Raises ProcessFailed."""
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
    """Return the error about a server that ended at once."""
    log = folder / "server.log"
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    what, fix = _cause(folder, text)
    elsewhere = "or set PREFECT_API_URL to a server of yours, or run with --direct (no Prefect)"
    return ProcessFailed(
        "the local Prefect server did not start" + (f": {what}" if what else ""), f"{fix}; {elsewhere}"
    )


def _cause(folder: Path, text: str) -> tuple[str, str]:
    """Return (cause, fix) by the server's disk and the text of its log."""
    log, file = folder / "server.log", folder / "prefect.db"
    if setting := next((name for name in DATABASE_SETTINGS if os.environ.get(name)), ""):
        return scrub(_last_error(text.splitlines())), f"check {setting}, read {log}"
    if "disk is full" in text or (folder.is_dir() and shutil.disk_usage(folder).free < LEAST_FREE):
        return f"the disk of {folder} is full", FREE_SPACE
    for sign, trouble in DATABASE_TROUBLES.items():
        if sign in text:
            return f"its database {file} {trouble}", f"{MOVE_ASIDE}, or install the Prefect that made it"
    lines = text.splitlines()
    return scrub(_last_error(lines) or (lines[-1] if lines else "")), f"read {log}"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextlib.contextmanager
def _one_starter(folder: Path) -> Iterator[None]:
    """Hold the file lock for starting the server within the context."""
    with (folder / "server.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # an idle server sees the touch, and does not end
        os.utime(lock.fileno())
        yield


def _spawn(home: Path, listener: socket.socket, seconds: float) -> ServerRecord:
    """Start the server on a listening socket, in its own session, and return its record."""
    folder = home / "prefect"
    port = listener.getsockname()[1]
    log = folder / "server.log"
    log.unlink(missing_ok=True)  # a link that is there is not followed
    with log.open("xb") as output:
        server = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), str(listener.fileno()), str(seconds)],
            env=_environment(folder, port) | {SERVER: make_login(home)},
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
        "started": now(), "log": str(log), "login": True,
    }  # fmt: skip


def _record(folder: Path, server: ServerRecord) -> None:
    write_whole(folder / "server.json", json.dumps(server))


def _idle_seconds() -> float:
    """Return the time without use after which a server ends. Raises ConfigError."""
    text = os.environ.get(IDLE) or str(IDLE_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ConfigError(f"{IDLE} is {text!r}, and must be a positive number of seconds", f"correct or unset {IDLE}")
    return seconds


def _environment(folder: Path, port: int) -> dict[str, str]:
    """Return the variables of the server's process: Prefect's and those that a program needs to run, no keys and tokens."""
    foreign = {"PREFECT_PROFILE", "PREFECT_PROFILES_PATH", *LOGINS}
    page = os.environ.get("PREFECT_UI_URL")
    environ = {
        name: value for name, value in os.environ.items() if SERVER_NEEDS.fullmatch(name) and name not in foreign
    }
    environ |= {
        "PREFECT_HOME": str(folder.resolve()),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_URL": page or f"http://{HOST}:{port}",  # for links in notifications
        # the page calls the API by 127.0.0.1, also where it was opened by another name
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(
            [f"http://{name}:{port}" for name in (HOST, "localhost")] + ([_origin(page)] if page else [])
        ),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    prefect = importlib.util.find_spec("prefect")
    if prefect and prefect.origin and not os.access(Path(prefect.origin).parent / "server", os.W_OK):
        environ["PREFECT_UI_STATIC_DIRECTORY"] = str(folder.resolve() / "ui")
    return environ


def _origin(url: str) -> str:
    """Return the origin of a page: scheme, host and port."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _listener(ports: tuple[int, ...]) -> socket.socket:
    """Return a listening socket on the first free port of `ports`; port 0 means any."""
    for port in dict.fromkeys(ports):
        # bound here, under the file lock, and passed on: `prefect server start` fails when two processes start at once
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(128)
            return listener
        except OSError:
            listener.close()
    raise ProcessFailed(f"no port is free on {HOST} for the local Prefect server", "free one, or set PREFECT_API_URL")
