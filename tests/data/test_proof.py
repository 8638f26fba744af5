"""Where the user's functions are called a second time."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import PROJECT


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
