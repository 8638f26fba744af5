"""`trnflow predict --serve`: its page in a real browser and by gradio's own client; no other host is asked by either side."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.clients import figures
from tests.clients.conftest import CLIENTS, RunClient
from tests.conftest import PROJECT
from tests.flows.champions.conftest import RECIPE, write_rows
from tests.helpers.browser import browser_at
from tests.helpers.command_line import InProcessShell

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

WATCH = """
import os, sys
log = open(os.environ["WATCH_LOG"], "a", buffering=1)
def note(event, arguments):
    if event in ("socket.connect", "socket.bind", "socket.sendto"):
        if isinstance(arguments[1], tuple):
            print(event, arguments[1][0], file=log)
    elif event == "socket.getaddrinfo":
        print(event, arguments[0], file=log)
sys.addaudithook(note)
"""
"""A sitecustomize that writes down each address that a Python process binds, connects to or looks up."""

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
"""urllib3 binds a port of ::1 to find out whether there is IPv6."""

HOSTILE = {
    "GRADIO_SERVER_NAME": "0.0.0.0",
    "GRADIO_SHARE": "true",
    "GRADIO_ANALYTICS_ENABLED": "True",
    "GRADIO_ALLOWED_PATHS": "/",
    "HTTP_PROXY": "http://127.0.0.9:9",
    "http_proxy": "http://127.0.0.9:9",
    "ALL_PROXY": "socks5://127.0.0.9:9",
}
"""Variables that would open the server to others, or send what it asks itself to a proxy."""

LEAKY = """
import sys
from pathlib import Path
from trnflow.flows.cli.model.serve import serve
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.prediction.predict import Model
from trnflow.tasks.prediction.prompts import Shape

ANSWER = "<img src='http://127.0.0.7:9/html.png'> ![picture](http://127.0.0.7:9/markdown.png)"
def predict(rows):
    for where, row in rows:
        yield {"prompt": "", "generated": f"{ANSWER} to {[turn['content'] for turn in row['messages']]}", "tokens": 1}
rows = RowFormat("causal_lm", {}, [], [], [], 8)
model = Model(Path(), rows, Shape(["messages"], [], lambda row, where: [], is_chat=True), False)
port = int(sys.argv[1]) if sys.argv[1:] else None
serve(model, predict, "<b>leaky</b>", port, lambda url: print('{"url": "%s"}' % url, flush=True))
"""
"""A chat model whose answers name pictures on another host."""

CLIENT = """
import json, sys
from gradio_client import Client
classifier, chat, text, long = sys.argv[1:]
client = Client(classifier, verbose=False)
found = [client.predict(given, api_name="/predict") for given in (text, long, " ")]
print(json.dumps([*found, Client(chat, verbose=False).predict("hello", api_name="/chat")]))
"""


READY = "button.submit-button:not([disabled])"
"""The button that sends a turn, when the page expects one."""


class Served(NamedTuple):
    """A process that serves a page. said: the document that it printed; log: the addresses that it used."""

    process: subprocess.Popen[str]
    said: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        return str(self.said["url"])

    def hosts(self) -> set[str]:
        """The addresses that the process has bound, connected to or looked up."""
        return {line.split()[1] for line in self.log.read_text().splitlines()}


def served(folder: Path, *arguments: str) -> Iterator[Served]:
    """Start Python with gradio laid over this environment, and wait until it prints the page's address."""
    if not (CLIENTS / "gradio" / "installed").exists():
        pytest.skip("no client gradio: run `make clients`")
    (folder / "watch").mkdir()
    (folder / "watch" / "sitecustomize.py").write_text(WATCH)
    path = os.pathsep.join(map(str, (folder / "watch", CLIENTS / "gradio", PROJECT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRNFLOW", "PREFECT"))}
    environ = {**kept, **HOSTILE, "PYTHONPATH": path, "WATCH_LOG": str(folder / "log"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield Served(process, json.loads(process.stdout.readline()), folder / "log")
        finally:
            process.kill()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """The command line in a folder in which a small classifier was trained."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "tiny.yaml").write_text(RECIPE)
    write_rows(folder / "rows", {"pos": "pos", "neg": "<i>neg</i>"})
    shell = InProcessShell(folder)
    shell.json("run", "tiny.yaml", "--direct", "--until", "consolidate", "train.max_steps=40")
    return shell


@pytest.fixture(scope="module")
def classifier(shell: InProcessShell) -> Iterator[Served]:
    yield from served(shell.folder, "-m", "trnflow", "predict", "last", "--serve", "--json")


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from served(tmp_path_factory.mktemp("leaky"), "-c", LEAKY)


def test_gradios_client_gets_what_predict_prints(
    shell: InProcessShell, classifier: Served, leaky: Served, run_client: RunClient
) -> None:
    text = "a lovely sunny day"
    printed = shell.json("predict", "last", text)
    for name in ("schema", "model", "task"):
        assert classifier.said[name] == printed[name]
    short, long, empty, chat = run_client("gradio", CLIENT, classifier.url, leaky.url, text, "day " * 40)
    assert short[0]["label"] == printed["results"][0]["label"] and short[1] == ""
    shown = {one["label"]: one["confidence"] for one in short[0]["confidences"]}
    expected = printed["results"][0]["probabilities"]
    difference = max(abs(shown[label] - expected[label]) for label in expected)
    figures.note("gradio", "the page of `predict --serve`", "probabilities", difference, "gradio")
    assert shown.keys() == expected.keys() and difference < 1e-6
    main = classifier.process.pid
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert any(b"separate_process:serve" in command for command in commands), "a forward pass that can be ended"
    assert "26 tokens were too many" in long[1] and empty[1] == "the text is empty"
    assert "to ['hello']" in chat


def test_a_large_request_is_refused_before_it_is_read(classifier: Served) -> None:
    """Also one that does not say how long it is."""
    place = urlsplit(classifier.url)
    said = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    said.putrequest("POST", "/gradio_api/queue/join")
    said.putheader("Content-Type", "application/json")
    said.putheader("Content-Length", "50000000")
    said.endheaders()  # and no body: the answer does not wait for it
    answer = said.getresponse()
    assert answer.status == 413 and b"1,048,576 bytes at most" in answer.read()

    before = memory(classifier.process.pid)
    silent = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    with contextlib.suppress(ConnectionError):
        pieces = (b'"' + b"a" * 65535 for _ in range(50_000_000 // 65536))
        silent.request(
            "POST", "/gradio_api/queue/join", pieces, {"Content-Type": "application/json"}, encode_chunked=True
        )
        assert silent.getresponse().status >= 400
    assert memory(classifier.process.pid) < before + 20e6


def test_answers_that_nobody_fetches_do_not_pile_up(leaky: Served) -> None:
    """Each of these requests kept two megabytes."""
    place = urlsplit(leaky.url)
    before, body = memory(leaky.process.pid), json.dumps({"data": ["x" * 900_000]})
    for _ in range(400):
        page = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        page.request("POST", "/gradio_api/call/chat", body, {"Content-Type": "application/json"})
        assert page.getresponse().status in (200, 503)  # 503: too many wait
        page.close()
    assert memory(leaky.process.pid) < before + 400e6


def test_requests_that_never_end_do_not_fill_the_memory(leaky: Served) -> None:
    """Each of these held a megabyte; the page answers others meanwhile."""
    place = urlsplit(leaky.url)
    before = memory(leaky.process.pid)
    head = f"POST /gradio_api/call/chat HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 1048576\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            slow = stack.enter_context(socket.create_connection((str(place.hostname), place.port), timeout=60))
            with contextlib.suppress(ConnectionError):  # it is refused early
                slow.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + b'"' + b"a" * 1_000_000)
        with urllib.request.urlopen(leaky.url, timeout=60) as answer:
            assert answer.status == 200
        assert memory(leaky.process.pid) < before + 200e6


def memory(pid: int) -> int:
    """Return the most bytes that a process has held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_no_other_host_is_asked_whatever_the_environment_says(classifier: Served) -> None:
    """Nor may a page of another site read this one by a name of its own; nothing can be uploaded, and no file read."""
    with urllib.request.urlopen(classifier.url, timeout=60) as answer:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    other = urllib.request.Request(classifier.url, headers={"Host": "example.org"})
    file = f"{classifier.url}gradio_api/file=/etc/hostname"
    for refused in (other, urllib.request.Request(file)):
        with pytest.raises(urllib.error.HTTPError, match="40[03]"):
            urllib.request.urlopen(refused, timeout=60)
    assert classifier.hosts() <= LOOPBACK


@pytest.mark.parametrize("origin", ["http://example.org", "http://127.0.0.1:5000", "null"])
def test_a_page_of_another_origin_is_refused_and_so_is_an_upload(classifier: Served, origin: str) -> None:
    """Another port of this machine is another origin, to which gradio gave its answers; an empty file was stored."""
    body = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x"\r\n\r\n\r\n--b--\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    asked = [("gradio_api/info", None, {"Origin": origin}), ("config", None, {"Origin": origin})]
    for path, data, headers in [*asked, ("gradio_api/upload", body, form)]:
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(urllib.request.Request(f"{classifier.url}{path}", data, headers), timeout=60)
    own = urllib.request.Request(f"{classifier.url}config", headers={"Origin": classifier.url.rstrip("/")})
    assert urllib.request.urlopen(own, timeout=60).status == 200


def test_the_page_classifies_in_a_browser_and_asks_no_other_host(classifier: Served, tmp_path: Path) -> None:
    with browser_at(classifier.url, tmp_path) as page:
        page.type_into("textarea", "an awful sad rainy day")
        page.value("[...document.querySelectorAll('button')].find(one => one.innerText == 'Submit').click()")
        page.wait_for("document.body.innerText.includes('<i>neg</i>') && document.body.innerText.includes('%')")
        assert {urlsplit(url).hostname for url in page.requests} <= {"127.0.0.1", None}
    assert classifier.hosts() <= LOOPBACK


def test_a_browser_loads_nothing_that_a_model_names(leaky: Served, tmp_path: Path) -> None:
    """The model gets the turns before with their indentation."""
    first = "def f():\n    return 1"
    with browser_at(leaky.url, tmp_path) as page:
        for turn in (first, "second"):
            page.wait_for(f"document.querySelector({READY!r}) && !document.querySelector('button.stop-button')")
            page.type_into("textarea", turn)
            page.value(f"document.querySelector({READY!r}).click()")
            page.wait_for(f"document.body.textContent.includes({json.dumps(f'{turn!r}]')})")
        shown = page.value("document.body.innerText")
        assert "![picture](http://127.0.0.7:9/markdown.png)" in shown and "<img src=" in shown
        assert f'[{first!r}, "<img' in page.value("document.body.textContent")
        assert not page.value("document.querySelector('img[src*=\"127.0.0.7\"]')")
        assert {urlsplit(url).hostname for url in page.requests} <= {"127.0.0.1", None}


def test_a_taken_port_is_one_clear_error_and_an_interrupt_ends_it(leaky: Served) -> None:
    command = [*leaky.process.args, str(urlsplit(leaky.url).port)]  # type: ignore[misc]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (CLIENTS / "gradio", PROJECT)))}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert f"--serve: port {urlsplit(leaky.url).port} is taken or not allowed" in done.stderr
    leaky.process.send_signal(signal.SIGINT)
    assert leaky.process.wait(120) == 0
    assert {entry.name for entry in leaky.log.parent.iterdir()} == {"watch", "log"}
