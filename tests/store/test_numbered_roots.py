"""Champions and frozen rows in the store: a number is created once, and garbage collection keeps what counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.store.test_collect import collected, made, record_of, wait_a_tick
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.numbered_roots import CHAMPIONS, FROZEN, add_numbered, names_of, numbered
from trnflow.tasks.store.verify import verify


def crown(store: Store, number: int, model: Artifact, **more: Any) -> None:
    record = record_of(str(model.meta["name"]), model.digest)
    named = {"records": [{"stage": "s", "key": record["key"]}]}
    assert add_numbered(store.backend, CHAMPIONS, "tiny", number, {"artifact": model.digest, **named, **more})


def there(store: Store, *artifacts: Artifact) -> list[bool]:
    """Of each artifact, whether all its bytes and its manifest are in place."""
    held = {entry.name.rsplit("/", 1)[1] for entry in store.backend.entries("blobs")}
    return [
        all(digest[7:] in held for digest in (one.digest, *(file.digest for file in one.files))) for one in artifacts
    ]


def test_one_of_eight_writers_gets_the_number(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: add_numbered(store.backend, CHAMPIONS, "tiny", 1, {"writer": n}), range(8)))
    assert won.count(True) == 1
    assert numbered(store.backend, CHAMPIONS, "tiny") == [(1, {"writer": won.index(True)})]


def test_numbers_sort_as_numbers_and_names_stay_apart(store: Store) -> None:
    for name in ("tiny", "tiny/2", "..", "Größe 1"):
        for number in (9, 10, 2):
            assert add_numbered(store.backend, FROZEN, name, number, {"name": name})
    assert [one.number for one in numbered(store.backend, FROZEN, "tiny")] == [10, 9, 2]
    assert numbered(store.backend, FROZEN, "..")[0].document == {"name": ".."}
    assert names_of(store.backend, FROZEN) == sorted(["tiny", "tiny/2", "..", "Größe 1"])


def test_the_last_three_different_champions_stay_with_what_they_name(store: Store, tmp_path: Path) -> None:
    models = [made(store, tmp_path, f"model {n}", {"x": b"%d" % n}) for n in range(5)]
    frozen = [made(store, tmp_path, f"frozen {n}", {"x": b"rows %d" % n}) for n in range(3)]
    scores = [made(store, tmp_path, f"scores {n}", {"x": b"scores %d" % n}) for n in range(5)]
    judged = [made(store, tmp_path, f"evaluation {n}", {"x": b"report %d" % n}) for n in range(5)]
    for number, rows in enumerate(frozen, 1):
        assert add_numbered(store.backend, FROZEN, "tiny", number, {"artifact": rows.digest})
    # models 0 1 2 3 2 3 4: the last three different ones are 4, 3 and 2
    for number, n in enumerate((0, 1, 2, 3, 2, 3, 4), 1):
        rows = frozen[0] if n < 2 else frozen[1]
        crown(store, number, models[n], frozen=rows.digest, scores=scores[n].digest, evaluation=judged[n].digest)
    wait_a_tick(store)
    collected(store)
    for kind in (models, scores, judged):
        assert there(store, *kind) == [False, False, True, True, True]
    assert there(store, *frozen) == [False, True, True]  # the second is in use, the third is the newest
    assert [one.number for one in numbered(store.backend, CHAMPIONS, "tiny")] == [7, 6, 5, 4, 3, 2, 1]
    assert len(numbered(store.backend, FROZEN, "tiny")) == 3
    assert verify(store.backend).ok
    wait_a_tick(store)
    assert collected(store).swept.files == {}


def test_a_champion_without_evaluation_is_no_fault(store: Store, tmp_path: Path) -> None:
    model = made(store, tmp_path, "model", {"x": b"x"})
    crown(store, 1, model, evaluation=None, frozen=model.digest, scores=model.digest)
    wait_a_tick(store)
    collected(store)
    assert there(store, model) == [True]


def test_collection_stops_at_a_champion_that_can_t_be_read(store: Store, tmp_path: Path) -> None:
    model = made(store, tmp_path, "model", {"x": b"x"})
    crown(store, 1, model)
    store.backend.replace(f"{CHAMPIONS}/tiny/2.json", b"{")
    with pytest.raises(StoreError, match=r"champions/tiny/2\.json can't be read"):
        collected(store)
    with pytest.raises(StoreError, match=r"champions/tiny/2\.json can't be read"):
        numbered(store.backend, CHAMPIONS, "tiny")
    assert there(store, model) == [True]
