"""Ledgers in the store: an entry is created once, repeats what stands, and garbage collection keeps what counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.stores import new_store
from tests.store.conftest import on_s3_too
from tests.store.test_collect import collected, made, record_of, run_of, wait_a_tick
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger, recipes_of, remove_newest
from trnflow.tasks.store.ledger.entries import LEDGER, NOTHING, Entry, JudgedModel, NewEntry, complete_entry
from trnflow.tasks.store.verify import verify


def add(store: Store, recipe: str = "tiny", **fields: Any) -> Entry:
    """Add an entry, with what a test does not care about filled in."""
    whole = NewEntry(outcome="promoted", by="promote", why="better") | fields  # type: ignore[operator]
    entry = append_ledger(store, recipe, whole, read_ledger(store, recipe).number)
    assert entry is not None
    return entry


def crown(store: Store, model: Artifact, **more: Any) -> Entry:
    key = record_of(str(model.meta["name"]), model.digest)["key"]
    return add(store, champion=model.digest, records=[{"stage": "s", "key": key}], **more)


def there(store: Store, *artifacts: Artifact) -> list[bool]:
    """Of each artifact, whether all its bytes and its manifest are in place."""
    held = {entry.name.rsplit("/", 1)[1] for entry in store.backend.entries("blobs")}
    return [
        all(digest[7:] in held for digest in (one.digest, *(file.digest for file in one.files))) for one in artifacts
    ]


@on_s3_too
def test_one_of_eight_writers_gets_the_number(store: Store) -> None:
    def write(n: int) -> Entry | None:
        return append_ledger(store, "tiny", NewEntry(outcome="kept", by="promote", why=str(n)), 0)

    with ThreadPoolExecutor(8) as pool:
        entries = [entry for entry in pool.map(write, range(8)) if entry]
    assert len(entries) == 1 and read_ledger(store, "tiny").entries() == entries
    assert append_ledger(store, "tiny", NewEntry(outcome="kept", by="promote", why="late"), 0) is None


def test_numbers_sort_as_numbers_and_names_stay_apart(store: Store) -> None:
    names = ["tiny", "tiny/2", "..", "Größe 1", "tiny.json"]
    for name in names:
        for n in range(11):
            add(store, name, champion=f"sha256:{n % 2}{'0' * 63}")
    assert [entry["n"] for entry in read_ledger(store, "tiny").entries()] == [*range(11, 0, -1)]
    assert read_ledger(store, "..").entries()[0]["recipe"] == ".."
    assert recipes_of(store) == sorted(names)


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


@settings(max_examples=200, deadline=None)
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


def test_a_champion_without_evaluation_is_no_fault(store: Store, tmp_path: Path) -> None:
    model = made(store, tmp_path, "model", {"x": b"x"})
    crown(store, model, evaluation=None, frozen=model.digest, scores=model.digest)
    wait_a_tick(store)
    collected(store)
    assert there(store, model) == [True]


def test_what_can_t_be_read_stops_collection_and_decisions(store: Store, tmp_path: Path) -> None:
    model = made(store, tmp_path, "model", {"x": b"x"})
    crown(store, model)
    place = f"{LEDGER}/tiny/2.json"
    for damaged in (b"{", b"{}", store.backend.read(f"{LEDGER}/tiny/1.json")):
        store.backend.replace(place, damaged)
        for act in (collected, lambda store: read_ledger(store, "tiny").stands, lambda store: add(store, why="next")):
            with pytest.raises(StoreError, match=r"ledger/tiny/2\.json can't be read"):
                act(store)
        assert not verify(store.backend).ok
    assert there(store, model) == [True]
    store.backend.remove(place)
    assert crown(store, model)["n"] == 2


def test_an_entry_that_others_name_and_that_is_gone_is_an_error(store: Store, tmp_path: Path) -> None:
    crown(store, made(store, tmp_path, "model", {"x": b"x"}))
    add(store, outcome="kept")
    store.backend.remove(f"{LEDGER}/tiny/1.json")
    with pytest.raises(StoreError, match=r"ledger/tiny/1\.json is not in the store"):
        collected(store)
    assert "ledger/tiny/1.json is not in the store" in verify(store.backend).problems[0].detail


def test_only_the_newest_entry_is_removed(store: Store) -> None:
    for _ in range(2):
        add(store, outcome="kept")
    remove_newest(store, "tiny", 1)
    assert read_ledger(store, "tiny").numbers == [2, 1]
    remove_newest(store, "tiny", 2)
    assert read_ledger(store, "tiny").numbers == [1]


# A store of format 1


def of_format_1(store: Store, tmp_path: Path) -> list[Artifact]:
    """Write what a store of format 1 kept: two models that were champions, a judged one, and a failed retrain."""
    store.backend.replace("FORMAT.json", b'{"format":1,"hash":"sha256"}')
    models = [made(store, tmp_path, f"model {n}", {"x": b"%d" % n}) for n in range(4)]
    rows = made(store, tmp_path, "rows", {"x": b"rows"})
    for n, model in enumerate(models):
        run_of(store, f"r{n}", "tiny", record_of(f"model {n}", model.digest))

    def put(name: str, document: dict[str, Any]) -> None:
        store.backend.replace(f"roots/{name}.json", json.dumps(document).encode())

    put("frozen/tiny/1", {"artifact": rows.digest, "records": [], "created": "2026-01-01T00:00:00Z"})
    for n, day, by in ((1, 2, "retrain"), (2, 4, "promote")):
        put(
            f"champions/tiny/{n}",
            {
                "artifact": models[n].digest, "number": n, "action": "promoted", "by": by, "why": f"champion {n}",
                "frozen": rows.digest, "scores": None, "evaluation": None, "records": [], "shaping": {"format": {}},
                "task": "classification", "replaces": models[1].digest if n > 1 else None, "comparison": None,
                "created": f"2026-01-0{day}T00:00:00Z",
            },
        )  # fmt: skip
    judged = {"challenger": models[3].digest, "promoted": False, "why": "not surely better", "run": "r3"}
    put("judged/tiny", {
        "run": "r3", "created": "2026-01-05T00:00:00Z", "document": judged,
        "earlier": [{"run": "r2", "model": models[2].digest}],
    })  # fmt: skip
    put("retrained/tiny", {
        "outcome": "failed", "created": "2026-01-06T00:00:00Z", "data": "d2", "settled": "d1", "failures": 2,
        "document": {"why": "broken", "run": None, "checks": [], "error": {"type": "DataError"}},
    })  # fmt: skip
    return models


EXPECTED = [("failed", None), ("kept", None), ("promoted", 2), ("promoted", 1), ("frozen", 1)]


def test_a_store_of_format_1_is_read_as_it_is(store: Store, tmp_path: Path) -> None:
    models = of_format_1(store, tmp_path)
    before = sorted(store.backend.names(""))
    ledger = read_ledger(store, "tiny")
    assert [(entry["outcome"], entry["number"]) for entry in ledger.entries()] == EXPECTED
    assert ledger.champion is not None and ledger.champion["champion"] == models[2].digest
    assert ledger.stands["series"] == f"2026-01-02T00:00:00Z {models[1].digest[7:19]}"
    assert ledger.judged is not None and ledger.judged["run"] == "r3"
    assert ledger.stands["ended"] == {"outcome": "failed", "created": "2026-01-06T00:00:00Z", "data": "d2"}
    assert (ledger.stands["settled"], ledger.stands["failures"]) == ("d1", 2)
    assert recipes_of(store) == ["tiny"]
    wait_a_tick(store)
    collected(store)
    assert there(store, *models) == [False, True, True, True]  # no root leads to the first
    assert verify(store.backend).ok and store.is_made()
    assert set(store.backend.names("roots")) <= {*before}
    store.backend.replace("roots/champions/tiny/3.json", b"{")
    for act in (collected, lambda store: read_ledger(store, "tiny")):
        with pytest.raises(StoreError, match=r"champions/tiny/3\.json can't be read"):
            act(store)


def test_the_first_entry_brings_the_old_ones_with_it_and_shuts_older_programs_out(store: Store, tmp_path: Path) -> None:
    models = of_format_1(store, tmp_path)
    old = read_ledger(store, "tiny").entries()
    add(store, outcome="failed", by="retrain", data="d2")
    ledger = read_ledger(store, "tiny")
    assert ledger.entries()[1:] == old and all(entry["imported"] for entry in old)
    assert ledger.stands["failures"] == 3 and ledger.stands["settled"] == "d1"
    assert json.loads(store.backend.read("FORMAT.json"))["format"] == 2
    for name in store.backend.names("roots"):
        if not name.startswith(LEDGER):
            store.backend.remove(name)
    assert read_ledger(store, "tiny").entries() == ledger.entries(), "the files of format 1 are not needed any more"
    wait_a_tick(store)
    collected(store)
    assert there(store, *models[1:]) == [True] * 3
    assert crown(store, models[3])["number"] == 3


def test_the_first_entry_makes_the_store_where_there_is_none(root: str, tmp_path: Path) -> None:
    store = Store(root, tmp_path / "home")
    assert add(store, outcome="failed", by="retrain", data=None)["n"] == 1
    store.check()
    assert json.loads(store.backend.read("FORMAT.json"))["format"] == 2


def test_a_store_of_a_later_format_is_refused(store: Store) -> None:
    store.backend.replace("FORMAT.json", b'{"format":3,"hash":"sha256"}')
    with pytest.raises(ConfigError, match="upgrade trnflow"):
        store.is_made()


KILLED = """
import os, signal, sys
from pathlib import Path
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import ledger
root, home, at = sys.argv[1:]
create, left = ledger._create, [int(at)]
def killing(backend, entry):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return create(backend, entry)
ledger._create = killing
store = Store(root, Path(home))
ledger.append_ledger(store, "tiny", {"outcome": "kept", "by": "promote", "why": "killed"}, 5)
"""


@pytest.mark.parametrize("at", [0, 1, 4, 5])
def test_a_writer_that_is_killed_while_it_brings_the_old_entries_loses_nothing(tmp_path: Path, at: int) -> None:
    store = new_store(tmp_path)
    of_format_1(store, tmp_path)
    before = read_ledger(store, "tiny").entries()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, store.root, str(store.home), str(at)], env={**os.environ}, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(store.backend.names(LEDGER)) == at
    assert read_ledger(store, "tiny").entries() == before
    assert add(store, outcome="kept", why="again")["n"] == 6
    assert read_ledger(store, "tiny").entries()[1:] == before
