"""Where the user's functions are called a second time."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import PROJECT
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format import first_rows as module
from trnflow.tasks.data.format.templates import Limit, no_limit


def test_every_clock_of_python_is_a_day_on_elsewhere() -> None:
    script = """
import calendar, datetime, time
from trnflow.tasks.data.proof import go_elsewhere
clocks = {
    "time": lambda: time.time(), "time_ns": lambda: time.time_ns() / 1e9, "monotonic": lambda: time.monotonic(),
    "perf_counter": lambda: time.perf_counter(), "gmtime": lambda: calendar.timegm(time.gmtime()),
    "localtime": lambda: time.mktime(time.localtime()), "now": lambda: datetime.datetime.now().timestamp(),
    "utcnow": lambda: calendar.timegm(datetime.datetime.utcnow().timetuple()),
    "today": lambda: datetime.datetime.today().timestamp(), "date": lambda: datetime.date.today().toordinal() * 86400,
}
before = {name: clock() for name, clock in clocks.items()}
go_elsewhere()
print(*(name for name, clock in clocks.items() if not 86_000 < clock() - before[name] < 260_000))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_rows_are_made_in_another_order_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a function that counts its calls makes two things of a row."""
    pq.write_table(pa.table({"text": [*"abcd"]}), tmp_path / "train.parquet")

    def counting(arguments: Meta, limit: Limit) -> Any:
        calls = count(1)
        return lambda row, where: SimpleNamespace(examples=[f"{row['text']}{next(calls)}"])

    monkeypatch.setattr(module, "maker_from", counting)
    monkeypatch.setattr(module, "go_elsewhere", lambda: None)
    given = {"file": str(tmp_path / "train.parquet"), "part": {"split": "train"}, "config": {"bad_rows": "error"}}
    here, there = (module.first_rows({**given, "elsewhere": each}, no_limit)["rows"] for each in (False, True))
    assert here == ['["a1"]', '["b2"]', '["c3"]', '["d4"]']
    assert [json.loads(row)[0][0] for row in there] == [*"abcd"], "each row in its place"
    assert here != there
