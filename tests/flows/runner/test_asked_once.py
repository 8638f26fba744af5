"""A command asks each source once, counted by the server that is asked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers import hub_server
from tests.helpers.command_line import RECIPE, InProcessShell, Shell

ROWS = b"text,label\n" + b"".join(b"row %d,%s\n" % (n, (b"pos", b"neg")[n % 2]) for n in range(60))
DIRECT = ("--direct", "tracking.enabled=false")


class Counted(ThreadingHTTPServer):
    """Serves one file without an ETag, so that only its bytes tell whether it changed; counts requests by method."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()


class Handler(BaseHTTPRequestHandler):
    server: Counted

    def do_GET(self) -> None:
        self.server.asked[self.command] += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(ROWS)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(ROWS)

    do_HEAD = do_GET

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Counted]:
    server = Counted()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def shell(tmp_path: Path, server: Counted) -> Shell:
    source = f"http://127.0.0.1:{server.server_port}/set.csv"
    split = "split: {validation: 0.1, test: 0.2}"
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("source: rows", f"source: '{source}', {split}"))
    return InProcessShell(tmp_path)


def asked(shell: Shell, server: Counted, *arguments: str) -> dict[str, int]:
    server.asked.clear()
    done = shell(*arguments)
    assert done.returncode == 0, done.stderr
    return dict(server.asked)


def test_a_url_is_asked_and_downloaded_once_a_command(shell: Shell, server: Counted) -> None:
    once = {"HEAD": 1, "GET": 1}
    assert asked(shell, server, "preview", "mine.yaml", "tracking.enabled=false") == once
    assert asked(shell, server, "run", "mine.yaml", "--until", "pack_chunks", *DIRECT) == once
    assert asked(shell, server, "run", "mine.yaml", "--until", "pack_chunks", "data.limit=40", *DIRECT) == once
    assert asked(shell, server, "run", "mine.yaml", "--until", "pack_chunks", *DIRECT) == once, "to know that all hits"
    assert asked(shell, server, "plan", "mine.yaml") == {}


@pytest.mark.slow
def test_a_url_is_asked_once_by_a_sweep_and_its_winner(shell: Shell, server: Counted) -> None:
    trials = ("--trials", "3", "train.learning_rate=1e-4..1e-2:log", "train.max_steps=2", "tracking.enabled=false")
    assert asked(shell, server, "sweep", "mine.yaml", *trials) == {"HEAD": 1, "GET": 1}


def test_a_name_of_the_hub_is_resolved_once_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    get = hub_server.Handler.do_GET

    def counted(handler: hub_server.Handler) -> None:
        path = handler.path.split("?")[0]
        seen["revision"] += path.startswith("/api/datasets/me/set/revision") or path == "/api/datasets/me/set"
        get(handler)

    monkeypatch.setattr(hub_server.Handler, "do_GET", counted)
    monkeypatch.setattr(hub_server.Handler, "do_HEAD", counted)
    text = RECIPE.replace("source: rows", "source: me/set, split: {validation: 0.1, test: 0.2}")
    (tmp_path / "mine.yaml").write_text(text)
    with hub_server.serve({"train.csv": ROWS}) as address:
        shell = InProcessShell(tmp_path)
        plain = shell("run", "mine.yaml", "--until", "load_data", *DIRECT, HF_ENDPOINT=address)
        assert plain.returncode == 0, plain.stderr
        first = seen["revision"]
        seen.clear()
        again = shell("run", "mine.yaml", "--until", "load_data", *DIRECT, HF_ENDPOINT=address)
        assert again.returncode == 0, again.stderr
    assert seen["revision"] == 1, "a hit asks which commit the name means, once"
    assert first <= 3, "and the datasets library asks for itself when it reads the files"
