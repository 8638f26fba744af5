"""How many requests to a remote store an operation takes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import record_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name


class Counted:
    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if not callable(found):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*arguments, **named)

        return counted


def counted(store: Store) -> Counter[str]:
    store.backend = Counted(store.backend)  # type: ignore[assignment]
    return store.backend.calls  # type: ignore[attr-defined,no-any-return]


def written(store: Store, numbers: range) -> list[str]:
    records = [record_of(f"sha256:{n:064x}", f"2026-01-01T00:00:{n:02}Z", n=n) for n in numbers]
    return [store.publish(record)["key"] for record in records]


@pytest.mark.parametrize("root", ["local", "memory"], indirect=True)
def test_the_newest_records_cost_a_listing_and_a_read_each(store: Store) -> None:
    keys = written(store, range(30))
    if store.is_local:  # the clock of a filesystem may give several files one time
        for number, key in enumerate(keys):
            os.utime(Path(store.root) / f"records/s/{key}.json", (1e9 + number, 1e9 + number))
    calls = counted(store)
    assert [record["key"] for record in store.records("s", 4)] == keys[:-5:-1]
    assert calls == {"entries": 1, "read": 4}
    assert [record["key"] for record in store.records("s")] == keys[::-1]
    assert calls == {"entries": 2, "read": 34}


@pytest.mark.parametrize("root", ["memory"], indirect=True)
def test_what_this_machine_has_just_written_is_not_downloaded(store: Store, tmp_path: Path) -> None:
    def made(name: str) -> Path:
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "a.txt").write_bytes(b"alpha")
        (tmp_path / name / "deep/b.bin").write_bytes(b"beta" * 100)
        return tmp_path / name

    calls = counted(store)
    artifact = store.ingest(made("one"), "texts", {})
    view = store.link_files(artifact, tmp_path / "view")
    assert ((view / "a.txt").read_bytes(), (view / "deep/b.bin").read_bytes()) == (b"alpha", b"beta" * 100)
    assert store.changed(artifact) is None
    assert (calls["move_in"], calls["fetch"]) == (2, 0)

    other = Store(store.root, tmp_path / "another machine")
    calls = counted(other)
    assert other.ingest(made("two"), "texts", {}) == artifact
    other.link_files(artifact, tmp_path / "view of another")
    assert (calls["move_in"], calls["fetch"]) == (0, 0)

    third = Store(store.root, tmp_path / "a third machine")
    calls = counted(third)
    third.link_files(artifact, tmp_path / "view of a third")
    assert calls["fetch"] == 2

    (tmp_path / "three").mkdir()
    (tmp_path / "three/a.txt").write_bytes(b"read by no later stage")
    part = store.ingest(tmp_path / "three", "texts", {}, cache=False)
    assert not (store.cache / blob_name(part.files[0].digest)).exists()
    assert (store.link_files(part, tmp_path / "view of a part") / "a.txt").read_bytes() == b"read by no later stage"
