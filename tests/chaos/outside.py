"""What a house depends on and does not own: an S3 server behind the tests' proxy, an MLflow server, a small disk."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.prefect_api import PROJECT
from tests.helpers.serving import answers, free_port
from tests.helpers.small_disk import small_disk

BUCKET = "chaos"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
DISK_BYTES = 600 << 20


def start(arguments: list[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a Python module as a process in a session of its own, with its output in a log."""
    with log.open("ab") as output:
        environ = os.environ | KEYS | {"DO_NOT_TRACK": "1", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=PROJECT, env=environ, stderr=output, start_new_session=True,
            **{"stdout": output} | options,
        )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def wait_for_answer(url: str, process: subprocess.Popen[bytes], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not answers(url):
        assert process.poll() is None and time.monotonic() < deadline, f"no answer from {url}"
        time.sleep(0.2)


class ObjectStore:
    """An S3 server in memory, and the proxy through which the house sees it."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.whole = dict[str, bytes]()
        self.server = start(["moto.server", "-H", "127.0.0.1", "-p", str(port)], folder / "s3.log")
        wait_for_answer(self.url, self.server)
        self.client.create_bucket(Bucket=BUCKET)
        self.troubles = folder / "troubles.json"
        self.set()
        arguments = ["tests.helpers.s3_proxy", self.url, str(self.troubles)]
        self.proxy = start(arguments, folder / "s3.log", stdout=subprocess.PIPE)
        assert self.proxy.stdout
        self.environ = KEYS | {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(self.proxy.stdout.readline())}",
            "TRNFLOW_STORE": f"s3://{BUCKET}/store",
        }

    @property
    def client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **keys)

    def set(self, *troubles: dict[str, Any]) -> None:
        """Replace the proxy's troubles (see tests.helpers.s3_proxy)."""
        aside = self.troubles.with_suffix(".new")
        aside.write_text(json.dumps(troubles))
        aside.replace(self.troubles)

    def names(self, prefix: str) -> list[str]:
        """The names of the store's objects below a folder of it, asked of the server itself."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"store/{prefix}")
        return sorted(item["Key"].removeprefix("store/") for page in pages for item in page.get("Contents", []))

    def document(self, name: str) -> Any:
        return json.loads(self.client.get_object(Bucket=BUCKET, Key=f"store/{name}")["Body"].read())

    def cut(self, name: str) -> None:
        """Replace an object by its first half, until `restore`."""
        self.whole[name] = self.client.get_object(Bucket=BUCKET, Key=f"store/{name}")["Body"].read()
        self.client.put_object(Bucket=BUCKET, Key=f"store/{name}", Body=self.whole[name][: len(self.whole[name]) // 2])

    def restore(self) -> None:
        for name, body in self.whole.items():
            self.client.put_object(Bucket=BUCKET, Key=f"store/{name}", Body=body)
        self.whole.clear()

    def close(self) -> None:
        end(self.proxy)
        end(self.server)


class MlflowServer:
    """An MLflow server on one port, which may be killed and started again. database: its URL; None for a SQLite file."""

    def __init__(self, folder: Path, database: str | None = None) -> None:
        self.folder, self.port = folder, free_port()
        self.database = database or f"sqlite:///{folder / 'mlflow.db'}"
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        files = str(self.folder / "mlartifacts")
        arguments = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        arguments += ["--backend-store-uri", self.database, "--artifacts-destination", files]
        self.process = start(arguments, self.folder / "mlflow.log")

    def kill(self) -> None:
        end(self.process)


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """Make `folder` a small disk; yields False, and leaves the folder as it is, where none can be mounted."""
    with contextlib.ExitStack() as stack:
        is_small = True
        try:
            stack.enter_context(small_disk(folder, DISK_BYTES)).chmod(0o700)
        except pytest.skip.Exception:
            is_small = False
        yield is_small
