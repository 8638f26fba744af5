"""7. Ctrl-C, SIGTERM and SIGKILL while a model trains: no process stays, and the same command goes on to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

STEPS = 1000
RUN = (
    "run", "demo", "--until", "train", "--json", "data.limit=64", "train.engine=native", "train.devices=1",
    "train.global_batch=8", f"train.max_steps={STEPS}", "train.epochs=1000", "train.eval_every_epoch=false", "train.threads=1",
    "train.checkpoint_every=10", "model.config.num_hidden_layers=1", "model.config.hidden_size=32",
    "model.config.intermediate_size=32", "tracking.enabled=false",
)  # fmt: skip


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TRNFLOW", "PREFECT"))}
    return subprocess.Popen(
        [sys.executable, "-m", "flows", *RUN, *more],
        cwd=folder,
        env=environ | {"TRNFLOW_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Any, what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes whose environment names this home."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"TRNFLOW_HOME={folder / 'home'}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_text())
        except OSError:
            continue
    return [command for command in found if command]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the checkpoint that an undisturbed run makes."""
    process = start(tmp_path_factory.mktemp("undisturbed"), "--direct")
    out, err = process.communicate()
    assert process.returncode == 0, err
    return str(json.loads(out)["stages"][-1]["artifact"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_stopped_run_leaves_no_process_and_resumes_to_the_same_bits(
    tmp_path: Path, undisturbed: str, number: signal.Signals, code: int
) -> None:
    process = start(tmp_path, "--direct")
    partial = tmp_path / "home/store/partial"
    wait_until(lambda: list(partial.rglob("COMMIT")) or process.poll() is not None, "the first checkpoint")
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    wait_until(lambda: not processes_of(tmp_path), "its processes to end", 40)
    assert "Traceback" not in err
    if code == 130:
        assert json.loads(out)["error"]["type"] == "Interrupted"
    steps = [int(mark.parent.name.removeprefix("step-")) for mark in partial.rglob("COMMIT")]
    assert 0 < max(steps) < STEPS

    again = start(tmp_path, "--direct")
    out, err = again.communicate()
    assert again.returncode == 0, err
    assert f"resumes at step {max(steps)}" in err
    assert json.loads(out)["stages"][-1]["artifact"] == undisturbed
    assert not list(partial.rglob("COMMIT"))
    assert not list((tmp_path / "home/work").iterdir())
