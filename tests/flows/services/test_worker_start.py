"""What `trnflow worker` changes of Prefect's worker: how it starts the process of a flow run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trnflow.flows.services import deploy

STARTS = """
from uuid import uuid4
from prefect.client.schemas.objects import FlowRun
from prefect.workers import process
from trnflow.flows.services.recovery import start_flows_at_once
start_flows_at_once()
configuration = process.ProcessJobConfiguration(command=None, env={})
configuration.prepare_for_flow_run(FlowRun(id=uuid4(), flow_id=uuid4()))
starter = process.EngineCommandStarter(command=configuration.command)
print(configuration._command_configured, configuration.command, starter._isolate_process_group)
"""


def test_a_flow_run_is_one_process_in_a_group_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", sys.executable, "-m", "prefect.engine", "True"]


def test_a_worker_imports_no_file_of_its_folder_and_has_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *command: started.append(command))
    for name in ("use_server", "enter_project", "tend_runs"):
        monkeypatch.setattr(deploy, name, lambda *_: None)
    monkeypatch.setenv(deploy.PROJECT, "one")
    # the user's own pace of asking counts, and not a heartbeat that automations would miss
    monkeypatch.setenv("PREFECT_WORKER_QUERY_SECONDS", "7")
    monkeypatch.setenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "600")
    deploy.start_worker(tmp_path, lambda: None)
    environ, asked = started[0][2], ("WORKER_QUERY_SECONDS", "FLOWS_HEARTBEAT_FREQUENCY", "CLIENT_RETRY_EXTRA_CODES")
    assert [environ[f"PREFECT_{name}"] for name in asked] == ["7", "30", "500"]
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the working folder was imported')")
    command = started[0][1]
    help_page = [*command[: command.index(deploy.WORKER) + 1], "worker", "--help"]
    done = subprocess.run(help_page, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
