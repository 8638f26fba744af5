"""The folders that attempts work in: which are removed, and what a full disk says."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trnflow.flows.runner.work_folders import clear, make_store, workplace
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import ATTEMPT, this_process


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_is_an_error_of_the_disk(number: int, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is full"), workplace(tmp_path, "mine") as work:
        raise OSError(number, os.strerror(number))
    assert not work.exists()


def test_another_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), workplace(tmp_path, "mine"):
        raise PermissionError(errno.EACCES, "no")


def test_a_killed_runs_folder_stays_while_its_attempt_still_saves(tmp_path: Path) -> None:
    killed = this_process()._replace(pid=2**22 + 1)  # above the kernel's largest
    ours, theirs = (tmp_path / f"{process.tag}~mine" for process in (this_process(), killed))
    for folder in (ours, theirs):
        folder.mkdir()
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, env=os.environ | {ATTEMPT: "mine"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as saves:
        assert saves.stdout is not None
        saves.stdout.readline()
        clear(tmp_path)
        assert theirs.exists()
        saves.communicate(b"\n")
    clear(tmp_path)
    assert ours.exists() and not theirs.exists()


@pytest.mark.parametrize(
    ("inside", "said"), [(True, ""), (False, "made the store {} for this user alone; for a team: ")]
)
def test_a_new_store_is_its_user_s_alone_and_one_outside_the_home_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: bool, said: str
) -> None:
    root = tmp_path / ("home/store" if inside else "elsewhere/store")
    store = Store(str(root), tmp_path / "home")
    make_store(store)
    assert root.stat().st_mode & 0o777 == 0o700
    told = capsys.readouterr().err
    assert told.startswith(said.format(root)) and bool(told) == (not inside)
    root.chmod(0o770)
    make_store(store)
    assert root.stat().st_mode & 0o777 == 0o770 and capsys.readouterr().err == ""
