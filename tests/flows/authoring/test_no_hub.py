"""When `trnflow new` takes a hub for absent: only if the client is offline or can't connect. All else is an error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.flows.authoring.test_choose import KINDS, sentence, table
from tests.helpers.command_line import Shell
from tests.helpers.serving import free_port
from trnflow.flows.recipes import recipe as settings

LOOK = """
import json, sys
from pathlib import Path
from huggingface_hub import constants
from trnflow.flows.authoring.write import has_hub
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.sources.resolver import Resolver
said = {}
for name, url in json.loads(sys.argv[1]).items():
    constants.ENDPOINT, constants.HF_HUB_OFFLINE = url, name == "offline"
    constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
    try:
        said[name] = has_hub("classify", {}, Resolver(Path("home")))
    except TrnflowError as error:
        said[name] = [type(error).__name__, error.message, error.fix]
print(json.dumps(said))
"""
HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 12\r\n\r\n<p>Login</p>"
INFO = json.dumps({"id": "me/base", "sha": "a" * 40, "siblings": [{"rfilename": "config.json"}]}).encode()
FOUND = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(INFO), INFO)


def config(body: bytes, letter: bytes) -> bytes:
    """The answer with a config.json of the commit whose name is this letter; the client keeps a file by its ETag."""
    head = b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nX-Repo-Commit: %s\r\nContent-Length: 2\r\n\r\n'
    return head % (letter, letter * 40) + body


CONFIG = config(b"{}", b"a")


def status(code: int) -> bytes:
    return b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\n{}" % code


ANSWERS: dict[str, list[bytes | None]] = {
    "500": [status(500)],
    "503": [status(503)],
    "429": [status(429)],
    "401": [status(401)],
    "404": [status(404)],
    "no answer": [None],
    "closed": [b""],
    "no http": [b"SSH-2.0-OpenSSH\r\n\r\n"],
    "a page": [HTML],
    "no model": [FOUND.replace(b"siblings", b"sibl1ngs").replace(b'"sha"', b'"sh4"')],
    "no config": [FOUND, status(404)],
    "no json": [FOUND.replace(b"a" * 40, b"b" * 40), config(b"{,", b"b")],
}
"""{hub: its answers, one a request, the last for all others; None: it never answers}."""


@contextmanager
def hub(answers: list[bytes | None], asked: list[bytes]) -> Iterator[str]:
    """The address of a server that says these bytes. asked: gets the first line of each request."""
    left, held = [*answers], ExitStack()
    with closing(socket.create_server(("127.0.0.1", 0))) as server, held:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.enter_context(connection)
                asked.append(connection.recv(1 << 16).partition(b"\r\n")[0])
                answer = left.pop(0) if len(left) > 1 else left[0]
                if answer is not None:
                    body = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if asked[-1].startswith(b"HEAD") else answer
                    connection.sendall(body.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) if body else b"")
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)


@contextmanager
def full_queue() -> Iterator[str]:
    """The address of a port where no connection is taken: as behind a firewall that drops packets."""
    with ExitStack() as held:
        server = held.enter_context(closing(socket.create_server(("127.0.0.1", 0), backlog=0)))
        for _ in range(4):
            waiting = held.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def looked(folder: Path, urls: dict[str, str], **environ: str) -> dict[str, Any]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {"PYTHONPATH": str(PROJECT), "HF_HOME": str(folder / "hf"), "HF_HUB_ETAG_TIMEOUT": "1", **environ}
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        variables.pop(name, None)
    command = [sys.executable, "-c", LOOK, json.dumps(urls)]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.slow  # it waits for hubs that do not answer
def test_only_a_hub_that_is_out_of_reach_is_none(tmp_path: Path) -> None:
    asked: dict[str, list[bytes]] = {name: [] for name in (*ANSWERS, "late")}
    with ExitStack() as stack:
        urls = {name: stack.enter_context(hub(answers, asked[name])) for name, answers in ANSWERS.items()}
        urls["late"] = stack.enter_context(hub([None, None, FOUND, CONFIG], asked["late"]))
        urls["dropped"] = stack.enter_context(full_queue())
        urls |= {"no tls": urls["a page"].replace("http:", "https:"), "offline": urls["a page"]}
        urls |= {"refused": f"http://127.0.0.1:{free_port()}", "no name": "http://nowhere.invalid", "no url": "ftp://x"}
        said = looked(tmp_path, urls)
    assert {name for name, answer in said.items() if answer is False} == {"offline", "refused", "no name", "dropped"}
    assert [name for name, answer in said.items() if answer is True] == ["late"]
    for name, answer in said.items():
        if isinstance(answer, list):
            kind, message, fix = answer
            assert kind == "ModelError" and message and "HF_HUB_OFFLINE=1" in fix, (name, answer)
    # a time-out is asked again, and nothing else
    times = {name: sum(b"/api/models/" in line for line in lines) for name, lines in asked.items()}
    assert times == {**dict.fromkeys(ANSWERS, 1), "no answer": 3, "late": 3}


def test_a_cache_that_can_t_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("no folder")
    asked: list[bytes] = []
    with hub([FOUND, CONFIG], asked) as url:
        said = looked(tmp_path, {"hub": url})
    assert said["hub"][0] == "ModelError" and "HF_HUB_OFFLINE=1" in said["hub"][2]


@pytest.mark.parametrize(("answers", "code"), [([status(500)], 1), ([None, FOUND, CONFIG], 0)], ids=["500", "late"])
def test_the_command_writes_a_recipe_with_the_hub_s_model_or_none(
    tmp_path: Path, answers: list[bytes | None], code: int
) -> None:
    (tmp_path / "tickets.csv").write_bytes(table("id", "body", "category", rows=200, body=sentence, category=KINDS))
    with hub(answers, []) as url:
        done = Shell(tmp_path)(
            "new", "tickets.csv", HF_ENDPOINT=url, HF_HOME=str(tmp_path / "hf"), HF_HUB_ETAG_TIMEOUT="1"
        )
    assert done.returncode == code, done.stderr
    if code:
        assert "the hub could not be asked" in done.stderr and not [*tmp_path.glob("*.yaml")]
    else:
        assert settings.load(str(tmp_path / "tickets.yaml")).model.source == settings.load("classify").model.source
