"""A local server ends when nothing uses it, and stays while something does: with real servers and a real run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.flows.prefect_api import Api
from tests.helpers.command_line import Shell
from tests.helpers.serving import QuietHandler, serving
from tests.helpers.waiting import wait_for
from trnflow.flows.services import server_process
from trnflow.flows.services.prefect_server import IDLE, ensure_server, running_server, stop_server
from trnflow.tasks.system.process import is_running

IDLE_SECONDS = 4.0
LONGER = 2 * IDLE_SECONDS
TRAINING = (
    "run", "demo", "--until", "train", "data.limit=60", "train.engine=native", "train.devices=1", "train.epochs=5000",
    "tracking.enabled=false",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(IDLE, str(IDLE_SECONDS))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    yield tmp_path / ".trnflow"
    stop_server(tmp_path / ".trnflow")


def wait_for_the_end(home: Path) -> None:
    wait_for(lambda: running_server(home) is None, 120)
    assert "ended by itself: no run, worker, page or active schedule" in (home / "prefect/server.log").read_text()


def pid_after_a_while(home: Path) -> Any:
    time.sleep(LONGER)
    return (running_server(home) or {}).get("pid")


@pytest.mark.slow
def test_an_active_schedule_keeps_it_and_after_up_it_stays_without_one(home: Path) -> None:
    api, shell = Api(home, ensure_server(home)), Shell(home.parent)
    server = running_server(home)
    assert server and not server["stays"]
    flow = api.post("flows/", name="nightly")["id"]
    schedule = {"schedule": {"cron": "0 3 * * *"}, "active": True}
    body = {"name": "nightly", "flow_id": flow, "schedules": [schedule]}
    deployment = api.post("deployments/", **body)["id"]
    assert pid_after_a_while(home) == server["pid"]
    assert shell.json("up")["url"] == server["url"]
    api.delete(f"deployments/{deployment}")
    assert pid_after_a_while(home) == server["pid"]
    assert shell.json("down")["stopped"]


@pytest.mark.slow
def test_it_ends_when_its_home_is_removed(home: Path) -> None:
    """After `trnflow up`, too: no command would find it again."""
    ensure_server(home, stays=True)
    server = running_server(home)
    assert server
    while home.exists():  # the server writes meanwhile
        shutil.rmtree(home, ignore_errors=True)
    wait_for(lambda: not is_running(server["pid"]), 60)


@pytest.mark.slow
def test_a_run_keeps_the_server(home: Path) -> None:
    """This test asks the server until the run trains: on a busy machine, imports take longer than IDLE_SECONDS."""
    api, said = Api(home, ensure_server(home)), home.parent / "said"
    server = running_server(home)
    with said.open("w") as file:
        command = [sys.executable, "-m", "trnflow", *TRAINING]
        run = subprocess.Popen(command, cwd=home.parent, env=Shell(home.parent).environ, stdout=file, stderr=file)
    try:
        wait_for(lambda: api.get("health") and (run.poll() is not None or "steps, loss" in said.read_text()), 300)
        assert run.poll() is None and server, said.read_text()
        assert pid_after_a_while(home) == server["pid"]
    finally:
        run.send_signal(signal.SIGINT)
        code = run.wait(120)
    assert code == 130 and "went away" not in said.read_text(), said.read_text()
    wait_for_the_end(home)
    ensure_server(home)
    assert (running_server(home) or {})["pid"] != server["pid"]


class Folder:
    """A server's folder with its lock and record, and a server that is not started."""

    def __init__(self, folder: Path) -> None:
        self.server = uvicorn.Server(uvicorn.Config(""))
        self.lock, self.state = folder / "server.lock", folder / "server.json"
        self.touch()
        self.state.write_text(json.dumps({"pid": os.getpid(), "stays": False}))
        self.idleness = server_process.Idleness(self.server, 0.0)
        assert self.idleness.is_over

    def touch(self) -> None:
        self.lock.touch()
        os.utime(self.lock, ns=(time.time_ns(), time.time_ns()))

    def ends(self) -> bool:
        return server_process._ended(self.server, self.idleness)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def test_the_end_holds_the_lock_so_that_a_run_that_starts_waits_for_it(folder: Folder) -> None:
    assert folder.ends()
    assert folder.server.should_exit and not folder.state.exists()
    with folder.lock.open() as another, pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_run_that_starts_just_then_keeps_the_server(folder: Folder) -> None:
    with folder.lock.open() as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        assert not folder.ends()
        folder.touch()
    assert not folder.ends()  # the lock is free, and was touched since the last look
    assert folder.idleness.is_over and folder.ends()


@pytest.mark.parametrize("state", [{"pid": 1}, {"pid": os.getpid(), "stays": True}, {}, None])
def test_a_server_that_stays_or_is_not_on_record_stays(folder: Folder, state: Any) -> None:
    folder.state.write_text(json.dumps(state)) if state is not None else folder.state.unlink()
    assert not folder.ends() and not folder.server.should_exit


def test_a_connection_a_request_and_a_touch_count_as_use(folder: Folder) -> None:
    idleness = server_process.Idleness(folder.server, 3600.0)
    idleness._since -= 4000
    assert not idleness.is_over  # the first look
    idleness._since -= 4000
    assert idleness.is_over
    for use in (
        lambda: setattr(folder.server.server_state, "total_requests", 1),
        folder.touch,
        lambda: folder.server.server_state.connections.add(None),  # type: ignore[arg-type]
    ):
        use()
        assert not idleness.is_over
        idleness._since -= 4000
    assert not idleness.is_over  # the connection is still open


def test_a_server_that_can_not_be_asked_counts_as_scheduled() -> None:
    assert server_process.is_scheduled(1)


def test_a_server_sees_that_its_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prefect").mkdir()
    monkeypatch.chdir(tmp_path / "prefect")
    assert server_process._folder_exists()
    (tmp_path / "prefect").rmdir()
    assert not server_process._folder_exists()


def test_every_page_of_deployments_is_asked_for_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "PAGE", 2)
    active: list[bool] = []

    class Deployments(QuietHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.body())
            page = active[asked["offset"] :][: asked["limit"]]
            self.answer(200, json.dumps([{"schedules": [{"active": one}]} for one in page]).encode())

    with serving(HTTPServer(("127.0.0.1", 0), Deployments)) as server:
        for active in ([], [True], [False] * 2, [False] * 4, [False, False, False, True]):
            assert server_process.is_scheduled(server.server_address[1]) == any(active)


def test_a_wrong_time_is_one_clear_error(tmp_path: Path) -> None:
    said = Shell(tmp_path).error("up", code=2, TRNFLOW_SERVER_IDLE_SECONDS="soon")
    assert "TRNFLOW_SERVER_IDLE_SECONDS is 'soon', and must be a positive number of seconds" in said
