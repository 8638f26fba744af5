"""A week of a schedule in a quarter of an hour: `python -m tests.chaos.week [--every S] [--firings N] [--postgres]`.

The deployment `retrain` fires every S seconds over training rows that change now and then. A day ends when its outcome was
seen, so a slow machine makes the week longer, not wrong. Exit code 0 if every day ended as it must, each state of the rows
was judged once, and every firing has one flow run, one event and a true final state; else 1. With --postgres the databases of
Prefect and MLflow are on a PostgreSQL server of their own; else they are SQLite files.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.data import NAMES, bomb, broken, rows, with_long_cell, without_labels
from tests.chaos.databases import environment, prepared
from tests.chaos.house import House, is_final, wait_for
from tests.chaos.ledger import BUSY, JUDGED, Firing, faults, firing, judged, sequence
from tests.helpers.ledgers import entries, titles

RECIPE = "checks: [{what: label_share, limit: 0.3, then: stop}]\n"
Ask = Callable[[str], Sequence[Sequence[Any]]]
"""Return the rows that a database gives for a query."""
PATIENCE = 1200.0
"""Seconds after which a day whose outcome is not there ends the week."""


class Day(NamedTuple):
    """What happens to the training rows, and how the retrains that follow must end.

    Attributes:
        what: Name of the day.
        train: The new training rows; None to leave them.
        outcome: Of `promoted` and `kept` there is exactly one firing, and those after it are unchanged; the other outcomes
            are of every firing of the day.
        during: Training rows that replace `train` when the training has begun.
        firings: How many firings must end so, of an outcome that judges nothing.
        breaks: Whether a blob is cut in half that the day's run makes again.
    """

    what: str
    train: bytes | None
    outcome: str
    during: bytes | None = None
    firings: int = 1
    breaks: bool = False

    @property
    def count(self) -> int:
        """Rows of the state that is judged last."""
        return len((self.during or self.train or b"").splitlines())


def days() -> list[Day]:
    """The week. Each state of the rows that is judged has a number of rows of its own, by which its run is known."""
    sound = rows(410)
    return [
        Day("first", rows(400, wrong=0.9), "promoted"),
        Day("nothing new", None, "unchanged", firings=2),
        Day("a better one", rows(404), "promoted"),
        Day("appended", sound, "kept"),
        Day("broken", broken(sound), "failed"),
        Day("mended", sound, "unchanged"),
        Day("labels missing", without_labels(sound), "failed"),
        Day("labels back", sound, "unchanged"),
        Day("a bomb", bomb(), "failed"),
        Day("a cell of 200 MB", with_long_cell(sound), "failed"),
        Day("without them", sound, "unchanged"),
        Day("drifted", rows(415, positive=0.95), "stopped"),
        Day("as before", sound, "unchanged"),
        Day("a worse one", rows(420, wrong=0.9), "kept"),
        Day("a broken blob", rows(425), "kept", breaks=True),
        Day("changed during a run", rows(430), "kept", during=rows(440)),
    ]


class Week:
    """Lives through the days, and prints each firing as it ends."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.firings: dict[str, Firing] = {}
        self.yesterday = "unchanged"

    def live(self, day: Day) -> None:
        """Change the rows, and wait until the day has ended as it must."""
        before, trainings = set(self.firings), self.house.trainings()
        say(f"     -- {day.what}")
        if day.breaks:
            self.house.break_blob()
        if day.train is not None:
            self.house.put(day.train)
        changed = datetime.now(UTC)
        if day.during is not None:
            wait_for(lambda: self.house.trainings() - trainings, PATIENCE, f"a training on the day {day.what!r}")
            self.house.put(day.during)
        wait_for(lambda: self.has_ended(day, before, changed), PATIENCE, f"{day.outcome} on the day {day.what!r}")
        self.yesterday = day.outcome

    def has_ended(self, day: Day, before: set[str], changed: datetime) -> bool:
        """Check the day's firings; return whether its outcome was seen. A firing that began before the rows changed may
        have read those of the day before."""
        self.look(again=day.during is not None)
        today = [one for run, one in self.firings.items() if run not in before]
        for one in today:
            allowed = {day.outcome, BUSY} | ({"unchanged"} if day.outcome in JUDGED else set())
            allowed |= {self.yesterday, "unchanged"} if one.begun <= changed else set()
            assert one.outcome in allowed, f"{day.what}: firing {one.number} is {one.line}"
        found = [one for one in today if one.outcome == day.outcome]
        if day.outcome in JUDGED:
            return any(self.rows_of(run) == day.count for _, run in judged(found))
        return sum(one.begun > changed for one in found) >= day.firings

    def look(self, again: bool = False) -> None:
        """Note and print the firings that have ended since the last look. The server writes events in batches: `again`
        reads those of earlier firings too, of which a second one may have come."""
        runs = self.house.runs()
        ended = [(number, run) for number, run in enumerate(runs, 1) if is_final(run)]
        if not again and self.firings.keys() >= {run["id"] for _, run in ended}:
            return
        events = self.house.events()
        for number, run in ended:
            told, name = run["state"]["message"], run["id"]
            assert run["state_type"] in ("COMPLETED", "FAILED"), f"firing {number} is {run['state_name']}: {told}"
            if name in events:
                is_new, self.firings[name] = name not in self.firings, firing(number, run, events[name])
                if is_new:
                    say(self.firings[name].line)

    def rows_of(self, run: str) -> int:
        """The training rows of a run, as its record says."""
        (record,) = (record for record in self.house.records() if record["run"] == run)
        return int(record["stages"][0]["metrics"]["train_rows"])

    def until(self, count: int) -> None:
        """Wait until so many firings have ended. The last ones change nothing."""
        quiet = Day("quiet to the end", None, "unchanged", firings=max(1, count - len(self.firings)))
        self.live(quiet)

    def end(self) -> list[dict[str, Any]]:
        """Stop the schedule, wait until all that has fired is final, and return all flow runs."""
        self.house.stop_schedule()

        def all_ended() -> bool:
            self.look()
            return {run["id"] for run in self.house.runs()} == self.firings.keys()

        wait_for(all_ended, PATIENCE, "every firing in a final state, with its event")
        return self.house.runs()


def check(week: Week, plan: list[Day], runs: list[dict[str, Any]], every: int, ask: Ask) -> list[str]:
    """Say what is wrong with the whole week. ask: of MLflow's database."""
    firings, house = [*week.firings.values()], week.house
    found = faults(runs, every)
    seen = [(outcome, week.rows_of(run)) for outcome, run in judged(firings)]
    wanted = [(day.outcome, day.count) for day in plan if day.outcome in JUDGED]
    between = [("kept", len((day.train or b"").splitlines())) for day in plan if day.during]
    if [one for one in seen if one not in between] != wanted or len({*seen}) != len(seen):
        found.append(f"judged (outcome, rows): {seen}, expected {wanted}, each once")
    promoted = titles(entries(house.home / "store", NAMES.name))
    if len(promoted) != sum(outcome == "promoted" for outcome, _ in seen):
        found.append(f"{len(promoted)} champions in the store")
    told = sorted(document["run"] for one in firings for document in one.documents if document["run"])
    records = sorted(record["run"] for record in house.records())
    if records != told:
        found.append(f"run records: {records}, told were {told}")
    verified = house.trnflow("verify")
    if verified.returncode:
        found.append(f"verify: {verified.stdout[-500:]}{verified.stderr[-500:]}")
    return found + mlflow_faults(ask, house)


def mlflow_faults(ask: Ask, house: House) -> list[str]:
    """Say which runs MLflow lacks, or has otherwise: those on record, and retrains that failed before their training.
    Uploads may come after the run has ended."""
    ends = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
    failed = {run for run, outcome in house.logged().items() if outcome == "failed"}
    wanted = sorted(
        {(record["run"], ends[record["outcome"]]) for record in house.records()} | {(run, "FAILED") for run in failed}
    )
    with contextlib.suppress(AssertionError):
        wait_for(lambda: mlflow_runs(ask) == wanted, 120, "all runs in MLflow")
    there = mlflow_runs(ask)
    return [] if there == wanted else [f"MLflow has {there}, expected {wanted}"]


def mlflow_runs(ask: Ask) -> list[tuple[str, str]]:
    """(id of the run, status) of each run of a pipeline, read from MLflow's database. A promotion is not among them."""
    tags = "(select value from tags where tags.run_uuid = runs.run_uuid and key = '%s')"
    query = f"select {tags % 'trnflow.run'}, status, {tags % 'trnflow.stage'}, {tags % 'trnflow.action'} from runs"
    return sorted((run, status) for run, status, stage, action in ask(query) if not stage and not action)


def asked_of(file: Path) -> Ask:
    """Return what answers queries of a SQLite file."""

    def ask(query: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(file, timeout=60)) as connection:
            return connection.execute(query).fetchall()

    return ask


def chosen(names: str | None) -> list[Day]:
    """The days of these names; all of them if none is named. The first model is promoted, whatever day it is."""
    wanted = names.split(",") if names else [day.what for day in days()]
    there = {day.what: day for day in days()}
    if unknown := [name for name in wanted if name not in there]:
        sys.exit(f"no such day: {', '.join(unknown)}; there are {', '.join(there)}")
    return [there[wanted[0]]._replace(outcome="promoted"), *(there[name] for name in wanted[1:])]


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.chaos.week", description=(__doc__ or "").partition("\n\n")[2]
    )
    options.add_argument("--every", type=int, default=30, help="seconds between two firings")
    options.add_argument("--firings", type=int, default=25, help="the least number of firings")
    options.add_argument("--days", help="only these days, by their names, with commas between them")
    options.add_argument("--postgres", action="store_true", help="Prefect and MLflow on PostgreSQL")
    given = options.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no process
    plan, begun = chosen(given.days), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="trnflow-week-"))
    database = prepared() if given.postgres else None
    house = House(folder, given.every, RECIPE, environment(database) if database else None)
    ask = partial(database.rows, "mlflow") if database else asked_of(house.home / "mlflow.db")
    say(f"{folder}: {len(plan)} days, a firing every {given.every} s, {database.folder if database else 'SQLite'}")
    try:
        house.put(plan[0].train or b"")
        house.open()
        week = Week(house)
        for day in plan:
            week.live(day)
        week.until(given.firings)
        found = check(week, plan, week.end(), given.every, ask)
        print(f"{len(week.firings)} firings: {sequence([*week.firings.values()])}")
    except AssertionError as error:
        found = [str(error)]
    finally:
        try:
            left = house.close()
        finally:
            house.kill_all()
            if database:
                database.close()
    found += [f"left running: {line}" for line in left]
    print("\n".join(["FAULTS:", *found] if found else ["every day ended as it must"]))
    print(f"{time.monotonic() - begun:.0f} s; files: {folder}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
