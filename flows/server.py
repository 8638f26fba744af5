"""A standing local Prefect server, so that runs need not wait for one of their own.

`ensure_server(home)` gives the URL of an API: the one the user configured (PREFECT_API_URL, or the active profile),
else that of one server per `home`, started in the background on 127.0.0.1 when there is none. Its state, database and
log lie in `<home>/prefect`; the user's own profile is never touched. Port 4200, or another when that is taken.

A lock held by the server process itself (flock, gone with the process) says whether one lives, so concurrent starters
end with one server and a crash leaves nothing to clean up. The starter binds the port and hands the listening socket
over: nobody can take it in between. A start takes about 5 s (9 s with a new database); reuse takes milliseconds.
Fails with ProcessFailed, naming the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.errors import ProcessFailed

HOST = "127.0.0.1"
PREFERRED_PORT = 4200
TIMEOUT = 120.0  # seconds for a start

# What `prefect server start` does, without its command line (1.5 s); the collector only slows down the imports.
_SERVE = """
import gc, json, os, sys
gc.disable()
with open("server.json.new", "w") as state:
    json.dump(json.loads(sys.argv[2]) | {"pid": os.getpid()}, state)
os.replace("server.json.new", "server.json")
import socket, uvicorn
from prefect.server.api.server import create_app
server = uvicorn.Server(uvicorn.Config(create_app(final=True), log_level="warning"))
gc.freeze()
gc.enable()
server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


def ensure_server(home: Path) -> str:
    """The URL of an API that answers (a configured one is not asked)."""
    start_server(home)
    return wait_server(home)


def start_server(home: Path) -> None:
    """Start the server unless one is configured or runs already; does not wait until it answers."""
    if configured_url() or _answering(home):
        return
    folder = home / "prefect"
    folder.mkdir(parents=True, exist_ok=True)
    lock = _acquired(folder)
    if lock is None:  # it runs, or somebody is starting it
        return
    with contextlib.closing(_bound((PREFERRED_PORT, _state(home).get("port", 0), 0))) as listener:
        (folder / "server.json").unlink(missing_ok=True)
        _spawn(folder, listener, lock)
    os.close(lock)


def wait_server(home: Path, timeout: float = TIMEOUT) -> str:
    """The API's URL once it answers; ProcessFailed when the server dies or is not up after `timeout` seconds."""
    if url := configured_url():
        return url
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if url := _answering(home, patience=5.0):
            return url
        if not _alive(home):
            break
        time.sleep(0.1)
    log = home / "prefect" / "server.log"
    raise ProcessFailed(
        f"the local Prefect server did not start{_last_line(log)}",
        f"read {log}; or set PREFECT_API_URL to a server of yours, or run with --direct (no Prefect)",
    )


def stop_server(home: Path) -> bool:
    """Stop the local server of `home`, whoever started it; False when none runs."""
    if not _alive(home):
        return False
    pid = _pid(home)
    for order, seconds in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, order)
        deadline = time.monotonic() + seconds
        while _alive(home) and time.monotonic() < deadline:
            _collect(pid)
            time.sleep(0.05)
        if not _alive(home):
            (home / "prefect" / "server.json").unlink(missing_ok=True)
            return True
    raise ProcessFailed(f"the local Prefect server (process {pid}) does not stop", f"kill -9 {pid}")


def server_status(home: Path) -> dict[str, Any]:
    """{"running", "url", "configured"}, and of a local server also "page", "port", "pid", "started", "log"."""
    if url := configured_url():
        return {"running": None, "url": url, "configured": True}
    if not _alive(home):
        return {"running": False, "url": None, "configured": False}
    state = _state(home)
    return {
        "running": _answering(home) is not None,
        "configured": False,
        "page": f"http://{HOST}:{state.get('port')}",
        "log": str(home / "prefect" / "server.log"),
        **state,
    }


def configured_url() -> str | None:
    """PREFECT_API_URL of the environment or of the active profile, without importing Prefect."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    folder = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    file = Path(os.environ.get("PREFECT_PROFILES_PATH", folder / "profiles.toml")).expanduser()
    try:
        profiles = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return None
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active"))
    url = profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return str(url) if url else None


def _spawn(folder: Path, listener: socket.socket, lock: int) -> None:
    port = listener.getsockname()[1]
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = {"url": f"http://{HOST}:{port}/api", "port": port, "started": started}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, str(listener.fileno()), json.dumps(state)],
            env=_environment(folder, port),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock, listener.fileno()),
        )
    server.returncode = 0  # it outlives this process on purpose, which `Popen` would warn about


def _environment(folder: Path, port: int) -> dict[str, str]:
    """All services stay on: idle, they take 1.5 % of a core. A page that can't be unpacked beside Prefect goes here."""
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


def _bound(ports: tuple[int, ...]) -> socket.socket:
    """A listening socket on the first of `ports` that is free; 0 is any."""
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


def _acquired(folder: Path) -> int | None:
    """The lock as an open descriptor, or None while another process holds it."""
    for _ in range(3):  # `_alive` holds it for a moment when it looks
        lock = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            os.close(lock)
            time.sleep(0.02)
    return None


def _alive(home: Path) -> bool:
    """Whether a server of `home`, or one who is starting it, holds the lock."""
    file = home / "prefect" / "server.lock"
    if not file.exists():
        return False
    with file.open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _answering(home: Path, patience: float = 1.0) -> str | None:
    """The URL on record if a server answers there and is ours; it may take `patience` seconds to answer."""
    url = _state(home).get("url")
    if not url or not _alive(home):
        return None
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=patience) as answer:
            return str(url) if answer.status == 200 else None
    except OSError:
        return None


def _state(home: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((home / "prefect" / "server.json").read_text(encoding="utf-8"))
        return state
    return {}


def _pid(home: Path) -> int:
    """Of a server that lives; it writes its state as its first act."""
    deadline = time.monotonic() + 10
    while "pid" not in _state(home):
        if time.monotonic() > deadline:
            raise ProcessFailed(
                f"{home / 'prefect'} is locked, but holds no server.json", "`fuser` on its server.lock tells who"
            )
        time.sleep(0.05)
    return int(_state(home)["pid"])


def _collect(pid: int) -> None:
    """Reap the server if it is a child of this process; a zombie has let go of the lock, but would linger."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return f": {lines[-1]}" if lines else ""
