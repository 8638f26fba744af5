"""The login of the local Prefect server: who has it, who has not, and what a page of another origin can do in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import connect

from tests.flows.prefect_api import Api
from tests.helpers.browser import Page, browser_at
from tests.helpers.command_line import Shell
from tests.helpers.serving import QuietHandler, answers, free_port, serving
from tests.helpers.waiting import wait_for
from trnflow.flows.cli.health_command import look_after
from trnflow.flows.services.login import make_login, write_helpers
from trnflow.flows.services.prefect_server import (
    client_login,
    ensure_server,
    running_server,
    stop_open_server,
    stop_server,
    use_server,
)
from trnflow.flows.services.server_process import TABLES
from trnflow.tasks.system.process import process_of

EVIL = "evil.example"
"""A name that its owner lets point to this machine."""
TRIES = """
(async () => {
  const said = {}, url = "%s";
  const attempt = async (name, call) => { try { said[name] = await call(); } catch (error) { said[name] = "no answer"; } };
  const flow = JSON.stringify({name: "planted"});
  await attempt("read", async () => (await fetch(url + "/admin/settings")).status);
  await attempt("read blindly", async () => (await fetch(url + "/admin/settings", {mode: "no-cors"})).type);
  for (const [name, body] of [["text", flow], ["blob", new Blob([flow])]])
    await attempt(name, async () => (await fetch(url + "/flows/", {method: "POST", body, mode: "no-cors"})).type);
  await attempt("json", async () => (await fetch(url + "/flows/", {
    method: "POST", body: flow, headers: {"Content-Type": "application/json"}})).status);
  for (const protocols of [[], ["prefect"]])
    await attempt("socket " + protocols, () => new Promise((resolve, reject) => {
      const socket = new WebSocket(url.replace("http", "ws") + "/events/in", protocols);
      socket.onopen = () => socket.send(JSON.stringify({type: "auth", token: null}));
      socket.onmessage = message => resolve(message.data);
      socket.onclose = socket.onerror = () => resolve("closed");
    }));
  window.said = said;
})()
"""


class Other(QuietHandler):
    """A page of another origin; it keeps the headers of who calls it."""

    server: Seen

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        self.answer(200, b"<title>another</title>", {"Content-Type": "text/html"})

    do_POST = do_GET


class Seen(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Other)
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def another() -> Iterator[Seen]:
    with serving(Seen()) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_PROFILE"):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "empty"))


def login_of(api: Api) -> str:
    return (api.home / "prefect/login").read_text()


def status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_server_answers_who_has_the_login_and_says_its_health_to_all(own_api: Api) -> None:
    settings = f"{own_api.url}/admin/settings"
    assert [status(f"{own_api.url}/health"), status(settings), status(settings, Authorization="Basic eDp5")] == [
        200,
        401,
        401,
    ]
    assert status(settings, **own_api.headers) == 200
    for protocols in (None, ["prefect"]):
        with pytest.raises((ConnectionClosed, InvalidMessage, InvalidStatus)):
            greeting(own_api, protocols)


def greeting(api: Api, protocols: Any) -> str | bytes:
    """What a websocket of the server answers to someone without the login."""
    with connect(api.url.replace("http", "ws") + "/events/in", subprotocols=protocols) as socket:
        socket.send(json.dumps({"type": "auth", "token": "x"}))
        return socket.recv(timeout=30)


def test_the_login_is_in_private_files_alone(own_api: Api) -> None:
    login, folder = login_of(own_api), own_api.home / "prefect"
    assert len(login) >= 40
    held = {file.name for file in folder.iterdir() if file.is_file() and login.encode() in file.read_bytes()}
    assert held == {"login", "login.sh"}
    for name in (*held, "login.html"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    server = running_server(own_api.home)
    assert server and login not in Path(f"/proc/{server['pid']}/cmdline").read_text()


def test_prefects_own_commands_work_with_the_file_that_up_names(own_api: Api, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    said = shell("up", TRNFLOW_HOME=str(own_api.home)).stdout
    line = next(line for line in said.splitlines() if "prefect's own commands: " in line).rpartition(": ")[2]
    command = f"{line} && {sys.executable} -m prefect work-pool ls"
    listed = subprocess.run(["bash", "-c", command], env=shell.environ, capture_output=True, text=True, cwd=tmp_path)
    assert listed.returncode == 0, listed.stdout + listed.stderr


def test_the_login_goes_to_the_homes_own_server_and_to_no_other(
    own_api: Api, another: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = login_of(own_api)
    assert use_server(own_api.home) == own_api.url
    assert os.environ["PREFECT_API_AUTH_STRING"] == login == client_login(own_api.home, own_api.url)
    monkeypatch.setenv("PREFECT_API_URL", f"{another.url}/api")  # after `. login.sh`
    use_server(own_api.home)
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", login)
    look_after(own_api.home, str(own_api.home / "store"))
    assert another.headers and not any("Authorization" in headers for headers in another.headers)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "a team's")
    assert client_login(own_api.home, f"{another.url}/api") == "a team's"


@pytest.mark.parametrize("planted", ["readable", "link", "cut"])
def test_a_login_that_a_folder_brought_or_that_was_cut_off_is_made_anew(tmp_path: Path, planted: str) -> None:
    """A copied or cloned folder may hold a home: its files are readable for others, or links to files of the user's."""
    file, precious = tmp_path / "prefect/login", tmp_path / "precious"
    file.parent.mkdir()
    precious.write_text("trnflow:" + "x" * 43)
    precious.chmod(0o600)
    if planted == "link":
        file.symlink_to(precious)
        (tmp_path / "prefect/login.sh").symlink_to(precious)
    else:
        file.write_text("trnflow:" + "x" * (43 if planted == "readable" else 3))
        file.chmod(0o644 if planted == "readable" else 0o600)
    login = make_login(tmp_path)
    write_helpers(tmp_path, "http://127.0.0.1:1")
    assert "xxx" not in login and make_login(tmp_path) == login
    assert precious.read_text() == "trnflow:" + "x" * 43 and login in (tmp_path / "prefect/login.sh").read_text()


def test_a_server_that_was_stopped_leaves_no_login(tmp_path: Path) -> None:
    """Another user's program may take its port, and gets what a client that still runs sends."""
    home = tmp_path / "home"
    ensure_server(home)
    login = make_login(home)
    assert stop_server(home)
    assert not [file for file in (home / "prefect").iterdir() if "login" in file.name] and make_login(home) != login


def test_the_homes_own_server_is_started_again_though_login_sh_was_read(tmp_path: Path) -> None:
    home, shell = tmp_path / "home", Shell(tmp_path)
    environ = {"TRNFLOW_HOME": str(home)}
    try:
        shell("up", **environ)
        url = (running_server(home) or {})["url"]
        assert stop_server(home)
        (home / "prefect/server.json").write_text(json.dumps({"url": url}))  # as one that was killed leaves it
        assert shell("up", **environ, PREFECT_API_URL=url).returncode == 0
        assert running_server(home)
    finally:
        stop_server(home)


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Api]:
    """A server without a login, as earlier versions started it, with a flow run in progress."""
    home, port = tmp_path / "home", free_port()
    (home / "prefect").mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(home / "prefect" / "prefect.db")) as database:
        database.executescript(TABLES.read_text(encoding="utf-8"))  # migrations take half of a start
    environ = os.environ | {"PREFECT_HOME": str(home / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    server = subprocess.Popen(command, env=environ, start_new_session=True, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    record = {"url": f"{url}/api", "page": url, "port": port, "pid": server.pid, "process": process_of(server.pid).tag}
    (home / "prefect").mkdir(parents=True, exist_ok=True)
    (home / "prefect/server.json").write_text(json.dumps(record))
    api = Api(home, f"{url}/api")
    try:
        wait_for(lambda: answers(f"{url}/api/health"), 120)
        flow = api.post("flows/", name="any")["id"]
        api.post("flow_runs/", name="brave-otter", flow_id=flow, state={"type": "RUNNING"})
        yield api
    finally:
        stop_server(home)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_a_server_of_an_earlier_version_is_named_and_restarted_with_a_login(earlier: Api, tmp_path: Path) -> None:
    shell, environ = Shell(tmp_path), {"TRNFLOW_HOME": str(earlier.home)}
    assert "asks for no login" in shell("health", **environ).stdout
    assert client_login(earlier.home, earlier.url) is None
    said = shell("up", **environ).stdout
    assert "restarted: the server of an earlier version asked for no login" in said and "brave-otter" in said
    server = running_server(earlier.home)
    assert server and server["login"] and status(f"{server['url']}/admin/version") == 401
    assert stop_open_server(earlier.home) is None
    assert "asks for no login" not in shell("health", **environ).stdout


@pytest.fixture
def page(own_api: Api, another: Seen, tmp_path: Path) -> Iterator[Page]:
    with browser_at(another.url, tmp_path, f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as opened:
        opened.wait_for("document.title == 'another'")
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", ["127.0.0.1", EVIL])
def test_a_page_of_another_origin_can_neither_read_nor_write(own_api: Api, page: Page, name: str) -> None:
    """A blind answer (`opaque`) may come: what counts is that nothing was made, and that no socket was taken."""
    port = urlsplit(own_api.url).port
    page.value(TRIES % f"http://{name}:{port}/api")
    page.wait_for("window.said")
    said = page.value("window.said")
    assert said["read"] == said["json"] == "no answer"
    assert said["socket "] == said["socket prefect"] == "closed"
    assert {"text", "blob", "read blindly"} <= said.keys()
    assert own_api.post("flows/filter", flows={"name": {"any_": ["planted"]}}) == []


@pytest.mark.slow
def test_the_file_that_ui_names_opens_prefects_page_and_nobody_types(own_api: Api, tmp_path: Path) -> None:
    said = Shell(tmp_path)("ui", TRNFLOW_HOME=str(own_api.home)).stdout
    address = next(word for word in said.replace(",", "").split() if word.startswith("file:") and "login" in word)
    with browser_at(address, tmp_path / "browser") as page:
        page.wait_for("location.protocol == 'http:' && document.body.innerText.includes('Dashboard')")
        page.wait_for("document.body.innerText.includes('Run a task or flow to get started')")
        assert "login" not in page.value("location.href") and not page.value(
            "document.querySelector('[type=password]')"
        )
        page.call("Page.navigate", url=f"{own_api.url.removesuffix('/api')}/trnflow-login#d3Jvbmc=")
        page.wait_for("document.body.innerText.includes('of another server')")
        assert page.value("localStorage.getItem('prefect-password')") != "d3Jvbmc="
