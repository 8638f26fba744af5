"""A real S3 server process, as fixtures to import: one for a whole session, since fsspec keeps its filesystems that long."""

from __future__ import annotations

import atexit
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.measuring import once_a_session

_LOG = tempfile.NamedTemporaryFile(prefix="trnflow-s3-", suffix=".log")  # noqa: SIM115 - open as long as this process lives

_SERVER: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="session")
def s3_endpoint() -> str:
    """A moto server process on a free port; credentials and endpoint stand in the environment, as a user's would."""
    return start_server()


@pytest.fixture
def s3_root(s3_endpoint: str) -> str:
    return f"s3://{new_bucket(s3_endpoint)}/store"


def new_bucket(endpoint: str, name: str = "") -> str:
    """Make a bucket, unless there is one of the name. Return its name: by default a new one."""
    import boto3

    bucket = name or f"bucket-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)
    return bucket


def downloads(root: str) -> list[str]:
    """The names, in the order of the requests, of the files below `root` that were read from the server of `s3_endpoint`."""
    lines = re.findall(r'"GET /(\S+) HTTP/1\.1" 20[06] ', Path(_LOG.name).read_text())
    base = f"{root.removeprefix('s3://')}/"
    return [line.removeprefix(base) for line in lines if line.startswith(base)]


def requests(bucket: str) -> list[str]:
    """The requests to a bucket of the server of `s3_endpoint`, as "METHOD path", in their order."""
    return re.findall(rf'"([A-Z]+ /{bucket}\S*) HTTP/1\.1" ', Path(_LOG.name).read_text())


@contextmanager
def halted() -> Iterator[None]:
    """Let the server answer nothing until the context's end; what clients have sent by then, it handles."""
    _SERVER[0].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        _SERVER[0].send_signal(signal.SIGCONT)


@functools.cache
def start_server() -> str:
    """Start the server, once a process, and set its variables. Return its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with once_a_session():
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=_LOG,
        )
    atexit.register(process.kill)
    _SERVER.append(process)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    _wait(url, process)
    return url


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the S3 server died"
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the S3 server did not answer within 60 s")
