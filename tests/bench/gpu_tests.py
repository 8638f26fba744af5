"""Run engine native's tests on a GPU, six at a time, and write down each test's outcome as it ends."""

from __future__ import annotations

import argparse
import time
from collections import Counter

import pytest

from tests.bench.gpu_results import Results, add_options, results_of
from tests.conftest import PROJECT

FILE = "test_cuda.py"
AT_ONCE = "6"


class Outcomes:
    """A plugin of pytest; it gets the reports of all of xdist's workers."""

    def __init__(self, results: Results) -> None:
        self._results, self.counts = results, Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
            why = {"failed": str(report.longrepr)[-600:]} if report.failed else {}
            name = report.nodeid.rpartition("::")[2]
            self._results.add(name, report.outcome, wall=round(report.duration, 1), **why)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, cases=[FILE], ways=["trnflow"])
    arguments = parser.parse_args()
    with results_of(arguments) as results:
        outcomes, begun = Outcomes(results), time.monotonic()
        command = [str(PROJECT / "tests/training/native" / FILE), "-n", "0" if arguments.toy else AT_ONCE, "-m", ""]
        status = pytest.main([*command, "-p", "no:cacheprovider"], [outcomes])
        passed, failed, skipped = (outcomes.counts[name] for name in ("passed", "failed", "skipped"))
        unit = f"tests passed, {failed} failed, {skipped} skipped"
        results.add(FILE, "trnflow", rate=passed, unit=unit, wall=round(time.monotonic() - begun, 1))
        return int(status)


if __name__ == "__main__":
    raise SystemExit(main())
