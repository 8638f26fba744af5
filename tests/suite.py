"""How the suite is split: each test's tier, and the order in which workers take the files.

Tiers are markers. `make test` runs `pure` (starts no Python process, but what a session starts once) and
`process` (may start some). `make test-more` runs `more`
(of a file whose quick tests take QUICK_SECONDS or more and that is none of KEPT: it finds fewer faults a second) and `slow`
(SLOW_SECONDS or more, or marked by hand for a costly fixture; a test that is marked `process` by hand stays in `make test`
whatever it takes, for want of a cheaper proof). `nightly` is marked by hand: whole products of settings, for which samples are
in the other tiers. The others follow from `tests/measured.json` (tests/measuring.py); the tests of a slow fixture are all slow,
for left to the others, the fixture would be paid for in both tiers. `make test-times` measures it anew. In `make test-pure` a
pure test that starts a Python process fails; in the other targets the first test that needs a server starts it, whichever that
is. Workers of pytest-xdist take the longest files first, so that none is left alone with a long file at the end; with
`--order SEED` each seed has its own order.
Tests with the mark `xla` need torch_xla. Without it they are skipped, at most XLA_TESTS of them, or `--skips` of them: more is an
error, so that none is left out unnoticed.
With the variable TRNFLOW_TESTS_UNTIL, tests that have not begun by then are skipped, and said; the files' order is another each
day, so that none is always the last.
A file that was never measured is of the tier `process`; such files come first, those with the most tests before the others.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest

from tests.leaks import Leaks
from tests.measuring import File, Measured, Watch, measured

QUICK_SECONDS = 4.0
KEPT = (
    "evaluation/test_verdicts", "flows/authoring/test_new", "flows/cli/test_health", "flows/cli/test_main",
    "flows/cli/test_upkeep", "flows/rehearsal/test_rehearse", "flows/retraining/test_watch", "flows/runner/test_forecast",
    "flows/runner/test_runner", "flows/sweeps/test_bad_sweeps", "flows/translation/test_translation", "kinds/test_preference",
    "launch/test_local", "platforms/test_sagemaker", "store/test_collect", "store/test_lease",
)  # fmt: skip
"""Files that find many faults (tests/golden), and stay in `make test` although they take longer."""
XLA_TESTS = 206
UNTIL = "TRNFLOW_TESTS_UNTIL"
"""The variable with the time, in seconds since 1970, after which no test begins."""
OUT_OF_TIME = "no time was left to run it"
WITHOUT_LIMIT = pytest.mark.timeout(0)
WITHOUT_XLA = pytest.mark.skip(reason="needs torch_xla, which the environment of LOCK=native lacks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skips", type=int, default=XLA_TESTS, help="tests that may be skipped for want of torch_xla")
    parser.addoption("--measure", action="store_true", help="write what the tests take to tests/measured.json")
    parser.addoption("--order", type=int, metavar="SEED", help="run the files in an order drawn by a seed")


def configure(config: pytest.Config) -> None:
    """Watch for processes and leaks; with --measure, collect the figures in the process that hears of all workers."""
    config.pluginmanager.register(Watch())
    config.pluginmanager.register(Leaks())
    if until := os.environ.get(UNTIL):
        config.pluginmanager.register(Deadline(float(until)))
    if config.getoption("--measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured())


class Deadline:
    """Skips the tests that have not begun by a time, and says how many those are, also in .pytest_cache/not-run."""

    def __init__(self, until: float) -> None:
        self._until = until

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self._until:
            pytest.skip(OUT_OF_TIME)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        skipped = terminalreporter.stats.get("skipped", [])
        late = [report.nodeid for report in skipped if OUT_OF_TIME in str(report.longrepr)]
        if late:
            terminalreporter.write_line(f"NOT RUN for lack of time: {len(late)} tests")
            file = terminalreporter.config.rootpath / ".pytest_cache/not-run"
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{name}\n" for name in late))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    table = measured()
    for item in items:
        if not {"process", "more", "slow", "nightly"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker(tier(item, table.get(file_of(item), File())))
        if item.get_closest_marker("nightly"):
            item.add_marker(WITHOUT_LIMIT)
    if find_spec("torch_xla") is None:
        for item in filter(needs_xla, items):
            item.add_marker(WITHOUT_XLA)
    seed = config.getoption("order")
    if seed is None and UNTIL in os.environ:
        seed = int(float(os.environ[UNTIL])) // 86400
    if seed is not None:
        places = {file: random.Random(f"{seed} {file}").random() for file in map(file_of, items)}
        items.sort(key=lambda item: places[file_of(item)])
    elif hasattr(config, "workerinput"):
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
    if not is_quick(file_of(item), file):
        return "more"
    return "process" if file.processes else "pure"


def is_quick(name: str, file: File) -> bool:
    """Tell whether a file's quick tests are of `make test`."""
    return (
        file.seconds < QUICK_SECONDS
        or file.seconds == float("inf")
        or name.removeprefix("tests/").removesuffix(".py") in KEPT
    )


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
