"""A classifier's page answers within a time: the process of a text that takes longer ends, and the next one is answered."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from trnflow.flows.cli.model.serve import in_time
from trnflow.tasks.data.format.row_format import FORMAT, ROW_FORMAT_FILE, VERSION
from trnflow.tasks.errors import DataError
from trnflow.tasks.prediction import separate_process
from trnflow.tasks.prediction.separate_process import Bounds, PredictingProcess
from trnflow.tasks.stage import write_json

MODEL = """
import json, os, sys, time
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
while True:
    asked = json.loads(connection.recv_bytes())
    if asked[0][1] == {"text": "slow"}:
        time.sleep(600)
    if asked[0][1] == {"text": "fatal"}:
        os._exit(3)
    connection.send_bytes(json.dumps([None, [{"label": "pos"}]]).encode())
"""
"""A stand-in for a model: what can't be interrupted is a forward pass."""


def test_a_text_that_takes_too_long_is_an_error_and_the_next_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"settings": {"task": "classification"}, "text": ["text"], "columns": ["text"], "nested": []}
    write_json(tmp_path / ROW_FORMAT_FILE, {"format": FORMAT, "version": VERSION, "task": "classification", "rows": rows,
                                            "max_length": 8})  # fmt: skip
    monkeypatch.setattr(separate_process, "python", lambda entry, number: [sys.executable, "-c", MODEL, number])
    loaded: list[PredictingProcess] = []

    def load(seconds: float) -> PredictingProcess:
        loaded.append(PredictingProcess(tmp_path, "model", {}, 8, Bounds(seconds=seconds)))
        return loaded[-1]

    predict = in_time(load, 2.0)
    assert [*predict([("the text", {"text": "good"})])] == [{"label": "pos"}]
    begun = time.monotonic()
    with pytest.raises(DataError, match="the text took longer than 2 seconds.*give a shorter one"):
        [*predict([("the text", {"text": "slow"})])]
    assert time.monotonic() - begun < 60
    assert [*predict([("the text", {"text": "good"})])] == [{"label": "pos"}] and len(loaded) == 2
    with pytest.raises(DataError, match="the process that predicts ended"):
        [*predict([("the text", {"text": "fatal"})])]
    assert [*predict([("the text", {"text": "good"})])] == [{"label": "pos"}] and len(loaded) == 3
