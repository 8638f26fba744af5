"""Runs in real processes that start in milliseconds: forked from a process that has imported everything.

As a program: a JSON order a line on stdin, the pid of the process that obeys it a line on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.flows.runner.toy import WordsConfig, graph
from tests.flows.waiting import OnceConfig, apart, once
from tests.helpers.runs import context
from tests.helpers.stores import new_store
from tests.helpers.waiting import wait_for
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run as run_graph
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import Interrupted
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.keys.key_document import key_document
from trnflow.tasks.stage import stage_of
from trnflow.tasks.store import Store

PROJECT = Path(__file__).resolve().parents[3]
COUNTED = (
    "/tasks/store/",
    "/flows/runner/run.py",
    "/flows/runner/make.py",
    "/flows/runner/claim.py",
    "/flows/runner/work_folders.py",
    "/tests/flows/runner/toy.py",
)
PATIENCE = 60.0


class Log(Reader):
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun":
            self._add(f"started {event['stage']}")
        elif event["event"] == "note":
            self._add(event["text"])
        elif event["event"] == "waits":
            self._add(f"waits for {event['holder']}")

    def _add(self, text: str) -> None:
        with self._path.open("a") as log:
            log.write(f"{text}\n")


def obey(order: Meta) -> None:
    """Run a stage, or the toy pipeline on a text, as the order says; the result goes to `<folder>/<name>.json`."""
    folder = Path(order["folder"])
    store = Store(order["root"], folder / "home")
    log, ttl = Log(folder / f"{order['name']}.log"), order.get("ttl", 60.0)
    opened = context(store, log, run=order["name"], settings=[f"store.lease_ttl_seconds={ttl}"])
    if "text" in order:
        wanted = graph(WordsConfig(path=order["text"]))
    else:
        stage = {"once": once, "apart": apart}[order.get("stage", "once")]
        wanted = Graph((Node(stage, OnceConfig(**order["once"]), {}),))
    calls = count_calls(order.get("kill_at"))
    result = run_graph(wanted, opened, Options(force=frozenset(order.get("force", ())), record=False))
    sys.setprofile(None)
    if result.error is not None and not isinstance(result.error, Interrupted):
        raise result.error
    said: Meta = {
        "outcomes": {step.name: [step.action, step.why] for step in result.steps},
        "digests": {step.name: step.artifact.digest for step in result.steps if step.artifact},
        "notes": result.notes,
        "calls": calls[0],
        "interrupted": result.error is not None,
    }
    aside = folder / f".{order['name']}"
    aside.write_text(json.dumps(said))
    aside.rename(folder / f"{order['name']}.json")


def count_calls(kill_at: int | None) -> list[int]:
    """Count each call and return in the machinery from now on; SIGKILL this process at the `kill_at`-th."""
    calls = [0]

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if any(part in frame.f_code.co_filename for part in COUNTED):
            calls[0] += 1
            if calls[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(count)
    sys.setprofile(count)
    return calls


def main() -> None:
    with contextlib.suppress(ImportError):
        import s3fs  # noqa: F401 - once, for all that are forked
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status = 1
            try:
                obey(json.loads(line))
                status = 0
            finally:
                sys.stderr.flush()
                sys.excepthook(*sys.exc_info()) if status else None  # type: ignore[arg-type]
                os._exit(status)
        print(pid, flush=True)


class Forks:
    """Starts runs and looks at what they left in `folder`."""

    def __init__(self, folder: Path, root: str, server: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.root = root
        self.journal = folder / "journal"
        self._server = server
        self._pids: dict[str, int] = {}

    def start(
        self, name: str, *, gate: str = "", salt: str = "", mute: bool = True, number: int = 0, **order: Any
    ) -> int:
        """A run of `once` (or of the toy pipeline, when `text` is given); returns its pid."""
        config = {"journal": str(self.journal), "number": number, "salt": salt, "mute": mute}
        config["gate"] = str(self.folder / gate) if gate else ""
        order |= {"name": name, "folder": str(self.folder), "root": self.root, "once": config}
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(f"{json.dumps(order)}\n")
        self._server.stdin.flush()
        self._pids[name] = int(self._server.stdout.readline())
        return self._pids[name]

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def executions(self) -> list[int]:
        """The pid of each run that executed `once`, in order; 0 for those that others started."""
        return (
            [self._pids.get(run, 0) for run in self.journal.read_text().split("\n")[:-1]]
            if self.journal.exists()
            else []
        )

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def result(self, name: str) -> Meta:
        path = self.folder / f"{name}.json"
        until(path.exists)
        return dict(json.loads(path.read_text()))

    def store(self) -> Store:
        return Store(self.root, self.folder / "home")


@contextlib.contextmanager
def forks(folder: Path, root: str) -> Iterator[Forks]:
    store = new_store(folder, root)
    key_document(stage_of(once), OnceConfig(journal=""), {}, store.memo)  # what all of them would compute at once
    store.memo.save()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.flows.runner.forks"],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout and server.stdout.readline() == "ready\n"
        yield Forks(folder, root, server)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def nothing_left(starters: Forks) -> bool:
    work = starters.folder / "home" / "work"
    return not starters.store().backend.folders("leases") and not list(work.iterdir())


def until(holds: Callable[[], Any]) -> None:
    wait_for(holds, PATIENCE, 0.01)


if __name__ == "__main__":
    from tests.flows.runner.forks import main as run  # so that `once` belongs to this module, not to __main__

    run()
