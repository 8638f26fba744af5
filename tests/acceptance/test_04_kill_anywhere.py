"""4. SIGKILL anywhere in running and publishing: never half a result, no lock that needs a human, litter collected."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.acceptance.ending import check_ending
from tests.flows.runner.forks import Forks, nothing_left, until
from tests.flows.runner.toy import CountConfig, WordsConfig, graph
from tests.helpers.runs import Ran, context, run_graph
from tests.helpers.stores import recorded
from tests.launch.processes import alive
from tests.store.test_collect import wait_a_tick
from trnflow.flows.runner.work_folders import clean
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.store.backend import is_unfinished
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.verify import verify


def killed_and_run_again(starters: Forks, points: int, seed: int) -> None:
    """Kill a run of the toy pipeline at random moments of running and publishing; the next one completes as if nothing were."""
    text = starters.folder / "words.txt"
    text.write_text("a bb ccc")
    starters.start("whole", text=str(text))
    calls = starters.result("whole")["calls"]
    chance = random.Random(seed)
    seen: set[str] = set()
    step = calls / points
    for number in range(points):
        # other words, equal counts: every stage but the last has a new key each time
        text.write_text(f"w{number} bb ccc{number}")
        moment = int(number * step + chance.random() * step) + 1
        pid = starters.start(f"killed{number}", text=str(text), kill_at=moment, ttl=600)
        until(lambda pid=pid: not alive(pid))
        assert_only_whole_results(starters, seen)
        ran = assert_a_new_run_completes(starters, text)
    assert_litter_is_collected(starters, ran)
    check_ending(starters.store(), lambda: run(starters, text).actions)


def assert_only_whole_results(starters: Forks, seen: set[str]) -> None:
    """seen: the records looked at before."""
    store = starters.store()
    for name in set(store.backend.names("records")) - seen:
        seen.add(name)
        record = json.loads(store.backend.read(name))
        for file in store.artifact(record["artifact"]).files:
            blob = starters.folder / "fetched"
            store.backend.fetch(blob_name(file.digest), blob)
            assert sha256_file(blob) == file.digest


def assert_a_new_run_completes(starters: Forks, text: Path) -> Ran:
    clean(starters.store())  # as each run does first
    for _ in range(2):
        ran = run(starters, text)
        total = sum(len(word) for word in text.read_text().split())
        assert ran.steps["count"].metrics == {"total": total}
    assert set(ran.actions.values()) <= {"hit", "skip"}  # warm_up is for a count that hits
    assert nothing_left(starters)
    return ran


def assert_litter_is_collected(starters: Forks, ran: Ran) -> None:
    """What killed writers left aside or unreferenced goes with the garbage; what the last run came to stays."""
    store = starters.store()
    stages = [recorded(step.name, step.key) for step in ran.steps.values() if step.artifact]
    store.write_run(ran.run, {"recipe": "toy", "run": ran.run, "outcome": "completed", "stages": stages})
    wait_a_tick(store)
    collect(store.backend, Policy(keep_last=1, grace=0.0), yes=True)
    kinds = ("records", "attempts", "leases", "partial", "runs", "blobs")
    assert not [entry.name for kind in kinds for entry in store.backend.entries(kind) if is_unfinished(entry.name)]
    assert verify(store.backend).unreferenced == 0


def run(starters: Forks, text: Path) -> Ran:
    words = WordsConfig(path=str(text))
    return run_graph(graph(words, CountConfig(least=0)), context(starters.store(), run="again"))


def test_no_moment_to_be_killed_at_leaves_half_a_result(starters: Forks) -> None:
    killed_and_run_again(starters, 20 if "://" not in starters.root else 5, seed=1)


@pytest.mark.nightly
def test_no_moment_of_fifty_to_be_killed_at_leaves_half_a_result(starters: Forks) -> None:
    killed_and_run_again(starters, 50, seed=2)
