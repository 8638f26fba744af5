"""Plant each fault of planted.py in a temporary worktree and run the fast tests that have to find it.

    python -m tests.golden.faults [TEXT ...]   # those whose names hold one of the texts
    python -m tests.golden.faults --check      # only whether each fault's text still stands in its file

Exits with 1 if a fault is missed or no longer applies. First the tests run on the unchanged code: a test that fails there
finds nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.golden.compare import PROJECT, worktree
from tests.golden.planted import FAULTS, Fault


def why_not(fault: Fault, project: Path) -> str:
    """Return why a fault can't be planted in a project, or ""."""
    path = project / fault.file
    if not path.is_file():
        return f"there is no {fault.file}"
    count = path.read_text().count(fault.old)
    missing = [name for name in fault.tests.split() if not (project / "tests" / name).exists()]
    return (
        f"its text stands in {fault.file} {count} times" if count != 1 else f"no {missing}" * bool(missing)
    )  # fmt: skip


def plant(fault: Fault, project: Path) -> bool:
    """Plant a fault, run its tests, take it out again; return whether a test failed."""
    path = project / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        return run_tests(fault.tests.split(), project) == 1
    finally:
        path.write_text(text)


def run_tests(names: list[str], project: Path) -> int:
    """Run fast tests up to the first that fails; return pytest's exit code: 1 when a test failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    # bytecode would be looked up by size and second, and a fault may have its original's
    environ = os.environ | {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in names)], cwd=project, env=environ, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        print(done.stdout[-3000:], done.stderr[-1000:], file=sys.stderr)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults in the code, and see whether tests find them.")
    parser.add_argument("texts", nargs="*", help="plant the faults whose names hold one of these")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--check", action="store_true", help="plant nothing; say which no longer apply")
    parser.add_argument("--no-first", action="store_true", help="do not run the tests on the unchanged code first")
    options = parser.parse_args()
    wanted = [one for one in FAULTS if not options.texts or any(text in one.name for text in options.texts)]
    if options.check:
        stale = {one.name: why_not(one, PROJECT) for one in wanted}
        print(*(f"{name}: {why}" for name, why in stale.items() if why), sep="\n")
        return int(any(stale.values()))
    with worktree(options.commit) as project:
        if (PROJECT.parent / "shared").exists():  # data of tests lies beside the checkout
            (project.parent / "shared").symlink_to((PROJECT.parent / "shared").resolve())
        every = sorted({name for one in wanted for name in one.tests.split()})
        if not options.no_first and run_tests(every, project):
            print("the tests fail on the unchanged code")
            return 1
        missed = 0
        for fault in wanted:
            begun, why = time.monotonic(), why_not(fault, project)
            outcome = f"stale ({why})" if why else "found" if plant(fault, project) else "MISSED"
            missed += outcome != "found"
            print(f"{outcome:8} {time.monotonic() - begun:5.0f} s  {fault.name}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
