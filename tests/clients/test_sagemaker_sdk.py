"""A job that AWS's SDK runs in its local mode, by its own drivers; for containers stand namespaces of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS
from tests.conftest import PROJECT
from tests.flows.jobs.test_elsewhere import actions, digests
from tests.flows.jobs.test_job import write_own
from tests.helpers.command_line import Shell
from tests.helpers.sagemaker import ROLE, sagemaker

CLIENT = CLIENTS / "sagemaker-sdk"
PROGRAM = """
import sys
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.model_trainer import Mode, ModelTrainer
command, role, folder, *environ = sys.argv[1:]
ModelTrainer(
    training_image="trnflow:1", training_mode=Mode.LOCAL_CONTAINER, role=role, base_job_name="mine",
    local_container_root=folder, compute=Compute(instance_type="local_cpu", instance_count=1),
    source_code=SourceCode(command=command), environment=dict(line.split("=", 1) for line in environ),
).train(wait=True, logs=True)
"""


@pytest.mark.nightly
def test_a_job_that_awss_sdk_runs_makes_the_same_bits(tmp_path: Path) -> None:
    if not (CLIENT / "installed").exists():
        pytest.skip("no client sagemaker-sdk: run `make clients`")
    here, alone = (Shell(tmp_path / name) for name in ("here", "alone"))
    for shell in (here, alone):
        shell.folder.mkdir()
        write_own(shell.folder)
    wanted = digests(alone.json("run", "own.yaml", "--direct"))
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\nPYTHONPATH={PROJECT} exec {sys.executable} -m tests.helpers.docker_stand_in "$@"\n')
    docker.chmod(0o755)
    with sagemaker() as aws:
        aws.client("s3").create_bucket(Bucket="bucket")
        here.environ |= aws.environ | {"TRNFLOW_STORE": "s3://bucket/store"}
        uri = here.json("run", "own.yaml", "--direct", "--detach")["uri"]
        role = {**aws.environ, "AWS_ACCESS_KEY_ID": "ROLE", "HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"{sys.executable} -P -m trnflow job {uri}", ROLE, str(tmp_path),
             *(f"{name}={value}" for name, value in role.items())],
            env={**os.environ, **aws.environ, "PYTHONPATH": str(CLIENT), "PATH": f"{docker.parent}:{os.environ['PATH']}"},
            cwd=tmp_path, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "algo-1 exited with code 0" in done.stdout + done.stderr
        run = here.json("run", "own.yaml", "--direct")
        assert digests(run) == wanted and set(actions(run).values()) <= {"hit", "skip"}
