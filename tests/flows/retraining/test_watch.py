"""Watch a recipe's data: what counts as a change, when it is announced, and the command with and without a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.flows.prefect_api import PROJECT, Api
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.leases import write_dead_lease
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.ended import entry_of, newest_ended, present_data, write_ended
from trnflow.flows.retraining.lease import hold_lease
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.retraining.retrain import retrain
from trnflow.flows.retraining.watch import Look, look, note_announced
from trnflow.flows.runner.context import context_of, open_store
from trnflow.flows.services.events import data_changed
from trnflow.tasks.errors import ConfigError, DataError, StoreError
from trnflow.tasks.events import Event, EventLog, Reader, RunState
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.store import lease as leases
from trnflow.tasks.store.ledger import NewEntry, append_ledger


class Watched:
    """A recipe in a folder, whose data is looked at, at times that the test sets. Seconds count from the present."""

    def __init__(self, folder: Path) -> None:
        write_tiny(folder)
        self.shell = InProcessShell(folder)
        self.folder = folder
        self.begun = time.time()

    @property
    def recipe(self) -> Recipe:
        return settings.load(str(self.folder / "tiny.yaml"))

    @property
    def store(self) -> Store:
        return open_store(self.recipe)

    def look(self, at: float, *, every: float = 100.0) -> str:
        """What a look finds at this time; a change is announced."""
        found: Look = look(self.recipe, self.store, every=every, clock=lambda: self.begun + at)
        assert found.recipe == "tiny" and found.why
        if found.outcome == "changed":
            note_announced(found, self.store, clock=lambda: self.begun + at)
        return found.outcome

    def end(self, **how: Any) -> None:
        write_ended(self.store, Retrained("tiny", None, True, "said", **how), present_data(self.recipe, self.store))

    def append(self, text: str) -> None:
        with (self.folder / "rows/train.jsonl").open("a") as file:
            file.write(text)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / ".trnflow"))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    found = Watched(tmp_path)
    found.store.prepare()
    return found


def test_data_counts_as_changed_once_two_looks_found_the_same(watched: Watched) -> None:
    assert [watched.look(at) for at in (0, 49, 51)] == ["new", "new", "changed"]
    watched.end(promoted=True)
    assert watched.look(60) == "unchanged"
    for at in (100, 200):  # a file that grows
        watched.append('\n{"text": "half')
        assert watched.look(at) == "new"
    watched.append(' a day", "label": "pos"}')
    assert [watched.look(at) for at in (300, 400)] == ["new", "changed"]
    watched.end(stopped=True)
    assert watched.look(401) == "unchanged"


def test_a_change_is_announced_again_after_twice_the_wait(watched: Watched) -> None:
    watched.look(0)
    looks = [100, 199, 201, 399, 402, 801, 803, 1601, 1604, 3203, 3205, 6403, 6806, 10405, 10407]
    announced = [100, 201, 402, 803, 1604, 3205, 6806, 10407]  # the waits are 100, 200, 400 ... and at most 3600
    assert [at for at in looks if watched.look(at) == "changed"] == announced


def test_a_clock_that_was_a_year_ahead_or_behind_holds_nothing_up(watched: Watched) -> None:
    year = 365 * 86400.0
    assert [watched.look(at) for at in (year, year + 60, 0, 60)] == ["new", "changed", "new", "changed"]
    ahead = Retrained("tiny", None, True, "said", error=DataError("the file is broken", "mend it"))
    entry = NewEntry(**entry_of(ahead, present_data(watched.recipe, watched.store)), created="2099-01-01T00:00:00Z")
    append_ledger(watched.store, "tiny", entry, 0)
    assert watched.look(300) == "changed"
    watched.append('\n{"text": "more", "label": "pos"}')
    assert [watched.look(at) for at in (-year, 60 - year, 400)] == ["new", "changed", "changed"]


def test_data_that_failed_is_tried_three_times(watched: Watched) -> None:
    assert [watched.look(at) for at in (0, 60)] == ["new", "changed"]
    error = DataError("the file is broken", "mend it")
    watched.end(error=error)
    assert [watched.look(at) for at in (90, 180)] == ["waiting", "changed"]
    watched.end(error=error)
    assert [watched.look(at) for at in (370, 400)] == ["waiting", "changed"]
    watched.end(error=error)
    assert [watched.look(at) for at in (500, 5000, 500_000)] == ["failed"] * 3
    watched.append('\n{"text": "other data", "label": "pos"}')
    assert [watched.look(at) for at in (600_000, 600_100)] == ["new", "changed"]


def test_nothing_is_announced_while_a_retrain_is_under_way(watched: Watched) -> None:
    watched.look(0)
    with hold_lease(watched.recipe, watched.store, wait=False) as lease:
        assert not isinstance(lease, str)
        assert watched.look(60) == "training"
    assert watched.look(60) == "changed"


def test_a_retrain_of_another_machine_that_died_is_under_way_no_more(watched: Watched) -> None:
    watched.look(0)
    write_dead_lease(watched.store, digest_of({"retrain": "tiny"}).removeprefix("sha256:"), "run", "run")
    assert watched.look(60) == "changed"


def test_a_retrain_that_waits_names_the_one_that_it_waits_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "WATCH_SECONDS", 0.01)
    held, said = ExitStack(), []

    class Releases(Reader):
        critical = True

        def read(self, event: Event, state: RunState) -> None:
            assert event["event"] == "waits"
            said.append(f"{event['stage']}: waits for {event['holder']}")
            held.close()

    with held:
        held.enter_context(hold_lease(watched.recipe, watched.store, wait=False))
        (watched.folder / "rows").rename(watched.folder / "gone")  # the retrain ends once it has the lease
        done = retrain(context_of(watched.recipe, watched.store), EventLog(Releases()), no_training, wait=True)
    assert done.outcome == "failed" and "rows" in done.why
    (line,) = said
    assert line.startswith("retrain: waits for ") and f"pid {os.getpid()} " in line and "which retrains tiny" in line


def no_training(*_: object) -> NoReturn:
    raise AssertionError("there is no data to train on")


def test_what_looks_saw_may_be_lost(watched: Watched) -> None:
    watched.look(0)
    file = watched.folder / ".trnflow/watch/tiny.json"
    for text in ("", "[]", '{"data": 7}'):
        file.write_text(text)
        assert [watched.look(at) for at in (10, 70)] == ["new", "changed"]
    assert [one.name for one in file.parent.iterdir()] == ["tiny.json"]


def test_data_that_can_not_be_reached_is_one_clear_line(watched: Watched) -> None:
    (watched.folder / "rows").rename(watched.folder / "gone")
    said = watched.shell("watch", "tiny.yaml", "--once", "--offline")
    assert (
        said.returncode == 2 and "rows" in said.stderr and len(said.stderr.splitlines()) == 2
    )  # the second is the fix
    assert "no recipe file" in watched.shell.error("watch", "none.yaml", code=2)
    assert "nonsense" in watched.shell.error("watch", "tiny.yaml", "train.nonsense=1", code=2)
    assert watched.shell("watch", "tiny.yaml", "--every", "0").returncode == 2
    first = watched.shell("watch", "tiny.yaml", "--offline")  # without --once: an error at the first look ends it too
    assert first.returncode == 2 and first.stderr == said.stderr


def test_a_retrain_that_can_not_be_planned_is_on_record(watched: Watched) -> None:
    watched.shell.error("retrain", "tiny.yaml", "--direct", "train.warm_start_from=other@champion", code=2)
    ended = newest_ended(watched.store, "tiny")
    assert ended is not None and (ended.outcome, ended.failures) == ("failed", 1)
    assert ended.data == present_data(watched.recipe, watched.store)


def test_an_override_with_a_secret_is_in_no_event() -> None:
    found = Look("tiny", "changed", "sha256:0", "the data changed")
    with pytest.raises(ConfigError, match="an override has a secret"):
        data_changed(found.to_json(), "tiny.yaml", ["launch.environment.TOKEN=t0ken"])


def test_a_disk_that_takes_no_look_is_one_clear_error(watched: Watched) -> None:
    (watched.folder / ".trnflow/watch").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"tiny\.json can't be written"):
        watched.look(0)


def test_the_command_announces_a_change_once(watched: Watched) -> None:
    assert watched.look(-1000) == "new"
    once = ("watch", "tiny.yaml", "--once", "--every", "600")
    assert [watched.shell.json(*once)["outcome"] for _ in range(2)] == ["changed", "waiting"]


@pytest.mark.slow
def test_the_command_says_where_the_event_went(watched: Watched) -> None:
    once = ("watch", "tiny.yaml", "--once", "--every", "1")
    assert watched.shell(*once).stdout.startswith("tiny new: ")
    time.sleep(0.6)
    assert "no event was sent" in watched.shell.json(*once)["done"]
    time.sleep(1.1)
    address = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    # a process of its own, since Prefect may have read its settings in this one
    gone = Shell(watched.folder).error(*once, code=2, **address)
    assert "Prefect's server at http://127.0.0.1:1/api can't be reached" in gone
    assert watched.shell.json(*once)["outcome"] == "changed"  # what was not sent is not waited for


def next_line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


FLOW = """
import sys, time
from trnflow.flows.deployments import watch
for _ in range(2):
    print(watch("tiny.yaml", every=1, return_state=True).name)
    time.sleep(0.6)
print(watch("none.yaml", return_state=True).name)
"""


@pytest.mark.slow
def test_the_server_gets_the_events_of_the_command_and_of_the_flow(watched: Watched, api: Api) -> None:
    """The command goes on looking while the data can't be reached."""
    environ = api.environ | {"TRNFLOW_HOME": str(watched.folder / ".trnflow"), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "trnflow", "watch", "tiny.yaml", "--every", "1", "--offline", "--json"]
    with subprocess.Popen(command, cwd=watched.folder, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert [next_line(process)["outcome"] for _ in range(2)] == ["new", "changed"]
        rows = watched.folder / "rows"
        rows.rename(watched.folder / "gone")
        while "error" not in (found := next_line(process)):
            assert found["outcome"] in ("changed", "waiting")
        (watched.folder / "gone").rename(rows)
        assert next_line(process)["outcome"] in ("changed", "waiting")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    watched.end(promoted=True)
    watched.append('\n{"text": "more", "label": "pos"}')
    done = subprocess.run(
        [sys.executable, "-c", FLOW], cwd=watched.folder, env=environ, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split() == ["New", "Changed", "Failed"], done.stderr
    wanted = {"event": {"name": ["trnflow.data.changed"]}, "resource": {"id": ["trnflow.recipe.tiny"]}}
    digest, deadline = present_data(watched.recipe, watched.store), time.monotonic() + 120
    while True:  # the server writes events in batches
        found = api.post("events/filter", filter=wanted)["events"]
        if {event["payload"]["data"] for event in found} >= {digest} and len(found) > 1:
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    payload = next(event["payload"] for event in found if event["payload"]["data"] == digest)
    assert payload["overrides"] == [] and payload["recipe"] == "tiny.yaml"
