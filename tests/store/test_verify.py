"""`verify` finds what is wrong wherever it is, and `--repair` leaves a store that is sound and makes the rest anew."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.products import sampled
from tests.store.shared_store import run_once
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.verify import Verified, verify

Found = list[tuple[str, str]]
WHATS = ("file", "manifest", "record")
HOWS = ("flip", "truncate", "empty", "delete")


def found(result: Verified) -> Found:
    return [(problem.what, problem.name) for problem in result.problems]


def damage(store: Store, name: str, how: str) -> None:
    data = store.backend.read(name)
    store.backend.remove(name)
    if store.backend.local is not None and how in ("loop", "unreadable", "folder", "empty folder"):
        path = store.backend.local / name
        if how in ("loop", "unreadable"):  # reading this process's memory at 0 is EIO
            path.symlink_to(path.name if how == "loop" else "/proc/self/mem")
        else:
            path.mkdir()
            if how == "folder":
                (path / "x").write_bytes(data)
    elif how != "delete":
        damaged = {"flip": bytes([data[0] ^ 1]) + data[1:], "truncate": data[:-1], "empty": b""}[how]
        store.backend.replace(name, damaged)


@sampled("kind, what, how", ["local", "memory"], WHATS, HOWS)
@pytest.mark.usefixtures("inline_calls")
def test_damage_is_found_repaired_and_made_anew(tmp_path: Path, kind: str, what: str, how: str) -> None:
    check_healing(str(tmp_path / "store") if kind == "local" else f"memory://{uuid.uuid4().hex}", tmp_path, what, how)


@pytest.mark.nightly
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("what", WHATS)
def test_damage_in_a_bucket_is_found_repaired_and_made_anew(s3_root: str, tmp_path: Path, what: str, how: str) -> None:
    check_healing(s3_root, tmp_path, what, how)


def check_healing(root: str, tmp_path: Path, what: str, how: str) -> None:
    store = Store(root, tmp_path / "p" / "home")
    store.prepare()
    outcome = run_once(store, tmp_path / "p", "p", 0).steps["sizes"]
    assert outcome.artifact is not None
    record = f"records/sizes/{outcome.key}.json"
    name = {"file": blob_name(outcome.artifact.files[0].digest), "manifest": blob_name(outcome.artifact.digest)}
    victim = name.get(what, record)
    damage(store, victim, how)

    before = verify(store.backend)
    if (what, how) == ("record", "delete"):
        assert before.ok  # no record is a miss, not damage
    else:
        assert not before.ok
        expected: Found = [] if how == "delete" else [("corrupt", victim)]
        assert found(before) == expected + ([] if what == "record" else [("unusable", record)])
        assert found(verify(store.backend)) == found(before), "looking repairs nothing"
    assert verify(store.backend, repair=True).ok
    assert (verify(store.backend).problems, verify(store.backend).ok) == ([], True)

    again = run_once(Store(root, tmp_path / "p" / "home"), tmp_path / "p", "p", 0)
    assert again.actions["sizes"] == "ran"
    assert verify(store.backend).ok
    third = run_once(Store(root, tmp_path / "p" / "home"), tmp_path / "p", "p", 0)
    assert set(third.actions.values()) == {"hit"}


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("how", ["loop", "unreadable", "folder", "empty folder"])
@pytest.mark.usefixtures("inline_calls")
def test_what_cannot_be_read_is_listed_and_moved_away(tmp_path: Path, what: str, how: str) -> None:
    check_healing(str(tmp_path / "store"), tmp_path, what, how)
