"""What stands after an entry of a ledger, and what garbage collection keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.test_collect import collected, made, wait_a_tick
from tests.store.test_ledger import add, crown, there
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger, remove_newest
from trnflow.tasks.store.ledger.entries import NOTHING, Entry, JudgedModel, NewEntry, complete_entry
from trnflow.tasks.store.verify import verify


def test_an_entry_repeats_what_stands(store: Store) -> None:
    first, second, rows = (f"sha256:{digit * 64}" for digit in "abc")
    add(store, outcome="frozen", by="freeze", frozen=rows)
    add(store, champion=first, created="2026-01-01T00:00:00Z")
    judged = [JudgedModel(run="r2", model=second)]
    add(store, outcome="promoted", by="retrain", champion=second, run="r2", data="d1", judged=judged)
    add(store, outcome="rolled back", by="rollback", champion=first)
    for data in ("d2", "d2", "d3"):
        add(store, outcome="failed", by="retrain", data=data)
    ledger = read_ledger(store, "tiny")
    assert ledger.number == 7 and ledger.newest is not None and ledger.newest["champion"] == first
    assert [(title["number"], title["entry"]) for title in ledger.stands["champions"]] == [(3, 4), (2, 3)]
    assert [entry["number"] for entry in ledger.champions()] == [3, 2, 1]
    assert ledger.stands["frozen"] == {"number": 1, "entry": 1, "artifact": rows}
    assert ledger.stands["series"] == "2026-01-01T00:00:00Z aaaaaaaaaaaa"
    assert ledger.judged is not None and ledger.judged["n"] == 3 and ledger.stands["judged"] == judged
    assert (ledger.stands["settled"], ledger.stands["failures"]) == ("d1", 1)
    assert [entry["stands"]["failures"] for entry in ledger.entries()] == [1, 2, 1, 0, 0, 0, 0]


OUTCOMES = st.sampled_from(["promoted", "kept", "unchanged", "stopped", "failed", "rolled back", "frozen"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(OUTCOMES, st.sampled_from("abcd"), st.sampled_from(["x", "y", None])), max_size=12))
def test_what_stands_is_what_the_whole_list_says(past: list[tuple[Any, str, str | None]]) -> None:
    stands, entries = NOTHING, list[Entry]()
    for n, (outcome, letter, data) in enumerate(past, 1):
        fields = NewEntry(outcome=outcome, by="rollback" if outcome == "rolled back" else "retrain", why="", data=data)
        if outcome == "frozen":
            fields |= NewEntry(by="freeze", frozen=letter)
        elif outcome in ("promoted", "rolled back"):
            fields |= NewEntry(champion=letter)
        entries.append(complete_entry("tiny", n, stands, fields))
        stands = entries[-1]["stands"]
    titles = [entry for entry in entries if entry["number"] and entry["outcome"] != "frozen"]
    assert [title["number"] for title in titles] == [*range(1, len(titles) + 1)]
    newest: dict[str, int] = {}
    for title in reversed(titles):
        newest.setdefault(str(title["champion"]), title["n"])
    assert [(title["artifact"], title["entry"]) for title in stands["champions"]] == [*newest.items()][:3]
    frozen = [entry for entry in entries if entry["outcome"] == "frozen"]
    assert (stands["frozen"] or {}).get("entry") == (frozen[-1]["n"] if frozen else None)
    ends = [entry for entry in entries if entry["by"] == "retrain"]
    assert (stands["ended"] or {}).get("outcome") == (ends[-1]["outcome"] if ends else None)
    settled = [entry["data"] for entry in ends if entry["outcome"] != "failed"]
    assert stands["settled"] == (settled[-1] if settled else None)
    failures = 0
    for entry in reversed(ends):
        if entry["outcome"] != "failed" or entry["data"] != ends[-1]["data"]:
            break
        failures += 1
    assert stands["failures"] == failures


def test_the_last_three_different_champions_stay_with_what_they_name(store: Store, tmp_path: Path) -> None:
    models = [made(store, tmp_path, f"model {n}", {"x": b"%d" % n}) for n in range(5)]
    frozen = [made(store, tmp_path, f"frozen {n}", {"x": b"rows %d" % n}) for n in range(3)]
    scores = [made(store, tmp_path, f"scores {n}", {"x": b"scores %d" % n}) for n in range(5)]
    reports = [made(store, tmp_path, f"evaluation {n}", {"x": b"report %d" % n}) for n in range(5)]
    for rows in frozen:
        add(store, outcome="frozen", by="freeze", frozen=rows.digest)
    # models 0 1 2 3 2 3 4: the last three different ones are 4, 3 and 2
    for n in (0, 1, 2, 3, 2, 3, 4):
        rows = frozen[0] if n < 2 else frozen[1]
        crown(store, models[n], frozen=rows.digest, scores=scores[n].digest, evaluation=reports[n].digest)
        add(store, outcome="kept", challenger=models[0].digest, frozen=frozen[0].digest, scores=scores[0].digest)
    store.backend.create("roots/later/tiny.txt/1.json", json.dumps({"artifact": models[2].digest}).encode())
    wait_a_tick(store)
    collected(store)
    for kind in (models, scores, reports):
        assert there(store, *kind) == [False, False, True, True, True]
    assert there(store, *frozen) == [False, True, True]  # the second is in use, the third is the newest
    assert [entry["number"] for entry in read_ledger(store, "tiny").champions()] == [7, 6, 5, 4, 3, 2, 1]
    assert store.backend.size("roots/later/tiny.txt/1.json") is not None, "what a later version wrote stays"
    assert verify(store.backend).ok
    wait_a_tick(store)
    assert collected(store).swept.files == {}


def test_only_the_newest_entry_is_removed(store: Store) -> None:
    for _ in range(2):
        add(store, outcome="kept")
    remove_newest(store, "tiny", 1)
    assert read_ledger(store, "tiny").numbers == [2, 1]
    remove_newest(store, "tiny", 2)
    assert read_ledger(store, "tiny").numbers == [1]
