"""How the suite is split: each test's tier, and the order in which workers take the files.

Tiers are markers: `pure` (starts no Python process), `process` (may start some), `slow` (SLOW_SECONDS or more, or marked by
hand for a costly fixture; `make test` leaves them out, `.ci/run` runs them; a test of many seconds that is marked `process` by
hand stays in `make test`, for want of a cheaper proof) and `nightly` (marked by hand: whole products of
settings, for which samples are in the other tiers). The first three follow from `tests/measured.json`, which has for each file
its seconds, whether its tests start Python processes, and the names of its slow tests and of its slow fixtures, whose tests are
all slow: left to the others, the fixture would be paid for in both tiers. `make test-times` measures it anew. In
`make test-pure` a pure test that starts a Python process fails; in the other targets the first test that needs a server
starts it, whichever that is. Workers of pytest-xdist take the longest files first, so that none is left alone with a long
file at the end.
Tests with the mark `xla` need torch_xla. Without it they are skipped, at most XLA_TESTS of them, or `--skips` of them: more is an
error, so that none is left out unnoticed.
A file that was never measured is of the tier `process`; such files come first, those with the most tests before the others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TABLE = Path(__file__).with_name("measured.json")
SLOW_SECONDS = 5.0
XLA_TESTS = 206
WITHOUT_XLA = pytest.mark.skip(reason="needs torch_xla, which the environment of LOCK=native lacks")


class File(NamedTuple):
    """What was measured of a file of tests. seconds: of those that are not slow; slow: the names of slow tests and fixtures."""

    seconds: float = float("inf")
    processes: bool = True
    slow: tuple[str, ...] = ()

    @property
    def all_seconds(self) -> float:
        """At least so many seconds."""
        return self.seconds + SLOW_SECONDS * len(self.slow)


_running: list[pytest.Item] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skips", type=int, default=XLA_TESTS, help="tests that may be skipped for want of torch_xla")
    parser.addoption("--measure", action="store_true", help="write each file's seconds and tier to tests/measured.json")


def configure(config: pytest.Config) -> None:
    """Watch for processes; with --measure, collect the figures in the process that hears of all workers."""
    sys.addaudithook(_note_process)
    if config.getoption("--measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured())


def measured() -> dict[str, File]:
    """What is known of each file, by its name."""
    return {
        file: File(seconds, processes, tuple(slow))
        for file, (seconds, processes, slow) in json.loads(TABLE.read_text()).items()
    }


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    table = measured()
    for item in items:
        if not {"process", "slow", "nightly"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker(tier(item, table.get(file_of(item), File())))
    if find_spec("torch_xla") is None:
        for item in filter(needs_xla, items):
            item.add_marker(WITHOUT_XLA)
    if hasattr(config, "workerinput"):
        tests = Counter(map(file_of, items))
        items.sort(
            key=lambda item: (-table.get(file_of(item), File()).all_seconds, -tests[file_of(item)], file_of(item))
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to skip more of the chosen tests than `--skips`."""
    skipped = sum(map(needs_xla, session.items)) if find_spec("torch_xla") is None else 0
    if skipped > (most := session.config.getoption("skips")):
        raise pytest.UsageError(f"{skipped} of these tests need torch_xla, and at most {most} may be skipped")


def needs_xla(item: pytest.Item) -> bool:
    return item.get_closest_marker("xla") is not None


def tier(item: pytest.Item, file: File) -> str:
    if not {item.name, *getattr(item, "fixturenames", ())}.isdisjoint(file.slow):
        return "slow"
    return "process" if file.processes else "pure"


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
    """Note a fixture of a file that takes long with the test that is the first to use it."""
    begun = time.monotonic()
    try:
        return (yield)
    finally:
        if fixturedef.scope == "module" and time.monotonic() - begun >= SLOW_SECONDS:
            _running[-1].user_properties.append(("slow_fixture", fixturedef.argname))


def _note_process(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: note the Python processes that the running test starts, and refuse them to a pure one."""
    if not _running or not _starts_python(event, arguments):
        return
    item = _running[-1]
    if not any(name == "starts_processes" for name, _ in item.user_properties):
        item.user_properties.append(("starts_processes", True))
    if item.get_closest_marker("pure") and item.config.getoption("markexpr") == "pure":
        raise AssertionError(
            f"{file_of(item)} is of the tier pure, and starts a process: `make test-times` measures anew"
        )


def _starts_python(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "subprocess.Popen":
        return event == "os.fork"
    executable, command = arguments[:2]
    first = executable or (command if isinstance(command, str | os.PathLike) else command[0])
    return os.path.basename(os.fspath(first)).startswith(("python", "trnflow", "make", "sh", "bash"))


class Measured:
    """A plugin that adds up what the reports say of each file, those of workers too, and writes the table at the end."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, float]] = {}
        self.processes: set[str] = set()
        self.fixtures: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "nightly" in report.keywords:
            return
        file, _, name = report.nodeid.partition("::")
        tests = self.tests.setdefault(file, {})
        tests[name] = tests.get(name, 0.0) + report.duration
        if ("starts_processes", True) in report.user_properties:
            self.processes.add(file)
        self.fixtures.setdefault(file, set()).update(n for key, n in report.user_properties if key == "slow_fixture")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            return  # some files ran in part
        known = measured() if TABLE.exists() else {}
        known |= {file: self._file(file) for file in self.tests}
        there = {file: figures for file, figures in sorted(known.items()) if (TABLE.parents[1] / file).exists()}
        lines = ",\n".join(f"{json.dumps(file)}: {json.dumps(figures)}" for file, figures in there.items())
        TABLE.write_text(f"{{\n{lines}\n}}\n")

    def _file(self, file: str) -> File:
        """Slow tests are told by their own seconds, those of the fixtures that they are the first to use included."""
        tests = self.tests[file]
        slow = [name.rpartition("::")[2] for name, seconds in tests.items() if seconds >= SLOW_SECONDS]
        quick = sum(seconds for seconds in tests.values() if seconds < SLOW_SECONDS)
        return File(round(quick, 1), file in self.processes, (*sorted(self.fixtures.get(file, ())), *sorted(slow)))
