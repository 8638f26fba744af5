"""A model in a process of its own is asked in JSON: neither end reads a pickle."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from trnflow.tasks.data.format.row_format import FORMAT, ROW_FORMAT_FILE, VERSION
from trnflow.tasks.errors import DataError
from trnflow.tasks.prediction import separate_process
from trnflow.tasks.prediction.separate_process import Bounds, PredictingProcess, serve
from trnflow.tasks.stage import write_json


class Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_an_error_and_is_not_read(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=serve, args=(str(theirs.detach()),))
    serving.start()
    with Connection(ours.detach()) as connection:
        connection.send(Harm(tmp_path / "harm"))
        failure, details = json.loads(connection.recv_bytes())
        connection.send_bytes(json.dumps([str(tmp_path), "model", {}, 8]).encode())
        again, _ = json.loads(connection.recv_bytes())
    serving.join()
    assert failure["type"] == "ProcessFailed" and "Decode" in details
    assert again["type"] == "ModelError" and "trnflow.json" in again["message"]
    assert not (tmp_path / "harm").exists()
    pickle.loads(pickle.dumps(Harm(tmp_path / "harm")))  # which a pickle's reader would have made
    assert (tmp_path / "harm").is_dir()


def test_a_request_has_bounds_of_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process loads, answers once, and then never again."""
    settings = {"settings": {"task": "classification"}, "text": ["text"], "columns": ["text"], "nested": []}
    write_json(tmp_path / ROW_FORMAT_FILE, {"format": FORMAT, "version": VERSION, "task": "classification", "rows": settings,
                                            "max_length": 8})  # fmt: skip
    silent = ECHO.replace("while True:", "for _ in range(2):") + "import time; time.sleep(600)"
    monkeypatch.setattr(separate_process, "python", lambda entry, number: [sys.executable, "-c", silent, number])
    process = PredictingProcess(tmp_path, "model", {}, 8, Bounds(megabytes=1, seconds=1))
    with pytest.raises(DataError, match=r"the request has 50\.0 MB of rows, and may have 1 MB at most.*max_request_mb"):
        process.predict(["a" * 50_000_000])
    assert process.predict(["a"]) == [["row 1", "a"]], "a request that is refused ends nothing"
    with pytest.raises(DataError, match="the request took longer than 1 seconds.*max_request_seconds"):
        process.predict(["a"])
    assert process.ended and process._process.returncode == -signal.SIGKILL


ECHO = """
import json, sys, time
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
try:
    while True:
        connection.send_bytes(json.dumps([None, json.loads(connection.recv_bytes())]).encode())
finally:
    time.sleep(60)  # it ends when it is killed
"""


def test_an_answer_that_nobody_waited_for_is_not_that_to_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process answers with the question."""
    settings = {"settings": {"task": "classification"}, "text": ["text"], "columns": ["text"], "nested": []}
    write_json(tmp_path / ROW_FORMAT_FILE, {"format": FORMAT, "version": VERSION, "task": "classification", "rows": settings,
                                            "max_length": 8})  # fmt: skip
    monkeypatch.setattr(separate_process, "python", lambda entry, number: [sys.executable, "-c", ECHO, number])
    process = PredictingProcess(tmp_path, "model", {}, 8)
    assert process.predict(["a"]) == [["row 1", "a"]] and not process.ended

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(process._connection, "recv_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.predict(["b"])
    assert process.ended and process._process.returncode == -signal.SIGKILL, "it leaves no process behind"
