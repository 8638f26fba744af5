"""Blobs that come to a machine: how far they are is told, and whoever asked can end it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.helpers.runs import context, run_stage
from tests.helpers.stores import new_store
from tests.store.conftest import on_s3_too
from tests.store.sizes_stage import measure
from trnflow.tasks.artifact import Artifact, File, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.store import Store
from trnflow.tasks.store.backend import CountBytes
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.pull import pull_all

SIZES = (3_000_000, 2_500_000, 70_000, 1, 0)
TOTAL = sum(SIZES)


def large(store: Store, folder: Path) -> Artifact:
    folder.mkdir()
    for number, size in enumerate(SIZES):
        (folder / f"{number}.bin").write_bytes(os.urandom(size))
    return store.ingest(folder, "rows", {})


@on_s3_too
def test_what_is_pulled_is_told_once(store: Store, tmp_path: Path) -> None:
    artifact = large(store, tmp_path / "made")
    fresh = Store(store.root, tmp_path / "another machine")
    heard: list[tuple[int, int]] = []
    view = fresh.link_files(artifact, tmp_path / "view", lambda done, total: heard.append((done, total)))
    assert [(view / f"{number}.bin").stat().st_size for number in range(len(SIZES))] == list(SIZES)
    assert heard == sorted(heard)
    assert heard[-1] == (TOTAL, TOTAL)
    fresh.link_files(artifact, tmp_path / "again", lambda done, total: pytest.fail("all of it was known"))


def test_bytes_are_counted_as_they_come(store: Store, tmp_path: Path) -> None:
    artifact = large(store, tmp_path / "made")
    came: list[int] = []
    store.backend.fetch(blob_name(artifact.files[0].digest), tmp_path / "copy", came.append)
    assert sum(came) == SIZES[0] == (tmp_path / "copy").stat().st_size
    assert len(came) > 1 or not store.root.startswith("s3")


def test_who_asked_can_end_it_and_nothing_half_is_left(root: str, tmp_path: Path) -> None:
    """As Ctrl-C does, or a lease that was lost."""
    begun, ended, left = threading.Event(), [], []

    def pull(file: File, count: CountBytes) -> None:
        count(0)
        begun.set()
        try:
            for _ in range(1000):  # ten seconds a file, if nobody ended it
                count(1)
                time.sleep(0.01)
            ended.append(file)
        except InterruptedError:
            left.append(file)

    def told(done: int, total: int) -> None:
        if begun.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_all(pull, [File(f"{number}", 1000, "") for number in range(100)], told)
    assert left and not ended

    artifact = large(new_store(tmp_path, root), tmp_path / "made")
    fresh = Store(root, tmp_path / "another machine")

    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fresh.link_files(artifact, tmp_path / "view", give_up)
    assert not [path for path in fresh.cache.rglob("*") if path.name.startswith(".")]
    assert (fresh.link_files(artifact, tmp_path / "view") / "0.bin").stat().st_size == SIZES[0]


@pytest.mark.parametrize("root", ["memory"], indirect=True)
def test_a_stage_says_what_it_waits_for(root: str, tmp_path: Path) -> None:
    heard: list[Meta] = []

    class Ear(Reader):
        def read(self, event: Event, state: RunState) -> None:
            if event["event"] == "progress":
                heard.append(
                    {"stage": event["stage"], "done": event["done"], "total": event["total"], "unit": event["unit"]}
                )

    artifact = large(new_store(tmp_path, root), tmp_path / "made")
    fresh = Store(root, tmp_path / "another machine")
    assert run_stage(measure, StageConfig(), context(fresh, Ear()), rows=artifact).action == "ran"
    assert heard[-1] == {"stage": "measure", "done": 5, "total": 5, "unit": "MB of rows pulled"}
