"""The folders that attempts and jobs work in: which are removed, and what a full disk says."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.stores import new_store
from trnflow.flows.runner.work_folders import clear, clear_jobs, job_folders, workplace
from trnflow.tasks.errors import StoreError
from trnflow.tasks.system.process import ATTEMPT, this_process

JOB = """
import sys, time
from pathlib import Path
from trnflow.flows.runner.work_folders import job_folders

with job_folders(Path(sys.argv[1])) as base:
    (base / "0123").mkdir()
    (base / "0123/rows").touch()
print("laid out", flush=True)
time.sleep(600)
"""


@pytest.fixture
def job(tmp_path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"laid out\n"
    return process


def test_the_folders_of_a_killed_job_go_and_those_of_one_that_runs_stay(
    job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with job_folders(tmp_path) as base:
        pass
    clear_jobs(tmp_path, is_over=True)
    assert (base / "0123/rows").exists(), "another job runs"
    job.kill()
    job.wait()
    clear_jobs(tmp_path)
    assert not os.listdir(base)
    clear_jobs(tmp_path / "a home without jobs")


def test_gc_clears_the_folders_of_jobs(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    (folder := store.home / "jobs/0123").mkdir(parents=True)
    shell = InProcessShell(tmp_path)
    shell.json("gc", "--store", store.root)
    assert folder.exists(), "nothing goes without --yes"
    shell.environ["TRNFLOW_HOME"] = str(store.home)
    shell.json("gc", "--yes", "--store", store.root)
    assert not folder.exists()


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
