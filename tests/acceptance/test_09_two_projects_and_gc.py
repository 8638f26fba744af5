"""9. Two projects write while garbage is collected with a short grace: no live blob is lost, and what was promised is freed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.ending import check_ending
from tests.store.shared_store import run_once
from trnflow.tasks.store import Store


def shop(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.shared_store", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def check_after(root: str, tmp_path: Path, runs: list[int]) -> None:
    """Everything is sound, and the last run of each project hits all through."""
    for project, count in zip(("one", "two"), runs, strict=True):
        store = Store(root, tmp_path / project / "home")

        def again(store: Store = store, project: str = project, count: int = count) -> dict[str, str]:
            return run_once(store, tmp_path / project, project, count - 1).actions

        check_ending(store, again)


def share(root: str, tmp_path: Path, grace: float, seconds: float) -> tuple[list[int], dict[str, int]]:
    Store(root, tmp_path / "checker").prepare()
    # at least so many of each: on a crowded machine a run may take seconds
    writers = [shop("write", root, str(tmp_path / name), name, str(seconds), "4") for name in ("one", "two")]
    collector = shop("collect", root, str(tmp_path), str(grace), str(seconds + 1), "3")
    return [finished(writer) for writer in writers], finished(collector)


def test_two_projects_write_while_garbage_is_collected(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    runs, counts = share(root, tmp_path, grace=0.3, seconds=5)
    assert min(runs) > 2
    assert counts["collections"] > 2
    assert counts["swept"] > counts["restored"]
    assert counts["purged"] > 0
    check_after(root, tmp_path, runs)


@pytest.mark.nightly
def test_two_projects_share_a_bucket_while_garbage_is_collected(s3_root: str, tmp_path: Path) -> None:
    runs, counts = share(s3_root, tmp_path, grace=5.0, seconds=60)
    assert min(runs) > 3
    assert counts["swept"] > counts["restored"]
    check_after(s3_root, tmp_path, runs)


@pytest.mark.nightly
def test_a_collector_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    Store(root, tmp_path / "checker").prepare()
    writers = [shop("write", root, str(tmp_path / name), name, "5", "3") for name in ("one", "two")]
    kills = 0
    while any(writer.poll() is None for writer in writers):
        collector = shop("collect", root, str(tmp_path), "0.5", "30")
        time.sleep(0.6 + kills * 0.013 % 0.2)  # the moment of the kill, not a wait for anything
        collector.send_signal(signal.SIGKILL)
        collector.communicate()
        kills += 1
    runs = [finished(writer) for writer in writers]
    assert kills > 2
    finished(shop("collect", root, str(tmp_path), "0.5", "0.1"))
    check_after(root, tmp_path, runs)
