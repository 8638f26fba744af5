"""`trnflow run` under torchrun itself: one run would train while the others wait for its lease, and are paid for."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell, Shell

RUN = ("-m", "trnflow", "run", "tiny.yaml", "--direct")


@pytest.mark.slow
def test_two_nodes_are_refused(tmp_path: Path) -> None:
    shell = Shell(write_tiny(tmp_path))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--rdzv-backend",
        "c10d",
    ]
    nodes = [
        subprocess.Popen(
            [*program, "--rdzv-endpoint", f"127.0.0.1:{port}", *RUN], cwd=tmp_path, env=shell.environ, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [node.communicate(timeout=240)[1] for node in nodes]
    assert all(node.returncode for node in nodes)
    assert any("torchrun started this command on 2 nodes, and a run uses one machine" in text for text in said)
    assert not (tmp_path / ".trnflow/runs").exists()


def test_several_processes_of_a_node_are_refused_and_one_is_not(tmp_path: Path) -> None:
    shell = InProcessShell(write_tiny(tmp_path))
    shell.environ |= {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    said = shell.error("run", "tiny.yaml", "--direct", "--until", "load_data", code=2)
    assert "torchrun started this command 2 times" in said and "train.devices=2" in said
    shell.environ["WORLD_SIZE"] = "1"
    assert shell("run", "tiny.yaml", "--direct", "--until", "load_data").returncode == 0
