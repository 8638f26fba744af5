"""A process that writes to a shared store, or collects its garbage, until it is told to stop.

    python -m tests.store.shared_store write ROOT FOLDER PROJECT SECONDS
    python -m tests.store.shared_store collect ROOT FOLDER GRACE SECONDS

A writer runs the toy pipeline with ever changing settings, as `execute` does, and says how many runs it made.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from tests.flows.runner.toy import CountConfig, WordsConfig, pipeline
from trnflow.flows.runner.call import Outcome
from trnflow.flows.runner.runner import Runner
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.roots import Policy
from trnflow.tasks.store.garbage.trash import absent
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.location import open_backend
from trnflow.tasks.system.clock import now

WORDS = ("a bb ccc", "x yy zzz", "dddd ee f", "one two three four", "u v w", "tt", "seven eight", "nine ten")
HEALINGS = 20
PATIENCE = 5.0


def main() -> None:
    what, root, folder, third, seconds = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    if what == "write":
        print(json.dumps(write(root, Path(folder), third, until)))
    else:
        print(json.dumps(collect_often(root, float(third), until)))


def write(root: str, folder: Path, project: str, until: float) -> int:
    store = Store(root, folder / "home")
    store.prepare()
    count = 0
    while time.monotonic() < until:
        runner = run_once(store, folder, project, count)
        wait_until_whole(store, runner)
        count += 1
    return count


def wait_until_whole(store: Store, runner: Runner) -> None:
    """The newest run of a project is never garbage: whatever a collection moved, it has to bring back at once."""
    deadline = time.monotonic() + PATIENCE
    while lacking := [name for outcome in runner.outcomes.values() for name in _lacking(store, outcome)]:
        if time.monotonic() > deadline:
            raise AssertionError(f"{runner.executor.run} lost {lacking}")


def _lacking(store: Store, outcome: Outcome) -> list[str]:
    assert outcome.artifact is not None
    needed = [blob_name(file.digest) for file in outcome.artifact.files]
    needed += [blob_name(outcome.artifact.digest), f"records/{outcome.stage}/{outcome.key}.json"]
    return absent(store.backend, needed)


def run_once(store: Store, folder: Path, project: str, count: int) -> Runner:
    """The run number `count` of a project; its record is written as `execute` writes one. Settings come back now and then."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "words.txt"
    dice = random.Random(f"{project} {count}")
    text.write_text(dice.choice(WORDS))
    runner = Runner(store, Resolver(store.home, memo=store.memo), run=f"{project}-{count:06d}", min_free_gb=0.0)
    for _ in range(HEALINGS):
        try:
            pipeline(WordsConfig(path=str(text)), CountConfig(least=dice.randrange(5)), runner)
            break
        except BlobLost as error:
            runner.executor.lost.add(error.digest)
            runner.restart()
    else:
        raise AssertionError("blobs kept vanishing")
    stages = [
        {"stage": o.stage, "key": o.key, "artifact": o.artifact.digest if o.artifact else None, "action": o.action}
        for o in [*runner.outcomes.values(), *runner.skipped()]
    ]
    store.write_run(
        runner.executor.run,
        {"recipe": project, "run": runner.executor.run, "outcome": "completed", "ended": now(), "stages": stages},
    )
    return runner


def collect_often(root: str, grace: float, until: float) -> dict[str, int]:
    counts = {"collections": 0, "swept": 0, "purged": 0, "restored": 0}
    while time.monotonic() < until:
        done = collect(open_backend(root), Policy(keep_last=1, grace=grace), yes=True)
        counts["collections"] += 1
        counts["swept"] += done.swept.files.total()
        counts["purged"] += done.purged.files.total()
        counts["restored"] += len(done.restored)
    return counts


if __name__ == "__main__":
    main()
