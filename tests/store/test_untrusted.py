"""What a store's files say is believed within bounds; what others have not finished stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.store.test_document_check import LEASE
from trnflow.tasks.store.document_check import is_entry
from trnflow.tasks.store.lease import LONGEST_TTL, newest_holder
from trnflow.tasks.store.local import LocalBackend
from trnflow.tasks.store.verify import Damage, Verified, last_verified, note_verified


@pytest.mark.parametrize(("ttl", "counts"), [(1e9, LONGEST_TTL), (60.0, 60.0)])
def test_a_lease_can_t_hold_its_key_for_good(tmp_path: Path, ttl: float, counts: float) -> None:
    backend = LocalBackend(str(tmp_path))
    backend.create("leases/k/1.json", json.dumps({**LEASE, "ttl": ttl}).encode())
    holder = newest_holder(backend, "k")
    assert holder is not None and holder.ttl == counts


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("roots/ledger/mine/3.json", True), ("roots/ledger/mine/notes.json", False), ("roots/pins/p.json", False)],
)
def test_numbered_files_alone_are_entries_of_a_ledger(name: str, is_one: bool) -> None:
    assert is_entry(name) is is_one


def test_files_that_were_repaired_are_no_longer_damaged(tmp_path: Path) -> None:
    problems = [Damage("corrupt", "a", repaired=True), Damage("corrupt", "b"), Damage("missing", "c", repaired=True)]
    note_verified(tmp_path, "/store", Verified(problems=problems))
    assert last_verified(tmp_path, "/store")["damaged"] == 1


@pytest.mark.parametrize("unfinished", [False, True])
def test_what_another_process_is_writing_keeps_its_folder(tmp_path: Path, unfinished: bool) -> None:
    (tmp_path / "leases/k").mkdir(parents=True)
    (tmp_path / "leases/k/.0123").write_text("half")
    LocalBackend(str(tmp_path)).remove_empty("leases/k", unfinished=unfinished)
    assert (tmp_path / "leases/k/.0123").exists() is not unfinished
