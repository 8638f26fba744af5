"""What `trnflow worker` changes of Prefect's worker: how it starts the process of a flow run."""

from __future__ import annotations

import subprocess
import sys

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
