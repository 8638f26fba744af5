"""A job below AWS's own `train`, which SageMaker's images run, in a container of the rehearsal: the same results as ours."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS
from tests.flows.jobs.test_elsewhere import actions, digests
from tests.flows.jobs.test_job import write_own
from tests.helpers.command_line import Shell
from tests.helpers.sagemaker import ROLE, sagemaker
from tests.helpers.waiting import wait_for

CLIENT = CLIENTS / "sagemaker-training"
PROGRAM = """
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--job")
print("below", os.environ["SM_FRAMEWORK_MODULE"], os.environ["SM_CURRENT_HOST"], "as pid", os.getpid(), flush=True)
environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
command = [sys.executable, "-P", "-m", "trnflow", "job", parser.parse_args().job]
sys.exit(subprocess.run(command, env=environ).returncode)
"""


@pytest.mark.nightly
def test_a_job_below_awss_own_train_makes_the_same_bits(tmp_path: Path) -> None:
    if not (CLIENT / "installed").exists():
        pytest.skip("no client sagemaker-training: run `make clients`")
    here, alone = (Shell(tmp_path / name) for name in ("here", "alone"))
    for shell in (here, alone):
        shell.folder.mkdir()
        write_own(shell.folder)
    wanted = digests(alone.json("run", "own.yaml", "--direct"))
    with sagemaker() as aws:
        s3 = aws.client("s3")
        s3.create_bucket(Bucket="bucket")
        here.environ |= aws.environ | {"TRNFLOW_STORE": "s3://bucket/store"}
        uri = here.json("run", "own.yaml", "--direct", "--detach")["uri"]
        with tarfile.open(fileobj=(archive := io.BytesIO()), mode="w:gz") as tar:
            entry = tarfile.TarInfo("job.py")
            entry.size = len(PROGRAM)
            tar.addfile(entry, io.BytesIO(PROGRAM.encode()))
        s3.put_object(Bucket="bucket", Key="code/sourcedir.tar.gz", Body=archive.getvalue())
        settings = {
            "sagemaker_program": "job.py", "sagemaker_submit_directory": "s3://bucket/code/sourcedir.tar.gz",
            "sagemaker_region": "us-east-1", "job": uri,
        }  # fmt: skip
        aws.client("sagemaker").create_training_job(
            TrainingJobName="mine", RoleArn=ROLE, OutputDataConfig={"S3OutputPath": "s3://bucket/out"},
            AlgorithmSpecification={
                "TrainingImage": "pytorch", "TrainingInputMode": "File",
                "ContainerEntrypoint": [sys.executable, str(CLIENT / "bin/train")], "ContainerArguments": ["train"],
            },
            HyperParameters={name: json.dumps(value) for name, value in settings.items()},
            Environment={
                "PYTHONPATH": str(CLIENT), "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
                "S3_ENDPOINT_URL": aws.url,
            },
            ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 10},
            StoppingCondition={"MaxRuntimeInSeconds": 3600},
        )  # fmt: skip
        with suppress(AssertionError):
            wait_for(lambda: aws.jobs()["mine"] != "InProgress", 200)
        output = aws.output("mine")
        assert aws.jobs()["mine"] == "Completed", output
        assert "below sagemaker_pytorch_container.training:main algo-1 as pid" in output
        done = here.json("run", "own.yaml", "--direct")
        assert digests(done) == wanted and set(actions(done).values()) <= {"hit", "skip"}
