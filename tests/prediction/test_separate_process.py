"""A model in a process of its own is asked in JSON: neither end reads a pickle."""

from __future__ import annotations

import json
import os
import pickle
import socket
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from trnflow.tasks.prediction.separate_process import serve


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
