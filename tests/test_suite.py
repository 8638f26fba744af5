"""Tiers and order of the tests, in a small suite of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import leaks, measuring, suite
from tests.words import PROJECT

CONFTEST = """
from tests import leaks, measuring, suite
from tests.suite import *

def pytest_configure(config):
    for tier in ("pure", "process", "more", "slow", "nightly", "xla"):
        config.addinivalue_line("markers", tier)
    suite.configure(config)
"""
STARTS = "import subprocess, sys\n\ndef test_starts():\n    subprocess.run([sys.executable, '-c', ''], check=True)\n"
WHOLE = """
import json

def test_runs(tmp_path):
    (tmp_path / "store/runs").mkdir(parents=True)
    for name, actions in {"whole": ["ran"] * 6, "hits": ["hit"] * 9}.items():
        document = {"stages": [{"action": action} for action in actions]}
        (tmp_path / f"store/runs/{name}.json").write_text(json.dumps(document))
    (tmp_path / "store/runs/damaged.json").write_text("{")
"""
LEAKS = """
import os, pytest, signal

@pytest.fixture(scope="module")
def kept():
    os.environ["KEPT"] = "1"

@pytest.fixture(scope="module")
def restored():
    os.environ["RESTORED"] = "1"
    yield
    del os.environ["RESTORED"]

def test_variable():
    os.environ["LEFT"] = "1"

def test_next_sees_nothing_of_it(restored):
    assert "LEFT" not in os.environ

def test_folder(tmp_path):
    os.chdir(tmp_path)

def test_handler():
    signal.signal(signal.SIGTERM, lambda *_: None)

def test_undone(monkeypatch, tmp_path):
    monkeypatch.setenv("LEFT", "1")
    monkeypatch.chdir(tmp_path)

def test_fixture(kept):
    assert os.environ["RESTORED"] == "1"

def test_last():
    pass
"""


def run(folder: Path, *arguments: str, **environ: str) -> str:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    # as from a shell: the clock of `.ci/run` would draw another order
    environ = {name: value for name, value in os.environ.items() if name != suite.UNTIL} | environ
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True).stdout


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with a suite of no tests, in which this one's plugins are at work."""
    tests = tmp_path / "tests"
    tests.mkdir()
    for module in (suite, leaks, measuring):
        shutil.copy(str(module.__file__), tests)
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "measured.json").write_text("{}")
    return tmp_path


def write_table(folder: Path, **files: dict[str, Any]) -> None:
    table = {f"tests/test_{name}.py": figures for name, figures in files.items()}
    (folder / "tests/measured.json").write_text(json.dumps(table))


def test_a_pure_test_starts_no_process_and_measuring_finds_what_each_starts(small: Path) -> None:
    for name, text in {"quick": "def test_quick():\n    pass\n", "starts": STARTS, "runs": WHOLE}.items():
        (small / f"tests/test_{name}.py").write_text(text)
    write_table(small, quick={"seconds": 0.1}, starts={"seconds": 0.1}, runs={"seconds": 0.1}, gone={"seconds": 0.1})
    refused = run(small, "-m", "pure")
    assert "1 failed, 2 passed" in refused and "is of the tier pure, and starts a process" in refused
    assert "3 passed" in run(small, "--measure")
    found = measured_in(small)
    started = {
        name: {key: n for key, n in file.items() if not key.startswith(("s", "processor"))}
        for name, file in found.items()
    }
    assert started == {
        "tests/test_quick.py": {},
        "tests/test_starts.py": {"processes": 1},
        "tests/test_runs.py": {"whole_runs": 1},
    }
    assert "2 passed, 1 deselected" in run(small, "-m", "pure")


def test_the_longest_file_comes_first_or_each_seed_has_its_order(small: Path) -> None:
    for name in "abcde":
        (small / f"tests/test_{name}.py").write_text("def test_it():\n    pass\n")
    write_table(small, a={"seconds": 1.0}, b={"seconds": 9.0}, **{name: {"seconds": 0.0} for name in "cde"})

    def order(*arguments: str) -> str:
        output = run(small, "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", *arguments)
        return "".join(line.partition("tests/test_")[2][0] for line in output.splitlines() if "PASSED" in line)

    assert order()[:2] == "ba"
    assert (
        order("--order", "1") == order("--order", "1") and len({order("--order", str(seed)) for seed in range(4)}) > 1
    )


def test_a_test_measured_as_slow_is_run_as_slow(small: Path) -> None:
    (small / "tests/test_two.py").write_text("def test_one():\n    pass\n\n\ndef test_other():\n    pass\n")
    write_table(small, two={"seconds": 0.0, "slow": {"test_one": [6.0, 7.0]}})
    output = run(small, "-m", "slow")
    assert "test_two.py::test_one PASSED" in output and "1 deselected" in output


def test_files_that_take_long_are_left_to_more_tests_but_the_kept_ones(request: pytest.FixtureRequest) -> None:
    long = measuring.File(suite.QUICK_SECONDS, processes=0)
    assert suite.tier(request.node, long) == "more"
    assert suite.tier(request.node, replace(long, seconds=3.9)) == "pure"
    assert suite.tier(request.node, measuring.File()) == "process"


def test_what_a_test_leaves_changed_fails_it_and_is_taken_back(small: Path) -> None:
    (small / "tests/test_left.py").write_text(LEAKS)
    output = run(small)
    failed = {
        line.partition("::")[2].partition(" ")[0] for line in output.splitlines() if line.startswith("ERROR tests")
    }
    assert failed == {"test_variable", "test_folder", "test_handler", "test_last"}
    assert "{'LEFT': '1'}" in output and "{'KEPT': '1'}" in output and "7 passed, 4 errors" in output


def test_the_tests_of_a_slow_fixture_are_slow_whichever_is_the_first_to_use_it(request: pytest.FixtureRequest) -> None:
    found = measuring.Measured()
    found.tests["tests/test_a.py"] = {"test_first": (9.0, 8.0), "test_next": (0.1, 0.2), "test_more": (0.2, 0.1)}
    found.fixtures["tests/test_a.py"] = {"trained": (8.5, 7.5)}
    file = found._file("tests/test_a.py")
    assert file.slow == {"trained": (8.5, 7.5), "test_first": (9.0, 8.0)}
    assert (file.seconds, file.processor, file.processes) == (0.3, 0.3, 0)
    assert suite.tier(request.node, file) == "pure"
    request.node.fixturenames.append("trained")
    assert suite.tier(request.node, file) == "slow"


def test_each_slow_fixture_of_a_test_is_known(small: Path) -> None:
    text = (small / "tests/measuring.py").read_text()
    (small / "tests/measuring.py").write_text(text.replace("SLOW_SECONDS = 5.0", "SLOW_SECONDS = 0.1"))
    fixture = '@pytest.fixture(scope="module")\ndef {}():\n    time.sleep(0.2)\n\n\n'
    test = "def test_both(first, second):\n    pass\n\n\ndef test_next(first):\n    pass\n"
    (small / "tests/test_two.py").write_text(
        f"import time\n\nimport pytest\n\n\n{fixture.format('first')}{fixture.format('second')}{test}"
    )
    assert "2 passed" in run(small, "--measure")
    assert {*measured_in(small)["tests/test_two.py"]["slow"]} == {"first", "second", "test_both"}
    assert "2 passed" in run(small, "-m", "slow")


def measured_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tests/measured.json").read_text())
    return found


def test_a_folder_that_takes_a_fifth_more_than_its_budget_is_named() -> None:
    files = {
        "tests/a/test_a.py": measuring.File(10.0, slow={"test_a": (20.0, 1.0)}),
        "tests/a/b/test_b.py": measuring.File(13.0),
        "tests/test_c.py": measuring.File(1.0),
    }
    assert measuring.seconds_by_folder(files) == {"a": (23.0, 20.0), ".": (1.0, 0.0)}
    assert measuring.over_budget(files, {"a": (20.0, 20.0), ".": (1.0, 0.0)}) == []
    (line,) = measuring.over_budget(files, {"a": (18.0, 20.0), ".": (1.0, 0.0)})
    assert line == "tests/a: quick tests take 23 s, and their budget is 18 s (tests/budgets.json)"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with `.ci/run`, and programs that do as if: no test fails, and each installs Slurm."""
    for folder in (".ci", "shared/data", "bin", ".venv/bin", ".pytest_cache/v/cache"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(PROJECT / ".ci/run", tmp_path / ".ci")
    # the machine's own sbatch must not be seen
    for name in ("bash", "sh", "cat", "date", "dirname", "mkdir", "rm", "wc"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    programs = {
        "make": "echo $* without=$TRNFLOW_NO_SLURM >> made",
        "id": "echo 0",
        "apt-get": "echo apt-get $*",
        # pyenv's python3 is a script that needs the rest of the PATH
        "python3": f'exec {sys.executable} "$@"',
    }
    for name, body in programs.items():
        write_program(tmp_path / "bin" / name, body)
    return tmp_path


def write_program(file: Path, body: str) -> None:
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


def run_ci(folder: Path) -> str:
    environ = {"TRNFLOW_SHARED": str(folder / "shared"), "PATH": str(folder / "bin")}
    done = subprocess.run([folder / ".ci/run"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_failed_at_first_is_said_last(checkout: Path) -> None:
    """`.ci/run` with a `make` whose tests fail once."""
    (checkout / ".pytest_cache/v/cache/lastfailed").write_text('{"tests/test_a.py::test_b": true}')
    write_program(checkout / "bin/make", '[ "$*" != "-o check test" ]')
    write_program(checkout / ".venv/bin/pytest", "echo 1 passed")
    output = run_ci(checkout)
    assert "1 passed" in output
    assert re.search(
        r"\ntook Slurm \d+ s, check \d+ s, test \d+ s, test-native \d+ s, test-more \d+ s, then \d+ s\nfailed at first:\n",
        output,
    )
    assert output.endswith("failed at first:\ntests/test_a.py::test_b\n")
    assert (checkout / ".pytest_cache/failed-at-first").read_text() == "tests/test_a.py::test_b\n"


def test_tests_for_which_no_time_was_left_are_said_and_counted(checkout: Path, small: Path) -> None:
    names = "".join(f"def test_{name}():\n    pass\n\n" for name in ("first", "second"))
    (small / "tests/test_two.py").write_text(names)
    assert "2 passed" in run(small, TRNFLOW_TESTS_UNTIL=str(time.time() + 600))
    late = run(small, TRNFLOW_TESTS_UNTIL=str(time.time() - 1))
    assert "NOT RUN for lack of time: 2 tests" in late and "2 skipped" in late
    assert len((small / ".pytest_cache/not-run").read_text().splitlines()) == 2
    write_program(
        checkout / "bin/make",
        '[ "$1" != test-more ] || echo "$TRNFLOW_TESTS_UNTIL" > until; echo a > .pytest_cache/not-run',
    )
    assert run_ci(checkout).endswith("NOT RUN for lack of time: 1 tests\n")
    assert 4400 < float((checkout / "until").read_text()) - time.time() <= 4500


def test_slurm_is_installed_before_the_tests_where_it_is_missing(checkout: Path) -> None:
    installs = "install -y --no-install-recommends -o Acquire::http::Timeout=20 slurm-wlm munge"
    assert run_ci(checkout).startswith("took ")
    assert (checkout / ".pytest_cache/slurm-installed").read_text() == f"apt-get {installs}\n"
    assert (checkout / "made").read_text().splitlines()[0] == "check without="
    write_program(checkout / "bin/sbatch", "")
    write_program(checkout / "bin/apt-get", "touch called")
    assert run_ci(checkout).startswith("took ") and not (checkout / "called").exists()


@pytest.mark.parametrize(("program", "body"), [("apt-get", "echo no network; exit 100"), ("id", "echo 1000")])
def test_that_slurm_can_not_be_installed_is_said_and_its_tests_are_skipped(
    checkout: Path, program: str, body: str
) -> None:
    write_program(checkout / "bin" / program, body)
    output = run_ci(checkout)
    # at first and at last
    assert output.count("NO SLURM: its tests are SKIPPED") == 2
    assert {line.split()[-1] for line in (checkout / "made").read_text().splitlines()} == {"without=1"}


def test_what_needs_torch_xla_is_skipped_without_it_and_no_more_than_allowed(small: Path) -> None:
    (small / "tests/conftest.py").write_text(f"{CONFTEST}\n\nsuite.find_spec = lambda name: None\n")
    (small / "tests/test_two.py").write_text(
        "import pytest\n\n\n@pytest.mark.xla\ndef test_graph():\n    1 / 0\n\n\ndef test_plain():\n    pass\n"
    )
    assert "1 passed, 1 skipped" in run(small)
    assert "needs torch_xla" in run(small, "-rs")
    assert "1 passed" in run(small, "--skips", "0", "-k", "plain")
    refused = subprocess.run(
        [sys.executable, "-m", "pytest", "--skips", "0"], cwd=small, capture_output=True, text=True
    )
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "1 of these tests need torch_xla, and at most 0 may be skipped" in refused.stderr
