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

from tests.helpers.stores import new_store
from tests.store.conftest import on_s3_too
from tests.store.test_collect import collected, made, record_of, run_of, wait_a_tick
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger, recipes_of
from trnflow.tasks.store.ledger.entries import LEDGER, Entry, NewEntry
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
