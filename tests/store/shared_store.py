"""A process that writes to a shared store, or collects its garbage, for so many seconds, and for LEAST runs or collections.

    python -m tests.store.shared_store write ROOT FOLDER PROJECT SECONDS [LEAST]
    python -m tests.store.shared_store collect ROOT FOLDER GRACE SECONDS [LEAST]

A writer runs the toy pipeline with ever changing settings, as `execute` does, and says how many runs it made.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from tests.flows.runner.toy import CountConfig, WordsConfig, graph
from tests.helpers.runs import Ran, context, run_graph
from tests.helpers.stores import new_store, recorded
from trnflow.flows.runner.plan import Step
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.garbage.trash import absent
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.location import open_backend
from trnflow.tasks.system.clock import now

WORDS = ("a bb ccc", "x yy zzz", "dddd ee f", "one two three four", "u v w", "tt", "seven eight", "nine ten")
PATIENCE = 60.0


def main() -> None:
    what, root, folder, third, seconds, least = [*sys.argv[1:], "0"][:6]
    until = time.monotonic() + float(seconds)
    if what == "write":
        print(json.dumps(write(root, Path(folder), third, until, int(least))))
    else:
        print(json.dumps(collect_often(root, float(third), until, int(least))))


def write(root: str, folder: Path, project: str, until: float, least: int) -> int:
    store = new_store(folder, root)
    count = 0
    while time.monotonic() < until or count < least:
        wait_until_whole(store, run_once(store, folder, project, count))
        count += 1
    return count


def wait_until_whole(store: Store, ran: Ran) -> None:
    """The newest run of a project is never garbage: whatever a collection moved, it has to bring back at once."""
    deadline = time.monotonic() + PATIENCE
    while lacking := [name for step in ran.steps.values() if step.artifact for name in _lacking(store, step)]:
        if time.monotonic() > deadline:
            raise AssertionError(f"{ran.run} lost {lacking}")


def _lacking(store: Store, step: Step) -> list[str]:
    assert step.artifact is not None
    needed = [blob_name(file.digest) for file in step.artifact.files]
    needed += [blob_name(step.artifact.digest), f"records/{step.name}/{step.key}.json"]
    return absent(store.backend, needed)


def run_once(store: Store, folder: Path, project: str, count: int) -> Ran:
    """The run number `count` of a project; its record is written as a run writes one. Settings come back now and then."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "words.txt"
    dice = random.Random(f"{project} {count}")
    text.write_text(dice.choice(WORDS))
    toy = graph(WordsConfig(path=str(text)), CountConfig(least=dice.randrange(5)))
    ran = run_graph(toy, context(store, run=f"{project}-{count:06d}"))
    stages = [
        recorded(step.name, step.key, step.artifact and step.artifact.digest, step.action)
        for step in ran.steps.values()
    ]
    store.write_run(
        ran.run, {"recipe": project, "run": ran.run, "outcome": "completed", "ended": now(), "stages": stages}
    )
    return ran


def collect_often(root: str, grace: float, until: float, least: int) -> dict[str, int]:
    """Collect; with `least`, until trash was removed as well."""
    counts = {"collections": 0, "swept": 0, "purged": 0, "restored": 0}
    while time.monotonic() < until or counts["collections"] < least or (least and not counts["purged"]):
        done = collect(open_backend(root), Policy(keep_last=1, grace=grace), yes=True)
        counts["collections"] += 1
        counts["swept"] += done.swept.files.total()
        counts["purged"] += done.purged.files.total()
        counts["restored"] += len(done.restored)
    return counts


if __name__ == "__main__":
    main()
