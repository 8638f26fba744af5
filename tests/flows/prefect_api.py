"""A standing Prefect server as a client sees it that this project did not write: over HTTP, and by Prefect's own commands."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trnflow.flows.services import prefect_server
from trnflow.flows.services.prefect_server import stop_server

PROJECT = Path(__file__).resolve().parents[2]
LOGINS: dict[str, str] = {}
"""{API's URL: login} of the servers started."""


@contextlib.contextmanager
def own_server(home: Path) -> Iterator[str]:
    """Start a server in a home, and stop it at the end, also if it did not answer in time."""
    try:
        yield _started(home)
    finally:
        stop_server(home)


def _started(home: Path) -> str:
    """Start a server on any free port: on 4200, workers of other houses would take its runs when their own server is down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setattr(prefect_server, "PREFERRED_PORT", 0)
        url = prefect_server.ensure_server(home)
    LOGINS[url] = (home / "prefect/login").read_text()
    return url


@contextlib.contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """A server in `folder` that several processes share: the first starts it, the last stops it."""
    home, users = folder / "server/.trnflow", folder / "server/users"
    users.mkdir(parents=True, exist_ok=True)
    mine = users / str(os.getpid())
    with _lock(folder):
        mine.touch()
        url = _started(home)
    try:
        yield url
    finally:
        with _lock(folder):
            mine.unlink()
            if not any(users.iterdir()):
                stop_server(home)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / "server/lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def login_to(home: Path, url: str) -> str:
    """The login to a server that a test started, in this home or another; "" if it asks for none."""
    file = home / "prefect/login"
    return LOGINS.get(url) or (file.read_text() if file.exists() else "")


def authorization(login: str) -> dict[str, str]:
    """The header of a request with a login."""
    return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}


class Api:
    """A standing server, and a home for the runs that use it."""

    def __init__(self, home: Path, url: str, login: str = "") -> None:
        self.home = home
        self.url = url
        self.environ = {
            **os.environ, "PREFECT_API_URL": url, "PREFECT_HOME": str(home / "client"), "TRNFLOW_HOME": str(home),
            "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }  # fmt: skip
        self.headers = {"Content-Type": "application/json"}
        if login := login or login_to(home, url):
            self.environ["PREFECT_API_AUTH_STRING"] = login
            self.headers |= authorization(login)

    def post(self, path: str, **body: Any) -> Any:
        return self._ask(path, "POST", body)

    def post_list(self, path: str, items: list[Any]) -> Any:
        return self._ask(path, "POST", items)

    def delete(self, path: str) -> None:
        self._ask(path, "DELETE")

    def get(self, path: str) -> Any:
        return self._ask(path, "GET")

    def _ask(self, path: str, method: str, body: Any = None, patience: int = 5) -> Any:
        """What the API answers. It says 503 while SQLite is locked, and asks to try again."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", content, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            if error.code != 503 or not patience:
                raise
        time.sleep(5)
        return self._ask(path, method, body, patience - 1)

    def newest_run(self, *parameters: str) -> Any:
        runs = self.post("flow_runs/filter", sort="START_TIME_DESC", limit=50)
        return next(run for run in runs if all(text in json.dumps(run["parameters"]) for text in parameters))

    def prefect(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=PROJECT, env=self.environ, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def task_states(self, flow_run: str, number: int) -> dict[str, str]:
        """State names by task, once `number` of them are final: Prefect records them a little after the run has ended."""
        deadline = time.monotonic() + 60
        while True:
            runs = self.post("task_runs/filter", flow_runs={"id": {"any_": [flow_run]}})
            states = {run["name"]: run["state_name"] for run in runs}
            final = [state for state in states.values() if state in ("Completed", "Cached", "Failed")]
            if len(final) >= number or time.monotonic() > deadline:
                return states
            time.sleep(0.5)
