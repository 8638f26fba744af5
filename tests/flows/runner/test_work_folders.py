"""What jobs lay out in a home stays as long as one of them runs, and goes with the next run after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.stores import new_store
from trnflow.flows.runner.work_folders import clear_jobs, job_folders

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
