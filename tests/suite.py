"""How the suite is split: each file's tier, and the order in which workers take the files.

Both come from `tests/measured.json`: for each file its seconds, and whether its tests start Python processes. `make test-times`
measures it anew. Tiers are markers: `pure` (starts no Python process), `process`, and `slow`, which tests are marked with by
hand. A pure test that starts a Python process fails. Workers of pytest-xdist take the longest files first, so that none is left
alone with a long file at the end. A file that was never measured is of the tier `process`; such files come first, those with the
most tests before the others.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_name("measured.json")
UNKNOWN = (float("inf"), True)

_running: list[pytest.Item] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", action="store_true", help="write each file's seconds and tier to tests/measured.json")


def configure(config: pytest.Config) -> None:
    """Watch for processes; with --measure, collect the figures in the process that hears of all workers."""
    sys.addaudithook(_note_process)
    if config.getoption("--measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured())


def measured() -> dict[str, tuple[float, bool]]:
    """{file: (seconds, whether its tests start Python processes)}"""
    return {file: (seconds, processes) for file, (seconds, processes) in json.loads(TABLE.read_text()).items()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    table = measured()
    for item in items:
        if item.get_closest_marker("slow") is None:
            item.add_marker("process" if table.get(file_of(item), UNKNOWN)[1] else "pure")
    if hasattr(config, "workerinput"):
        tests = Counter(map(file_of, items))
        items.sort(key=lambda item: (-table.get(file_of(item), UNKNOWN)[0], -tests[file_of(item)], file_of(item)))


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


def _note_process(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: note the Python processes that the running test starts, and refuse them to a pure one."""
    if not _running or not _starts_python(event, arguments):
        return
    item = _running[-1]
    if not any(name == "starts_processes" for name, _ in item.user_properties):
        item.user_properties.append(("starts_processes", True))
    if item.get_closest_marker("pure") and not item.config.getoption("--measure"):
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
        self.files: dict[str, tuple[float, bool]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "slow" in report.keywords:
            return
        file = report.nodeid.partition("::")[0]
        seconds, processes = self.files.get(file, (0.0, False))
        self.files[file] = (
            seconds + report.duration,
            processes or ("starts_processes", True) in report.user_properties,
        )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            return  # some files ran in part
        known = measured() if TABLE.exists() else {}
        known |= {file: (round(seconds, 1), processes) for file, (seconds, processes) in self.files.items()}
        there = {file: figures for file, figures in sorted(known.items()) if (TABLE.parents[1] / file).exists()}
        lines = ",\n".join(f"{json.dumps(file)}: {json.dumps(figures)}" for file, figures in there.items())
        TABLE.write_text(f"{{\n{lines}\n}}\n")
