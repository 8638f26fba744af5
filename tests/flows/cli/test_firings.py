"""The list of firings: what `history` says of a retrain that was killed, or whose clock was wrong, and of a lost champion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT
from tests.helpers.command_line import opened
from tests.helpers.waiting import wait_for
from tests.store.test_collect import made
from tests.store.test_ledger import add, crown
from trnflow.flows.display.run_page import verdict_on
from trnflow.flows.retraining.firings import KEPT_BYTES, note_firing, read_firings
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.ledger import read_ledger

RUN, LATER, AHEAD = "20260101T000000Z-abc123", "20260102T000000Z-abc123", "20990101T000000Z-abc123"
KILLED = """
import sys
from pathlib import Path
from tests.flows.cli.waiting_stage import WaitConfig, wait_for
from tests.helpers.runs import context, run_stage
from trnflow.tasks.store import Store
opened = context(Store(sys.argv[1] + "/.trnflow/store", Path(sys.argv[1]) / ".trnflow"), run=sys.argv[2])
opened.kind = "retrain"
run_stage(wait_for, WaitConfig(path=sys.argv[1] + "/never"), opened)
"""


def test_a_killed_retrain_is_listed_at_its_step(tmp_path: Path) -> None:
    shell, _ = opened(tmp_path)
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), RUN], cwd=PROJECT)
    wait_for(lambda: [one for one in shell.json("runs")["runs"] if one["step"]], 60)
    assert shell.json("history", "toy")["history"] == []
    run.kill()
    run.wait()
    (firing,) = wait_for(lambda: shell.json("history", "toy")["history"], 60)
    assert (firing["outcome"], firing["run"], firing["page"]) == ("killed", RUN, f"trnflow logs {RUN}")
    (killed,) = shell.json("runs")["runs"]
    at = f"wait_for {killed['step']}/100 looks"
    assert firing["why"].startswith(f"killed at {at}") and at in shell("runs").stdout
    assert f"toy: the last retrain killed on {firing['created']}" in shell("health", "toy").stdout
    assert at in shell("history", "toy").stdout and shell.json("history", "other")["history"] == []


def test_firings_that_leave_no_entry_stand_between_the_decisions(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    add(store, "toy", outcome="kept", by="retrain", why="not better", run=RUN)  # of the same second as what follows
    note_firing(store.home, "toy", "unchanged", "as before", root=store.root)
    note_firing(store.home, "toy", "unchanged", "of another store", root="s3://other")
    note_firing(store.home, "toy", "failed", "the recipe can't be read")
    store.write_run(RUN, {"run": RUN})
    past = shell.json("history", "toy")["history"]
    assert [(one["outcome"], one["why"], one["page"]) for one in past] == [
        ("failed", "the recipe can't be read", None),
        ("unchanged", "as before", None),
        ("kept", "not better", f"trnflow report {RUN}"),
    ]
    assert {frozenset(one) for one in past} == {frozenset(past[0])}, "all have the same fields"
    (kept,) = (line.split() for line in shell("history", "toy").stdout.splitlines() if "not better" in line)
    assert kept[0] == str(past[2]["n"]), "a decision is shown with its number"


def test_the_file_of_firings_is_bounded(tmp_path: Path) -> None:
    why = "x" * (KEPT_BYTES // 64)
    for number in range(100):
        note_firing(tmp_path, "toy", "unchanged", f"{number} {why}")
    assert (tmp_path / "firings/toy.jsonl").stat().st_size < KEPT_BYTES * 1.1
    numbers = [int(firing["why"].split()[0]) for firing in read_firings(tmp_path, "toy", "")]
    assert len(numbers) > 30 and numbers == [*range(99, 99 - len(numbers), -1)], "the older ones go"


def test_a_run_dated_in_the_future_is_said_to_be_so_and_is_not_the_last(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    for run in (AHEAD, RUN, LATER):
        store.write_run(run, {"run": run, "recipe": "toy", "stages": []})
    listed = shell("runs").stdout.splitlines()[2:]
    assert [line.split()[0] for line in listed] == [LATER, RUN, AHEAD]
    assert [("dated in the future" in line) for line in listed] == [False, False, True]
    assert f"{LATER}" in shell("diff", "last~1", "last").stdout.splitlines()[1]
    add(store, "toy", outcome="kept", by="retrain", run=AHEAD, created="2099-01-01T00:00:00Z")
    add(store, "toy", outcome="kept", by="retrain", run=LATER, created="2026-01-02T00:00:00Z")
    past = shell.json("history", "toy")["history"]
    assert [(one["run"], one["ahead"]) for one in past] == [(LATER, False), (AHEAD, True)]
    assert shell("history", "toy").stdout.count("dated in the future") == 1


def test_a_champion_whose_bytes_are_lost_is_named(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    model = made(store, tmp_path, "model", {"weights": b"1"})
    crown(store, model)
    assert shell.json("history", "tiny")["notes"] == []
    (tmp_path / ".trnflow/store" / blob_name(model.files[0].digest)).unlink()
    assert "note: champion 1 of tiny" in shell("history", "tiny").stdout
    (note,) = shell.json("history", "tiny")["notes"]
    assert "the store has lost weights" in note


def test_a_verdict_says_what_is_spent_of_the_budget_where_the_comparison_does(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    pair = {
        "metric": "f1",
        "champion": 0.8,
        "challenger": 0.7,
        "difference": -0.1,
        "low": -0.2,
        "high": 0.0,
        "rows": 90,
    }
    add(store, champion=f"sha256:{'1' * 64}")
    add(store, outcome="kept", by="retrain", run=RUN, comparison=pair)
    add(store, outcome="kept", by="retrain", run=LATER, comparison=pair | {"spent": 0.12})
    add(store, outcome="rolled back", by="rollback", run=RUN, champion=f"sha256:{'2' * 64}", why="rolled back from it")
    entries = read_ledger(store, "tiny").entries()
    kept = "kept: f1 0.7 against 0.8 of champion 1; difference -0.1, interval -0.2 to +0; 90 frozen rows"
    assert [verdict_on(run, entries) for run in (RUN, LATER, AHEAD)] == [kept, f"{kept}; budget spent 12.0%", None]
