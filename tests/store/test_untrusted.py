"""What counts as an entry and as damaged; what others have not finished stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trnflow.tasks.errors import StoreError
from trnflow.tasks.store.document_check import is_entry
from trnflow.tasks.store.local import LocalBackend
from trnflow.tasks.store.verify import Damage, Verified, last_verified, note_verified


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("roots/ledger/mine/3.json", True),
        ("roots/ledger/mine/notes.json", False),
        ("roots/pins/p.json", False),
        ("roots/ledger/mine/007.json", False),
        ("roots/ledger/mine/٣.json", False),
        ("roots/ledger/mine/0.json", False),
    ],
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


@pytest.mark.parametrize("target", ["", "/dev/zero"], ids=["pipe", "device"])
def test_a_document_that_is_a_pipe_or_a_device_is_not_read(tmp_path: Path, target: str) -> None:
    """Who reads one waits for ever, or until memory is full."""
    file = tmp_path / "1.json"
    file.symlink_to(target) if target else os.mkfifo(file)
    with pytest.raises(StoreError, match=r"reading 1\.json .* it is no regular file"):
        LocalBackend(str(tmp_path)).read("1.json")
