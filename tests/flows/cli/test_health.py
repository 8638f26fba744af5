"""`trnflow health`: what is well, what is not, and an answer while nothing else answers."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import InProcessShell, Shell, opened
from tests.helpers.serving import QuietHandler, address_of, serving
from tests.store.test_collect import made
from tests.store.test_ledger import add, crown
from trnflow.flows.cli.health_command import _prefect, _space
from trnflow.flows.retraining.firings import note_firing
from trnflow.tasks.events import log_file, unsent_file
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.ledger import read_ledger

RUN, LATER = "20260101T000000Z-abc123", "20260102T000000Z-abc123"


def health(shell: Shell, *arguments: str, code: int, **environ: str) -> Any:
    done = shell("health", "--json", *arguments, **environ)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_sound_store_is_healthy_and_says_what_serves_and_what_it_cost(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    model = made(store, tmp_path, "model", {"weights": b"1"})
    crown(store, model, by="retrain", run=RUN, created="2026-01-01T00:00:00Z")
    store.write_run(RUN, {"run": RUN, "seconds": 90.0, "dollars": 0.25, "stages": []})
    assert shell.json("verify")["ok"] is True
    found = health(shell, code=0)
    assert found["healthy"] and found["problems"] == [] and found["verify"]["damaged"] == 0
    (tiny,) = found["recipes"]
    assert tiny["champion"]["artifact"] == model.digest and tiny["failures"] == 0
    assert (tiny["last"]["outcome"], tiny["last"]["run"], tiny["last"]["dollars"]) == ("promoted", RUN, 0.25)
    assert found["store"]["bytes"] > 0 and found["store"]["free"] > 0
    lines = shell("health", "tiny").stdout.splitlines()
    serves, firing, cost = lines[3:6]  # first: before the parts of the machine
    assert lines[0] == "healthy" and serves.startswith("tiny: serves ") and "champion 1" in serves
    assert firing.endswith(f"promoted: better; run {RUN}; 0 failures in a row")
    assert cost.split("  ")[-1].strip() == "90 s, 0.25 USD"
    store.write_run(LATER, {"run": LATER, "seconds": 26.0, "dollars": 0.0, "stages": []})
    add(store, outcome="kept", by="retrain", run=LATER, why="not better")
    assert "26 s, no price (hardware.price_per_hour is 0)" in shell("health", "tiny").stdout
    note_firing(store.home, "tiny", "unchanged", "as before", root=store.root)
    assert health(shell, code=0)["recipes"][0]["last"]["outcome"] == "unchanged"


def test_a_recipe_with_a_store_of_its_own_is_looked_for_there(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    other = Store(str(tmp_path / "other"), tmp_path / ".trnflow")
    other.prepare()
    for place, folder in ((store, "home"), (other, "there")):
        crown(place, made(place, tmp_path, folder, {"weights": folder.encode()}), by="promote")
    (tmp_path / "tiny.yaml").write_text("extends: demo\nname: tiny\nstore: {root: other}\n")
    champion = read_ledger(other, "tiny").champion
    assert champion
    wanted = champion["champion"]
    assert health(shell, "tiny.yaml", code=0)["recipes"][0]["champion"]["artifact"] == wanted
    assert shell.json("champions", "tiny.yaml")["champions"][0]["artifact"] == wanted
    assert shell.json("history", "tiny.yaml")["history"][0]["champion"] == wanted
    assert shell.json("champions", "tiny.yaml", "--store", store.root)["champions"][0]["artifact"] != wanted


def test_a_recipe_whose_newest_run_was_in_another_store_is_among_all_of_them(tmp_path: Path) -> None:
    """A store that is gone is left out, one that can't be read is named."""
    shell, store = opened(tmp_path)
    crown(store, made(store, tmp_path, "home", {"weights": b"1"}), by="promote")
    other = Store(str(tmp_path / "other"), store.home)
    other.prepare()
    crown(other, made(other, tmp_path, "there", {"weights": b"2"}), recipe="nightly", by="retrain")
    begin(store.home, RUN, "nightly", other.root)
    begin(store.home, LATER, "nightly", str(tmp_path / "gone"))
    assert {row["recipe"]: row["store"] for row in health(shell, code=0)["recipes"]} == {
        "tiny": store.root, "nightly": other.root
    }  # fmt: skip
    assert f"; store {other.root}\n" in shell("health").stdout
    assert [row["recipe"] for row in health(shell, "--store", store.root, code=0)["recipes"]] == ["tiny"]
    torn = Store(str(tmp_path / "torn"), store.home)
    torn.prepare()
    (tmp_path / "torn/FORMAT.json").write_text("{")
    begin(store.home, "20260103T000000Z-abc123", "weekly", torn.root)
    found = health(shell, code=1)
    assert [row["recipe"] for row in found["recipes"]] == ["tiny", "nightly"]
    assert [problem.partition(" is damaged")[0] for problem in found["problems"]] == [
        f"recipes: FORMAT.json of the store {torn.root}"
    ]


def begin(home: Path, run: str, recipe: str, root: str) -> None:
    """Write the first line of a run's log."""
    log_file(home, run).parent.mkdir(parents=True)
    log_file(home, run).write_text(json.dumps({"event": "run_begun", "recipe": recipe, "store": root}) + "\n")


def test_the_runs_of_a_store_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bucket that takes a request for each thousand of them."""
    shell, store = opened(tmp_path)
    for recipe in ("one", "two", "three"):
        add(store, recipe, outcome="kept", by="retrain")
    listed: list[Store] = []
    listing = Store.run_ids
    monkeypatch.setattr(Store, "run_ids", lambda store: listed.append(store) or listing(store))
    assert len(health(shell, code=0)["recipes"]) == 3 and len(listed) == 1


def test_each_problem_is_named_and_stands_on_the_page(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    model = made(store, tmp_path, "model", {"weights": b"1"})
    crown(store, model)
    for _ in range(2):
        add(store, outcome="failed", by="retrain", why="the <disk> is full", data="d")
    add(store, "other", outcome="kept", by="retrain", created="2099-01-01T00:00:00Z")
    (tmp_path / ".trnflow/store" / blob_name(model.files[0].digest)).unlink()
    assert shell("verify").returncode == 1
    for run in (RUN, LATER):
        for file in (log_file(store.home, run), unsent_file(store.home, run)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
    two_days_ago = time.time() - 2 * 86400
    os.utime(log_file(store.home, RUN), (two_days_ago, two_days_ago))
    found = health(shell, code=1)
    problems = "\n".join(found["problems"])
    for named in (
        "spool: MLflow lacks the events of 2 runs, for 2 days", "verify: 2 files were damaged", "the store has lost weights",
        "tiny: the last retrain failed", "other: the last retrain is dated in the future",
    ):  # fmt: skip
        assert named in problems
    assert [one["failures"] for one in found["recipes"]] == [0, 2] and found["unanswered"] == []
    assert len(health(shell, "other", code=1)["recipes"]) == 1
    printed = shell("ui").stdout.splitlines()[-1]
    page = tmp_path / ".trnflow/reports/health.html"
    assert printed == f"health:  {page.as_uri()}"
    html = page.read_text()
    assert "trnflow is not healthy" in html and "the &lt;disk&gt; is full" in html and "<script" not in html


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """A port that refuses, and one that takes a connection and never answers."""
    with ExitStack() as held:
        refuses = held.enter_context(socket.socket())
        refuses.bind(("127.0.0.1", 0))  # bound, and nobody listens
        silent = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        yield refuses.getsockname()[1], silent.getsockname()[1]


@pytest.mark.parametrize("which", [0, 1], ids=["refused", "silent"])
def test_it_answers_while_everything_is_down(tmp_path: Path, ports: tuple[int, int], which: int) -> None:
    address = f"http://127.0.0.1:{ports[which]}"
    shell = Shell(tmp_path)
    found = health(
        shell, code=1, PREFECT_API_URL=f"{address}/api", MLFLOW_TRACKING_URI=address, TRNFLOW_STORE="s3://bucket/store",
        AWS_ENDPOINT_URL=address, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1",
    )  # fmt: skip
    assert {problem.partition(":")[0] for problem in found["problems"]} - {"recipes"} == {"prefect", "mlflow"}
    assert found["unanswered"] == ["recipes"] or any(problem.startswith("recipes: ") for problem in found["problems"])
    assert found["recipes"] is None and found["spool"] == {"runs": 0, "oldest_seconds": 0}


SLOW_ENTRY = """
import time
from trnflow.tasks.store.local import LocalBackend
read = LocalBackend.read
def slowly(self, name):
    time.sleep(60 * (name.endswith("ledger/slow/1.json") or self.root.endswith("/silent")))
    return read(self, name)
LocalBackend.read = slowly
"""


def slow_shell(folder: Path) -> Shell:
    """A shell in a folder, where SLOW_ENTRY applies."""
    shell = Shell(folder)
    (folder / "slow").mkdir()
    (folder / "slow/sitecustomize.py").write_text(SLOW_ENTRY)
    shell.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "slow"), shell.environ.get("PYTHONPATH", "")])
    return shell


def test_a_store_that_hangs_costs_the_recipes_of_others_nothing(tmp_path: Path) -> None:
    """Of one of many stores that never answers, its own recipes alone are named."""
    _, store = opened(tmp_path)
    add(store, outcome="kept", by="retrain")
    other = Store(str(tmp_path / "other"), store.home)
    other.prepare()
    add(other, "nightly", outcome="failed", by="retrain", why="the disk is full")
    begin(store.home, RUN, "nightly", other.root)
    hanging = Store(str(tmp_path / "silent"), store.home)
    hanging.prepare()
    add(hanging, "weekly", outcome="kept", by="retrain")
    begin(store.home, LATER, "weekly", hanging.root)
    found = health(slow_shell(tmp_path), code=1)
    assert {row["recipe"] for row in found["recipes"]} == {"tiny", "nightly"}
    assert found["unanswered"] == ["weekly (recipe)"] and "the disk is full" in found["problems"][0]


def test_a_store_that_is_slow_is_not_sick_and_what_answered_is_shown(tmp_path: Path) -> None:
    """The entry of one recipe is read for a minute."""
    _, store = opened(tmp_path)
    for name in ("slow", "tiny", "other"):
        add(store, name, outcome="kept", by="retrain", why="as good")
    slow = tmp_path / ".trnflow/store/roots/ledger/slow/1.json"
    shell = slow_shell(tmp_path)
    found = health(shell, code=3)
    assert (found["healthy"], found["problems"], found["unanswered"]) == (False, [], ["slow (recipe)"])
    assert [(one["recipe"], one["last"]["why"]) for one in found["recipes"]] == [
        ("other", "as good"),
        ("tiny", "as good"),
    ]
    printed = shell("health")
    assert printed.returncode == 3 and "other: last firing" in printed.stdout
    assert printed.stdout.startswith("slow: ") and "slow (recipe)       no answer within 2 s" in printed.stdout
    slow.with_name("2.json").write_text("[]")  # a problem beside it counts more
    add(store, "tiny", outcome="failed", by="retrain", why="the disk is full")
    assert len(health(shell, code=1)["problems"]) == 2


def test_a_store_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    found = health(InProcessShell(tmp_path), "--store", str(tmp_path / "nowhere"), code=1)
    assert any("no store at" in problem for problem in found["problems"])


def test_a_store_that_no_run_has_made_yet_is_none(tmp_path: Path) -> None:
    """Once something ran here, a store that is gone is one: its disk may be unmounted."""
    shell, place = InProcessShell(tmp_path), {"TRNFLOW_STORE": str(tmp_path / "store")}
    found = health(shell, code=0, **place)
    assert found["problems"] == found["recipes"] == []
    said = shell("health", **place).stdout
    assert "no decision about a model yet" in said and "unknown in use, unknown free" in said
    note_firing(tmp_path / ".trnflow", "tiny", "failed", "the store is gone")
    assert any("no store at" in problem for problem in health(shell, code=1, **place)["problems"])


def test_the_space_of_a_store_named_by_a_url_of_a_folder_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"12345")
    problems: list[str] = []
    found = [_space(tmp_path / "home", root, problems) for root in (f"file://{tmp_path}", "s3://bucket/store")]
    assert [(each["bytes"], each["free"] is None) for each in found] == [(5, False), (None, True)]


class Runs(QuietHandler):
    """Answers as Prefect's API does: a run that should have begun, one that has a minute's delay, one that runs, one of
    tomorrow."""

    def do_POST(self) -> None:
        self.body()
        runs = [
            ("1", "SCHEDULED", "2026-01-01T00:00:00Z"), ("2", "RUNNING", "2026-01-01T00:00:00Z"),
            ("3", "SCHEDULED", "2099-01-01T03:00:00Z"),
            ("4", "SCHEDULED", (datetime.now(UTC) - timedelta(minutes=1)).isoformat()),
        ]  # fmt: skip
        answer = [
            {"id": id, "state_type": state, "expected_start_time": start, "parameters": {"recipe": f"conf/{name}.yaml"}}
            for name in ("tiny", "other") for id, state, start in runs
        ]  # fmt: skip
        self.answer(200, json.dumps(answer).encode())


def test_the_queue_and_the_next_firing_are_told(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    add(store, outcome="kept", by="retrain")
    with serving(HTTPServer(("127.0.0.1", 0), Runs)) as server:
        url = f"{address_of(server)}/api"
        found = health(shell, "tiny", code=1, PREFECT_API_URL=url)
    assert found["prefect"] == {
            "url": url, "login": True, "next": "2099-01-01T03:00:00Z", "running": 1, "waiting": 2, "late": 1,
        }  # fmt: skip
    assert found["problems"] == [
        "prefect: 1 run should have begun, the first at 2026-01-01T00:00:00Z: does a worker run?"
    ]


@pytest.mark.parametrize("answer", [b"true", b'{"detail": "x"}', b"<html>"])
def test_a_program_that_is_no_prefect_server_is_named(tmp_path: Path, answer: bytes) -> None:
    class Other(Runs):
        def do_POST(self) -> None:
            self.body()
            self.answer(200, answer)

    problems: list[str] = []
    with serving(HTTPServer(("127.0.0.1", 0), Other)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", f"{address_of(server)}/api")
        found = _prefect(tmp_path, None, problems)
    assert found["running"] == 0 and [one.partition(" is ")[2] for one in problems] == ["no Prefect server"]
