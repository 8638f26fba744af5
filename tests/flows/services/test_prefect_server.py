"""The standing local Prefect server, with real server processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.flows.prefect_api import Api
from trnflow.flows.services import prefect_server as server
from trnflow.tasks.errors import ProcessFailed

PROJECT = Path(__file__).resolve().parents[3]
ENSURE = """
import sys
from pathlib import Path
from trnflow.flows.services.prefect_server import ensure_server
print(ensure_server(Path(sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch, tmp_path):
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "empty"))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(home / "users"),
        "HF_TOKEN": "planted",
        "AWS_SECRET_ACCESS_KEY": "planted",
        "NO_PROXY": "x",
    }
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", ENSURE, str(home)],
            cwd=PROJECT,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    told = [starter.communicate() for starter in starters]
    assert [starter.returncode for starter in starters] == [0, 0]
    assert {address.strip() for address, _ in told} == {json.loads((home / "prefect/server.json").read_text())["url"]}
    assert "".join(said for _, said in told).count("starting the local Prefect server") == 1
    yield home
    server.stop_server(home)


def test_two_starters_end_with_one_server_which_the_next_reuses(home):
    before = server.running_server(home)
    assert before and before["pid"] > 0
    assert server.ensure_server(home) == before["url"]
    assert server.running_server(home) == before
    assert list((home / "users").glob("*")) == []  # the user's own profile


def test_the_api_and_the_page_answer(home):
    status = server.running_server(home)
    settings = Api(home, status["url"]).get("admin/settings")["server"]
    assert settings["analytics_enabled"] is False
    assert settings["services"]["scheduler"]["enabled"] is True
    assert str(home.resolve()) in json.dumps(settings["memo_store_path"])
    with urllib.request.urlopen(status["page"]) as page:
        assert b"<title>" in page.read()
    with urllib.request.urlopen(f"{status['page']}/ui-settings") as page:
        assert json.load(page)["api_url"] == status["url"]


def test_the_process_holds_no_keys_of_the_one_that_started_it(home):
    variables = Path(f"/proc/{server.running_server(home)['pid']}/environ").read_text().split("\0")
    assert "planted" not in " ".join(variables) and "NO_PROXY=x" in variables
    assert {"PATH", "HOME", "PREFECT_HOME"} <= {variable.partition("=")[0] for variable in variables}


def test_it_answers_to_the_names_of_this_machine_alone(home):
    """By any port: `ssh -L` forwards one to another."""
    port = server.running_server(home)["port"]
    names = (
        "127.0.0.1",
        f"localhost:{port}",
        "[::1]:8000",
        "evil.example",
        f"127.0.0.1.evil.example:{port}",
        "10.0.0.1",
    )
    assert [_status(port, name) for name in names] == [200, 200, 200, 400, 400, 400]


def _status(port: int, name: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/api/health", headers={"Host": name})
    return connection.getresponse().status


def test_a_configured_api_is_used_and_nothing_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example/api")
    assert server.ensure_server(tmp_path) == "http://prefect.example/api"
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_a_stop_and_a_kill(tmp_path):
    """One server's life: port 4200 is taken, so it gets another; killed, it is gone; nothing blocks the next."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((server.HOST, server.PREFERRED_PORT))
            other.listen()
        except OSError:
            pass  # somebody else has it: taken all the same
        url = server.ensure_server(tmp_path)
    assert f":{server.PREFERRED_PORT}/" not in url
    pid = server.running_server(tmp_path)["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert server.running_server(tmp_path) is None
    assert server.stop_server(tmp_path) is False
    server.start_server(tmp_path)  # not waited for: stopping works while it starts, too
    assert server.stop_server(tmp_path) is True
    assert server.stop_server(tmp_path) is False


def test_a_server_that_can_not_start_is_told_with_its_log(tmp_path):
    (tmp_path / "prefect" / "prefect.db").mkdir(parents=True)
    with pytest.raises(ProcessFailed, match=r"did not start: .+") as caught:
        server.ensure_server(tmp_path)
    assert str(tmp_path / "prefect/server.log") in caught.value.fix


def test_a_database_that_is_not_there_is_the_reason_that_is_given(monkeypatch, tmp_path):
    url = "postgresql+asyncpg://me:s3cret-of-the-url@127.0.0.1:9/prefect"
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", url)
    with pytest.raises(ProcessFailed, match=r"did not start: .*Connect call failed \('127.0.0.1', 9\)") as caught:
        server.ensure_server(tmp_path)
    assert caught.value.fix.startswith("check PREFECT_SERVER_DATABASE_CONNECTION_URL, read ")
    assert "s3cret-of-the-url" not in str(caught.value) + (tmp_path / "prefect/server.log").read_text()


@pytest.mark.parametrize(
    ("content", "said"), [("another version", "was made by another version of Prefect"), ("no database", "is damaged")]
)
def test_a_database_that_the_server_can_not_use_is_one_clear_line(tmp_path, content, said):
    folder = tmp_path / "prefect"
    folder.mkdir()
    if content == "no database":
        (folder / "prefect.db").write_text(content * 1000)
    else:
        with contextlib.closing(sqlite3.connect(folder / "prefect.db")) as database, database:
            database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
            database.execute("INSERT INTO alembic_version VALUES ('0123456789ab')")
    with pytest.raises(ProcessFailed, match=f"did not start: its database .*prefect.db {said}[.] Fix") as caught:
        server.ensure_server(tmp_path)
    assert "move that file away" in caught.value.fix


def test_a_server_that_is_slow_is_told_apart_from_one_that_ended(monkeypatch, tmp_path):
    (tmp_path / "slow.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(server, "PROGRAM", tmp_path / "slow.py")
    monkeypatch.setattr(server, "START_SECONDS", 1.0)
    try:
        with pytest.raises(ProcessFailed, match="runs, but does not answer after 1 s") as caught:
            server.ensure_server(tmp_path)
        assert "try again in a while" in caught.value.fix
    finally:
        assert server.stop_server(tmp_path)
