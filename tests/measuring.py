"""What tests take: `pytest --measure` writes `measured.json`, and compares each folder with its budget.

Of each file: the seconds and processor seconds of its quick tests together, those of each slow test and slow fixture (of
SLOW_SECONDS or more), and how many Python processes, warm parents and whole runs (WHOLE stages or more that were no hits) its
tests started. Processor seconds are those of pytest's process and of children that ended meanwhile: a warm parent's count where
it ends, at the latest with the session.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_name("measured.json")
BUDGETS = Path(__file__).with_name("budgets.json")
SLOW_SECONDS = 5.0
WHOLE = 6
OVER = 1.2
"""So many times its budget a folder may take."""

STARTED = ("processes", "warm_parents", "whole_runs")
Cost = tuple[float, float]
"""Seconds, processor seconds."""


@dataclass
class File:
    """What was measured of a file of tests. seconds, processor: of those that are not slow; slow: those of slow tests and
    fixtures, by their names."""

    seconds: float = float("inf")
    processor: float = 0.0
    processes: int = 1
    warm_parents: int = 0
    whole_runs: int = 0
    slow: dict[str, Cost] = field(default_factory=dict)

    @property
    def all_seconds(self) -> float:
        """A slow fixture's seconds are also those of the first test that uses it."""
        return self.seconds + sum(seconds for name, (seconds, _) in self.slow.items() if name.startswith("test_"))


def measured() -> dict[str, File]:
    """What is known of each file, by its name."""
    return {name: File(**{"processes": 0} | fields) for name, fields in json.loads(TABLE.read_text()).items()}


_is_for_all = False


@contextmanager
def once_a_session() -> Iterator[None]:
    """Count no process that starts within: all tests use it, and whichever is the first has it started."""
    global _is_for_all
    _is_for_all = True
    try:
        yield
    finally:
        _is_for_all = False


class Watch:
    """A plugin that counts what the running test takes, hands it on with its report, and refuses processes to a pure test."""

    def __init__(self) -> None:
        self.running: pytest.Item | None = None
        self._begun = (0.0, 0.0)
        self._started: Counter[str] = Counter()
        self._with_processes: set[str] = set()
        self._seen = set[str]()
        sys.addaudithook(self._note_process)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.running, self._begun = item, _now()
        self._started.clear()
        try:
            return (yield)
        finally:
            self.running = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        """Note a fixture of a file that takes long with the test that is the first to use it; and those that start processes,
        with all tests that use them."""
        begun, started = _now(), self._started["processes"]
        try:
            return (yield)
        finally:
            taken = _since(begun)
            if self._started["processes"] > started:
                self._with_processes.add(fixturedef.argname)
            if self.running and fixturedef.scope == "module" and taken[0] >= SLOW_SECONDS:
                self.running.user_properties.append(("slow_fixture", [fixturedef.argname, *taken]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        try:
            return (yield)
        finally:
            if item.config.getoption("--measure") and (nextitem is None or nextitem.path != item.path):
                self._started["whole_runs"] = sum(map(_is_whole, self._new_runs(item.config)))
            self._started["processes"] += not self._with_processes.isdisjoint(getattr(item, "fixturenames", ()))
            item.user_properties += [("processor", _since(self._begun)[1]), *self._started.items()]

    def _note_process(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.running or _is_for_all or not starts_python(event, arguments):
            return
        self._started["processes"] += 1
        self._started["warm_parents"] += "warm_parent:serve" in str(arguments[1:2])
        if self.running.get_closest_marker("pure") and self.running.config.getoption("markexpr") == "pure":
            file = self.running.nodeid.partition("::")[0]
            raise AssertionError(f"{file} is of the tier pure, and starts a process: `make test-times` measures anew")

    def _new_runs(self, config: pytest.Config) -> Iterator[Path]:
        """The run records in folders of tests that are new since the file before."""
        basetemp: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        new = {entry.name for entry in os.scandir(basetemp) if not entry.is_symlink()} - self._seen
        self._seen |= new
        for name in new:
            for folder, below, files in os.walk(basetemp / name):
                below[:] = [one for one in below if one not in ("cas", "artifacts", "keys", "node_modules")]
                if os.path.basename(folder) == "runs":
                    yield from (Path(folder, file) for file in files if file.endswith(".json"))


def starts_python(event: str, arguments: tuple[Any, ...]) -> bool:
    """Tell whether an audit event is the start of a Python process, or of a shell, which may start one.

    A warm parent is asked for one by `socket.sendmsg`.
    """
    if event != "subprocess.Popen":
        return event in ("os.fork", "os.posix_spawn", "socket.sendmsg")
    executable, command = arguments[:2]
    first = executable or (command if isinstance(command, str | os.PathLike) else command[0])
    return os.path.basename(os.fspath(first)).startswith(("python", "trnflow", "make", "sh", "bash"))


def _is_whole(record: Path) -> bool:
    try:
        stages = json.loads(record.read_text()).get("stages", [])
    except (OSError, ValueError):  # a test damaged it
        return False
    return sum(stage.get("action") == "ran" for stage in stages) >= WHOLE


def _now() -> Cost:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used)


def _since(begun: Cost) -> Cost:
    now = _now()
    return round(now[0] - begun[0], 1), round(now[1] - begun[1], 1)


class Measured:
    """Adds up what the reports say of each file, those of workers too, and writes the table at the end."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Cost]] = defaultdict(dict)
        self.started: dict[str, Counter[str]] = defaultdict(Counter)
        self.fixtures: dict[str, dict[str, Cost]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "nightly" in report.keywords:
            return
        file, _, name = report.nodeid.partition("::")
        seconds, processor = self.tests[file].get(name, (0.0, 0.0))
        self.tests[file][name] = seconds + report.duration, processor
        if report.when == "teardown":
            for key, value in report.user_properties:
                self._add(file, name, key, value)

    def _add(self, file: str, name: str, key: str, value: Any) -> None:
        if key == "processor":
            self.tests[file][name] = self.tests[file][name][0], value
        elif key == "slow_fixture":
            fixture, *cost = value
            self.fixtures[file][fixture] = (cost[0], cost[1])
        elif key in STARTED:
            self.started[file][key] += value

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            return  # some files ran in part
        known = measured() if TABLE.exists() else {}
        known |= {file: self._file(file) for file in self.tests}
        there = {file: figures for file, figures in sorted(known.items()) if (TABLE.parents[1] / file).exists()}
        lines = ",\n".join(f"{json.dumps(file)}: {json.dumps(_short(figures))}" for file, figures in there.items())
        TABLE.write_text(f"{{\n{lines}\n}}\n")
        if BUDGETS.exists() and (over := over_budget(there, json.loads(BUDGETS.read_text()))):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            session.config.get_terminal_writer().line("\n" + "\n".join(over))

    def _file(self, file: str) -> File:
        """Slow tests are told by their own seconds, those of the fixtures that they are the first to use included."""
        tests = {name.rpartition("::")[2]: cost for name, cost in self.tests[file].items()}
        slow = {name: cost for name, cost in tests.items() if cost[0] >= SLOW_SECONDS}
        quick = [cost for name, cost in tests.items() if name not in slow]
        sums = [round(sum(part), 1) for part in zip(*quick, strict=True)] or [0.0, 0.0]
        rounded = {name: (round(cost[0], 1), cost[1]) for name, cost in sorted(slow.items())}
        return File(*sums, **{"processes": 0} | dict(self.started[file]), slow=self.fixtures[file] | rounded)


def _short(file: File) -> dict[str, Any]:
    return {name: value for name, value in asdict(file).items() if value or name == "seconds"}


def seconds_by_folder(files: dict[str, File]) -> dict[str, Cost]:
    """Return {folder below tests: seconds of quick tests, of slow tests and fixtures}."""
    found: dict[str, Cost] = defaultdict(lambda: (0.0, 0.0))
    for name, file in files.items():
        folder = Path(name).parts[1] if len(Path(name).parts) > 2 else "."
        quick, slow = found[folder]
        found[folder] = quick + file.seconds, slow + file.all_seconds - file.seconds
    return dict(found)


def over_budget(files: dict[str, File], budgets: dict[str, Cost]) -> list[str]:
    """Return a line for each folder that takes OVER times its budget."""
    return [
        f"tests/{folder}: {tier} tests take {taken:.0f} s, and their budget is {budget:.0f} s (tests/budgets.json)"
        for folder, both in sorted(seconds_by_folder(files).items())
        for tier, taken, budget in zip(("quick", "slow"), both, budgets.get(folder, (0.0, 0.0)), strict=True)
        if taken > OVER * budget + 1
    ]
