"""Runs of Weights & Biases and Trackio, read by their own classes and commands (`make clients`)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import CLIENTS, RunClient
from tests.tracking.runs import begin, speak
from tests.tracking.test_tensorboard import log_of
from trnflow.tasks.errors import MissingDependency
from trnflow.tasks.events import EventLog
from trnflow.tasks.tracking.client_runs import ClientRuns

TRACKERS = CLIENTS / "trackers"
WANDB = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
data, at, whole = open(sys.argv[1], "rb").read(), 7, b""  # after the header, LevelDB's log: blocks of 32 KiB
curve, summary, config = [], {}, {}
while at + 7 <= len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, size, kind = struct.unpack_from("<IHB", data, at)
    whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
    if kind not in (1, 4):  # whole, or the last piece
        continue
    record, whole = Record.FromString(whole), b""
    items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
    curve += [[items["train/step"], items["train/loss"]]] if "train/loss" in items else []
    summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
    config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    ended = record.exit.exit_code if record.HasField("exit") else None
    state = ended if ended is not None else globals().get("state")
print(json.dumps({"curve": curve, "summary": summary, "config": config, "exit": state}))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (TRACKERS / "installed").exists(), reason="no client trackers: run `make clients`"),
]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages laid over this environment, here and in the process that writes."""
    monkeypatch.syspath_prepend(str(TRACKERS))
    monkeypatch.setenv("PYTHONPATH", str(TRACKERS))
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)  # it is not asked for while a run is offline
    yield


def told(home: Path, package: str) -> EventLog:
    log = EventLog(ClientRuns(home, package))
    with log_of(home, "r1", log):
        speak(log, home, points=50)
    return log


def secrets_in(folder: Path) -> list[Path]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [
        file for file in files if any(secret in file.read_bytes() for secret in (b"hunter2", b"sesame", b"xxxxxxxx"))
    ]


def test_wandb_s_own_records_hold_the_run_and_no_secret(tmp_path: Path, run_client: RunClient) -> None:
    told(tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").rglob("*.wandb")
    found = run_client("trackers", WANDB, file)
    assert [tuple(point) for point in found["curve"]] == [(step, 1 / (step + 1)) for step in range(50)]
    assert found["summary"]["evaluate_model/f1_weighted"] == 0.92 and found["exit"] == 0
    assert found["config"]["train"]["learning_rate"] == 3e-5
    assert not secrets_in(tmp_path / "wandb")


def test_trackio_s_own_command_shows_the_run(tmp_path: Path) -> None:
    told(tmp_path, "trackio")
    environ = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-m", "trackio.cli", "get", "metric", "--project", "demo", "--run", "r1"]
    shown = subprocess.run([*command, "--metric", "train/loss", "--json"], env=environ, capture_output=True, text=True)
    assert shown.returncode == 0 and "0.02" in shown.stdout, shown.stderr
    with sqlite3.connect(tmp_path / "trackio" / "demo.db") as database:
        assert database.execute("select count(*) from metrics").fetchone()[0] >= 52
    assert not secrets_in(tmp_path / "trackio")


def test_a_client_that_fails_costs_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    log = told(tmp_path, "wandb")
    assert log.state.outcome == "completed"
    (reader,) = log.readers
    assert "wandb did not take this run" in reader.note


def test_a_run_of_hits_starts_none_and_a_missing_package_is_named(tmp_path: Path) -> None:
    log = EventLog(ClientRuns(tmp_path, "wandb"))
    with log_of(tmp_path, "r1", log):
        begin(log, "load_data", "a" * 64)
    assert not (tmp_path / "wandb").exists()
    with pytest.raises(MissingDependency, match="tracking.also names neither, which is not installed"):
        ClientRuns(tmp_path, "neither")
