"""A rehearsal of SageMaker, S3, Secrets Manager and CloudWatch on this machine, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

PROJECT = Path(__file__).resolve().parents[2]
ROLE = "arn:aws:iam::123456789012:role/trnflow"
HARDWARE = """\
hardware: {name: ml.m5.large, price_per_hour: 0.115}
train: {engine: native, device: cpu, devices: 1}
"""
"""Stands for an accelerator's instance: the name is one that SageMaker knows."""


SPACE = (
    "unshare", "--mount", "--pid", "--uts", "--fork", "sh", "-c",
    "mount --make-rprivate / && mount -t proc proc /proc && hostname algo-1",
)  # fmt: skip
"""What a container needs of this machine."""


class Rehearsal:
    """The server, as the submitter's and the tests' programs reach it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.environ = {
            "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "SUBMITTER", "AWS_SECRET_ACCESS_KEY": "submitter",
        }  # fmt: skip

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="TEST",
            aws_secret_access_key="test",
        )

    def jobs(self) -> dict[str, str]:
        """{training job: status}, the newest first."""
        pages = self.client("sagemaker").get_paginator("list_training_jobs").paginate(SortOrder="Descending")
        return {
            one["TrainingJobName"]: one["TrainingJobStatus"] for page in pages for one in page["TrainingJobSummaries"]
        }

    def describe(self, job: str) -> Any:
        return self.client("sagemaker").describe_training_job(TrainingJobName=job)

    def output(self, job: str) -> str:
        return (self.folder / f"{job}.log").read_text()

    def requests(self) -> list[dict[str, Any]]:
        """What the submitter's and the job's processes asked."""
        lines = (self.folder / "requests.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["who"] != "TEST"]

    def rehearse(self, what: str, **query: int) -> None:
        """Have a trouble happen: `throttle` (times), `interrupt/JOB` (term)."""
        text = "&".join(f"{name}={value}" for name, value in query.items())
        urllib.request.urlopen(f"{self.url}/rehearsal/{what}?{text}").close()

    def containers(self) -> list[int]:
        """The pids of all processes of containers."""
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if self._is_of_container(folder)]

    def _is_of_container(self, folder: Path) -> bool:
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"AWS_ACCESS_KEY_ID=ROLE" in environ and f"AWS_ENDPOINT_URL={self.url}".encode() in environ


@contextmanager
def sagemaker() -> Iterator[Rehearsal]:
    """Start the server; skip the test where there are no namespaces."""
    if os.geteuid() or subprocess.run(SPACE, capture_output=True).returncode:
        pytest.skip("the rehearsal of SageMaker needs root and Linux namespaces")
    folder = Path(tempfile.mkdtemp(prefix="trnflow-sagemaker-"))
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.sagemaker_server", str(folder)],
            cwd=PROJECT, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        rehearsal = Rehearsal(folder, f"http://127.0.0.1:{int(process.stdout.readline())}")
        yield rehearsal
        for pid in rehearsal.containers():
            os.kill(pid, 9)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)
