"""Look up after chaos what is true: in the S3 server itself, in Prefect, in /proc, and by training again elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.chaos.acts import Scene
from tests.chaos.data import NAMES
from tests.chaos.house import is_final, wait_for
from tests.chaos.outside import ObjectStore
from tests.helpers.ledgers import titles

FINAL_SECONDS = 400.0
"""Seconds after the end of the schedule in which every flow run must be in a final state."""


def ledger(store: ObjectStore) -> list[dict[str, Any]]:
    """The entries of the recipe's ledger, the newest first."""
    entries = [store.document(name) for name in store.names(f"roots/ledger/{NAMES.name}/")]
    return sorted(entries, key=lambda entry: -int(entry["n"]))


def newest_judged(store: ObjectStore) -> Any:
    """The entry of the model that was judged last; None if none was."""
    return next((entry for entry in ledger(store) if entry["n"] == entry["stands"]["judged_by"]), None)


def newest_judged_rows(store: ObjectStore) -> int:
    """The training rows of the model that was judged last; 0 if none was."""
    judged = newest_judged(store)
    return train_rows(store.document(f"runs/{judged['run']}.json")) if judged else 0


def train_rows(record: dict[str, Any]) -> int:
    """The training rows of a run, as its record says; 0 if load_data did not end."""
    stages = {stage["stage"]: stage for stage in record["stages"]}
    return int(stages.get("load_data", {}).get("metrics", {}).get("train_rows", 0))


def faults_of(scene: Scene, say: Callable[[str], None]) -> list[str]:
    """Stop the schedule, wait until all that fired has ended, and say what is wrong."""
    house = scene.house
    house.stop_schedule()
    with contextlib.suppress(AssertionError):
        wait_for(lambda: all(map(is_final, house.runs())), FINAL_SECONDS, "all runs in a final state")
    runs = house.runs()
    say(f"flow runs: {dict(Counter(run['state_name'] for run in runs))}")
    found = [*untrue(runs, house.events()), *lost(scene.store), *wrong(scene)]
    done = house.trnflow("verify")
    if done.returncode:
        found.append(f"verify: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    found += [f"left running: {line}" for line in house.close()]
    for fault in found:
        say(f"fault: {fault}")
    say("trains the last rows in an empty store")
    return found + differs(scene)


def untrue(runs: list[dict[str, Any]], events: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Flow runs that are not final, whose event says something else, or that failed by a defect of the program."""
    found = []
    for run in runs:
        name, told = f"flow run {run['id']} (due {run['expected_start_time']})", run["state"]["message"] or ""
        outcome = [one["event"].removeprefix("trnflow.retrain.") for one in events.get(run["id"], [])][-1:]
        if not is_final(run):
            found.append(f"{name} is {run['state_name']} for ever")
        elif outcome and outcome != [run["state_name"].lower()]:
            found.append(f"{name} is {run['state_name']}, its event says {outcome[0]}: {told[:300]}")
        if re.search(r"unexpected \w+", told):
            found.append(f"{name}: {told[:500]}")
    return found


def lost(store: ObjectStore) -> list[str]:
    """Artifacts of completed runs and of champions that are not in the S3 server."""
    records = [store.document(name) for name in store.names("runs/")]
    wanted = {
        stage["artifact"]
        for one in records
        if one["outcome"] == "completed"
        for stage in one["stages"]
        if stage["artifact"]
    }
    wanted |= {entry["champion"] for entry in titles(ledger(store))}
    there = set(store.names("blobs/"))
    return [f"lost: {one}" for one in sorted(wanted) if f"blobs/sha256/{one[7:9]}/{one[7:]}" not in there]


def wrong(scene: Scene) -> list[str]:
    """Completed runs of rows that never were, runs whose record says `running`, and a gap in the numbers of the champions."""
    records = [scene.store.document(name) for name in scene.store.names("runs/")]
    complete = [train_rows(one) for one in records if one["outcome"] == "completed"]
    found = [f"a run of {count} rows, which never were" for count in complete if count not in scene.counts]
    found += [f"run {one['run']} is {one['outcome']}" for one in records if one["outcome"] == "running"]
    numbers = [entry["number"] for entry in reversed(titles(ledger(scene.store)))]
    return found + ([] if numbers == [*range(1, len(numbers) + 1)] else [f"champions {numbers}"])


def differs(scene: Scene) -> list[str]:
    """Train the last rows again in an empty store: the model must be that which was judged, bit for bit."""
    judged = newest_judged(scene.store)
    if judged is None:
        return ["no model was judged"]
    scene.house.environ |= {"TRNFLOW_STORE": str(scene.house.folder / "again")}
    done = scene.house.trnflow("retrain", NAMES.recipe, "--direct", "--json", "tracking.enabled=false")
    if done.returncode:
        return [f"training again failed: {done.stderr[-1000:]}"]
    again, before = json.loads(done.stdout)["challenger"], judged["challenger"]
    return [] if again == before else [f"the model of the last rows is {again}, judged was {before}"]
