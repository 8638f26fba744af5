"""Secrets in a URL, an environment and a tracking server's address: run, fail, compare; then no file and no output holds them."""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

import pytest

from tests.helpers.event_logs import process_logs
from tests.helpers.serving import QuietHandler, free_port, serving
from tests.tracking.runs import mlflow_server
from trnflow.flows.services.prefect_server import stop_server

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

PASSWORD, TOKEN, WRONG = "pA/ss W0rd+9=", "tok~N8/x&y=Z", "wr0ng/tok en=7"
KEY, SHORT, TRACKING = "env s3cret/vAl&ue", "q7~Z%", "tr4ck/PaSS w0rd"
TAG = "!s3cret-by-its-first-letter-a-yaml-tag"
PLANTED = (PASSWORD, TOKEN, WRONG, KEY, SHORT, TRACKING, TAG)
ROWS = "text,label\n" + "".join(f"row {n} is {('good', 'bad')[n % 2]},{n % 2}\n" for n in range(40))
TALKATIVE = """
import os, sys
from urllib.parse import quote
if any("trnflow.tasks.launch" in argument for argument in sys.orig_argv):
    print("starting with", os.environ["API_KEY"], quote(os.environ["API_KEY"], safe=""), flush=True)
    os._exit(3)
"""
"""A package of the training process that prints what it finds, and dies."""


def forms(secret: str) -> set[bytes]:
    written = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    lower = {re.sub("%..", lambda found: found[0].lower(), text) for text in written}
    return {text.encode() for text in written | lower} | {base64.b64encode(f"me:{secret}".encode())}


class Handler(QuietHandler):
    """Rows for who knows password and token; what it refuses it repeats."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        expected = f"Basic {base64.b64encode(f'me:{PASSWORD}'.encode()).decode()}"
        asked = parse_qs(urlsplit(self.path).query)
        welcome = (self.headers["Authorization"], asked.get("token")) == (expected, [TOKEN])
        body = (ROWS + ",".join(asked.get("version", [])) * 0 if welcome else f"refused: {self.path}").encode()
        self.send_response(200 if welcome else 401, f"OK {self.path}")
        self.send_header("ETag", f'"{asked.get("version")}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@dataclass
class House:
    """A folder with a home in it, whose commands' outputs are kept."""

    folder: Path
    port: int
    tracking: str
    said: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / ".trnflow"

    def url(self, token: str = TOKEN, version: int = 1) -> str:
        password = quote(PASSWORD, safe="")
        return f"http://me:{password}@127.0.0.1:{self.port}/set.csv?version={version}&token={quote(token, safe='')}"

    def settings(self, source: str | None = None) -> list[str]:
        environment = json.dumps({"API_KEY": KEY, "PIN": SHORT, "PYTHONPATH": str(self.folder / "packages")})
        uri = f"http://me:{quote(TRACKING, safe='')}@{self.tracking}"
        return [f"data.source={source or self.url()}", f"launch.environment={environment}", f"tracking.uri={uri}"]

    def __call__(self, *arguments: str, code: int = 0, **environ: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRNFLOW", "PREFECT"))}
        command = [sys.executable, "-m", "trnflow", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=inherited | environ, capture_output=True, text=True, timeout=300
        )
        self.said += [f"$ {arguments[0]}", done.stdout, done.stderr]
        assert done.returncode == code, (arguments[:2], done.stdout, done.stderr)
        return done.stdout

    def record(self, run: str) -> Any:
        return json.loads((self.home / f"store/runs/{run}.json").read_text())


@pytest.fixture(scope="module")
def source() -> Iterator[int]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_port


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, source: int) -> Iterator[House]:
    """All that a user does with a recipe, its secrets given on the command line."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "packages").mkdir()
    (folder / "packages/sitecustomize.py").write_text(TALKATIVE)
    (folder / "mine.yaml").write_text(
        "extends: demo\nname: mine\n"
        "data: {source: null, name: null, text: text, label: label, split: {validation: 0.2, test: 0.2}}\n"
        "tokenize: {train: {vocab_size: 200}}\ntrain: {engine: native, devices: 1}\nlaunch: {environment: null}\n"
    )
    (folder / "mlflow").mkdir()
    port = free_port()
    house = House(folder, source, f"127.0.0.1:{port}")
    try:
        with mlflow_server(folder / "mlflow", port):
            use(house)
    finally:
        stop_server(house.home)
    yield house


def use(house: House) -> None:
    settings = house.settings()
    wrong = house.settings(house.url(WRONG))
    house("run", "mine.yaml", *settings, "--until", "pack_chunks")
    house("run", "mine.yaml", *settings, "data.limit=20", code=1)  # its training process dies
    house("run", "mine.yaml", *wrong, "--force", "load_data", code=1)  # the command finds out before the flow begins
    house("run", "mine.yaml", *wrong, "--force", "load_data", "--direct", "--debug", code=1)
    house("run", "mine.yaml", *wrong, "--direct", "--json", code=1)
    house("run", "mine.yaml", *settings, "launch.environment.PIN={A: " + SHORT, code=2)
    house("run", "mine.yaml", *settings, "launch.environment={API_KEY: [" + json.dumps(KEY) + "]}", code=2)
    house("run", "mine.yaml", f"launch.environment.API_KEY={TAG}", code=2)
    house("plan", "mine.yaml", *settings)
    house("plan", "mine.yaml", *wrong, code=2)
    house("config", "mine.yaml", *settings)
    house("config", "mine.yaml", *settings, "--json")
    house("show", "mine.yaml", *settings, "--json")
    house("get", "mine.yaml", "train", "out", *settings, code=2)
    house("diff", "last~1", "last")
    house("diff", "last~1", "last", "--json")
    house("runs")
    house("doctor")


def content(path: Path) -> bytes:
    """The bytes of a file; a database's passing file, such as `prefect.db-shm`, may be gone when it is read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        assert path.name.endswith(("-shm", "-wal", "-journal")), path
        return b""


def test_no_file_holds_what_was_planted(house: House) -> None:
    hidden = [form for secret in PLANTED for form in forms(secret)]
    files = [path for top in (house.home, house.folder / "mlflow") for path in top.rglob("*") if path.is_file()]
    assert {"resolved.json", "memo.db", "prefect.db", "server.db", "server.log"} <= {path.name for path in files}
    assert any("precompile" in path.name and path.suffix == ".log" for path in files)
    texts = {path.relative_to(house.folder): bytes(path) + content(path) for path in files}
    leaks = [(path, form) for path, text in texts.items() for form in hidden if form in text]
    assert not leaks


def test_no_output_holds_what_was_planted(house: House) -> None:
    commands = house.said[::3], house.said[1::3], house.said[2::3]
    hidden = [form.decode() for secret in PLANTED for form in forms(secret)]
    leaks = [
        (name, form) for name, out, err in zip(*commands, strict=True) for form in hidden if form in out or form in err
    ]
    assert not leaks, house.said


def test_what_is_shown_says_where_something_is_hidden(house: House) -> None:
    runs = sorted((house.home / "store/runs").glob("*.json"))
    record = json.loads(runs[0].read_text())["resolved"]
    assert record["data"]["source"] == f"http://***@127.0.0.1:{house.port}/set.csv?version=1&token=***"
    assert record["launch"]["environment"] == {"API_KEY": "***", "PIN": "***", "PYTHONPATH": "***"}
    assert record["tracking"]["uri"] == f"http://***@{house.tracking}"
    (log,) = process_logs(house.home, "precompile")
    assert log.read_text() == "starting with *** ***\n"
    with sqlite3.connect(house.home / "prefect/prefect.db") as database:
        given = [json.loads(parameters) for (parameters,) in database.execute("select parameters from flow_run")]
    assert {"launch.environment=***", f"data.source={record['data']['source']}"} <= set(given[0]["overrides"])
    with sqlite3.connect(house.folder / "mlflow/server.db") as database:
        assert [name for (name,) in database.execute("select name from runs where name like 'mine %'")]


def test_versions_of_a_url_are_two_things(house: House) -> None:
    earlier = json.loads((house.home / "resolved.json").read_text())
    house("run", "mine.yaml", *house.settings(house.url(version=2)), "--until", "load_data", "--direct")
    later = json.loads((house.home / "resolved.json").read_text())
    assert len(later) == len(earlier) + 1
    assert all(re.fullmatch("[0-9a-f]{64}", name) for name in later)


def test_variables_are_filled_in_at_use_and_recorded_by_name(house: House) -> None:
    source = f"http://me:${{PASSWORD}}@127.0.0.1:{house.port}/set.csv?version=1&token=${{TOKEN}}"
    settings = [f"data.source={source}", "launch.environment={API_KEY: '${API_KEY}'}", "tracking.uri=${MLFLOW}"]
    given = {
        "PASSWORD": quote(PASSWORD, safe=""), "TOKEN": quote(TOKEN, safe=""), "API_KEY": KEY,
        "MLFLOW": f"sqlite:///{house.folder}/own.db",
    }  # fmt: skip
    arguments = ("run", "mine.yaml", *settings, "--until", "pack_chunks", "--direct", "--json")
    result = json.loads(house(*arguments, **given))
    assert {stage["action"] for stage in result["stages"]} == {"hit"}  # the same key as with the values in the recipe
    record = house.record(result["run"])["resolved"]
    assert record["data"]["source"] == source.replace("//me:", "//***:")
    assert record["launch"]["environment"] == {"API_KEY": "${API_KEY}"}
    assert record["tracking"]["uri"] == "${MLFLOW}"
    house(*arguments, **{**given, "TOKEN": quote(WRONG, safe="")}, code=1)
    assert "token=${TOKEN}" in house.said[-1]
    del given["PASSWORD"]
    house(*arguments, **given, code=2)
    assert "error: data.source: the environment variable PASSWORD is not set" in house.said[-1]
    test_no_file_holds_what_was_planted(house)
    test_no_output_holds_what_was_planted(house)


def test_a_new_home_is_its_users_alone(house: House, tmp_path: Path) -> None:
    assert stat.S_IMODE(house.home.stat().st_mode) == 0o700
    assert stat.S_IMODE((house.home / "secret").stat().st_mode) == 0o600
    assert ".trnflow, mode 0700\n" in house("doctor")
    house.home.chmod(0o750)
    try:
        said = house("doctor", code=1)
        assert f"mode 0750: other users can read it  fix: chmod 700 {house.home}" in said
        assert stat.S_IMODE(house.home.stat().st_mode) == 0o750
    finally:
        house.home.chmod(0o700)
