"""Change a checkout's code for a moment, and see which test fails: what `faults` and `mutants` share.

Tests run in a forked child of a process that has imported the large libraries: importing them took longer than most tests.
A changed program may remove any file and signal any process of its user: run this in a container, or below
`unshare --pid --fork --mount-proc`.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.golden.compare import PROJECT, worktree

LIBRARIES = ("torch", "transformers.modeling_utils", "datasets", "pandas", "sklearn.metrics", "scipy.stats")
FAST = "not more and not slow and not nightly"
"""The tests of `make test`."""
MORE = "(more or slow) and not nightly"
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+\.py(?:::\w+)*(?:\[.*?\])?)(?= - |$)", re.MULTILINE)


class Fault(NamedTuple):
    """A fault.

    Attributes:
        name: its subject and what is wrong.
        file: the module, relative to the project.
        old: text that stands in the module exactly once.
        new: what replaces it.
        tests: files and folders below tests/, at least one test of which has to fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


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


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A checkout of a commit with the data of tests beside it, for tests that `first_failure` runs."""
    # torch reads it on import, as tests/conftest.py says
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in LIBRARIES:
        importlib.import_module(name)
    with worktree(commit) as project:
        if (PROJECT.parent / "shared").exists():
            (project.parent / "shared").symlink_to((PROJECT.parent / "shared").resolve())
        if (PROJECT / ".clients").exists():
            (project / ".clients").symlink_to(PROJECT / ".clients")
        yield project


@contextmanager
def planted(fault: Fault, project: Path) -> Iterator[None]:
    path = project / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(text)


def first_failure(tests: Sequence[str], project: Path, *, marks: str = FAST, patience: float = 600.0) -> str:
    """Return the id of the first test that fails, "hangs" or "ends the process" if none reports it, or "": also where there is
    no such test.

    Args:
        tests: files, folders and ids, relative to the project.
        marks: an expression of pytest's option -m.
        patience: seconds after which the tests are killed.
    """
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marks]
    with tempfile.TemporaryFile("w+") as output:
        if (pid := os.fork()) == 0:
            _become_pytest([*options, *tests], project, output.fileno())
        code = _wait(pid, patience)
        output.seek(0)
        printed = output.read()
    # 5: no test has these marks; 4: also a conftest that can't be imported
    if code in (0, 5) or (code == 4 and "not found: " in printed):
        return ""
    if code is None:
        return "hangs"
    found = FAILED.search(printed)
    return found[1] if found else "ends the process"


def _become_pytest(arguments: list[str], project: Path, output: int) -> None:
    try:
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(descriptor, "w") for descriptor in (1, 2))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(project)
        # bytecode would be looked up by size and second, and a fault may have its original's
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[:] = [str(project), *(part for part in sys.path if part and Path(part).resolve() != PROJECT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "trnflow")]:
            del sys.modules[name]
        import pytest

        code = int(pytest.main(arguments))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    except BaseException:
        os._exit(70)


def _wait(pid: int, patience: float) -> int | None:
    """Return the child's exit code, or None if it was killed for taking longer than the patience."""
    until, done, status = time.monotonic() + patience, 0, 0
    while not done and time.monotonic() < until:
        time.sleep(0.02)
        done, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # also what its tests left
    if done:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(pid, 0)
    return None
