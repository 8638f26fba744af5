"""Plant each fault of planted*.py and each drawn one of mutants.json in a temporary worktree, and run the tests that have to
find it.

    python -m tests.golden.faults [TEXT ...]   # those whose names hold one of the texts
    python -m tests.golden.faults --more       # those that `make test` does not find are looked for by `make test-more` too
    python -m tests.golden.faults --check      # only whether each fault's text still stands in its file

Exits with 1 if a fault is missed or no longer applies. At the end the tests that found one run on the unchanged code: one that
fails there found nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.golden import planted, planted_core, planted_elsewhere, planted_flows, planted_models, planting
from tests.golden.compare import PROJECT
from tests.golden.mutants import drawn_faults
from tests.golden.planting import FAST, MORE, Fault, checkout, first_failure, why_not


def every_fault() -> list[Fault]:
    files = (planted, planted_core, planted_elsewhere, planted_flows, planted_models)
    return [*(fault for file in files for fault in file.FAULTS), *drawn_faults()]


def look_for(fault: Fault, project: Path, *, more: bool) -> str:
    """Return the test that finds a fault, or ""."""
    tests = [f"tests/{name}" for name in fault.tests.split()]
    with planting.planted(fault, project):
        return first_failure(tests, project) or (first_failure(tests, project, marks=MORE) if more else "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults in the code, and see whether tests find them.")
    parser.add_argument("texts", nargs="*", help="plant the faults whose names hold one of these")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--check", action="store_true", help="plant nothing; say which no longer apply")
    parser.add_argument("--more", action="store_true", help="run the tests of `make test-more` too")
    options = parser.parse_args()
    wanted = [one for one in every_fault() if not options.texts or any(text in one.name for text in options.texts)]
    if options.check:
        stale = {one.name: why_not(one, PROJECT) for one in wanted}
        print(*(f"{name}: {why}" for name, why in stale.items() if why), sep="\n")
        return int(any(stale.values()))
    finders: dict[str, list[str]] = {}
    with checkout(options.commit) as project:
        for fault in wanted:
            begun, why = time.monotonic(), why_not(fault, project)
            finder = "" if why else look_for(fault, project, more=options.more)
            finders.setdefault(finder, []).append(fault.name)
            outcome = f"stale ({why})" if why else "found" if finder else "MISSED"
            print(f"{outcome:8} {time.monotonic() - begun:5.0f} s  {fault.name}  {finder}", flush=True)
        wrong = fails_anyway([*finders], project)
    missed = [*finders.pop("", []), *(name for test in wrong for name in finders[test])]
    print(*(f"{test} fails on the unchanged code too" for test in wrong), sep="\n")
    print(f"{len(wanted) - len(missed)} of {len(wanted)} found; not: {missed}")
    return int(bool(missed))


def fails_anyway(finders: list[str], project: Path) -> list[str]:
    """Return those of the tests that fail on the unchanged code."""
    tests = [test for test in finders if test.startswith("tests/")]
    wrong: list[str] = []
    while tests and (failed := first_failure(tests, project, marks=f"({FAST}) or ({MORE})")):
        if failed not in tests:
            return [*wrong, *tests]
        wrong.append(failed)
        tests.remove(failed)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
