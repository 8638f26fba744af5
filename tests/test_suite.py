"""Tiers and order of the tests, in a small suite of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import suite

CONFTEST = """
from tests import suite
from tests.suite import *

def pytest_configure(config):
    for tier in ("pure", "process", "slow", "nightly", "xla"):
        config.addinivalue_line("markers", tier)
    suite.configure(config)
"""
STARTS = "import subprocess, sys\n\ndef test_starts():\n    subprocess.run([sys.executable, '-c', ''], check=True)\n"


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def test_a_pure_test_starts_no_process_and_measuring_finds_which_do(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(suite.__file__, tests)
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_quick.py").write_text("def test_quick():\n    pass\n")
    (tests / "test_starts.py").write_text(STARTS)
    table = tests / "measured.json"
    table.write_text(json.dumps({f"tests/test_{name}.py": [0.1, False, []] for name in ("quick", "starts", "gone")}))
    refused = run(tmp_path, "-m", "pure")
    assert "1 failed, 1 passed" in refused and "is of the tier pure, and starts a process" in refused
    assert "2 passed" in run(tmp_path, "--measure")
    found = json.loads(table.read_text())
    assert {file: processes for file, (_, processes, _) in found.items()} == {
        "tests/test_quick.py": False,
        "tests/test_starts.py": True,
    }
    table.write_text(json.dumps({"tests/test_quick.py": [1.0, False, []], "tests/test_starts.py": [9.0, True, []]}))
    assert "1 passed, 1 deselected" in run(tmp_path, "-m", "pure")
    order = run(tmp_path, "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder")
    assert order.index("test_starts.py::test_starts") < order.index("test_quick.py::test_quick")
    table.write_text(json.dumps({"tests/test_quick.py": [0.0, False, ["test_quick"]]}))
    assert "test_quick.py::test_quick" in run(tmp_path, "-m", "slow") and "1 deselected" in run(tmp_path, "-m", "slow")


def test_the_tests_of_a_slow_fixture_are_slow_whichever_is_the_first_to_use_it(request: pytest.FixtureRequest) -> None:
    found = suite.Measured()
    found.tests = {"tests/test_a.py": {"test_first": 9.0, "test_next": 0.1}}
    found.fixtures = {"tests/test_a.py": {"trained"}}
    file = found._file("tests/test_a.py")
    assert file == suite.File(0.1, False, ("trained", "test_first"))
    assert suite.tier(request.node, file) == "pure"
    request.node.fixturenames.append("trained")
    assert suite.tier(request.node, file) == "slow"


def test_a_test_that_took_long_is_measured_as_slow() -> None:
    found = suite.Measured()
    found.tests = {"tests/test_a.py": {"test_quick": 1.0, "test_long[1-a]": suite.SLOW_SECONDS}}
    assert found._file("tests/test_a.py") == suite.File(1.0, False, ("test_long[1-a]",))


def test_what_needs_torch_xla_is_skipped_without_it_and_no_more_than_allowed(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(suite.__file__, tests)
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(f"{CONFTEST}\n\nsuite.find_spec = lambda name: None\n")
    (tests / "measured.json").write_text("{}")
    (tests / "test_two.py").write_text(
        "import pytest\n\n\n@pytest.mark.xla\ndef test_graph():\n    1 / 0\n\n\ndef test_plain():\n    pass\n"
    )
    assert "1 passed, 1 skipped" in run(tmp_path)
    assert "needs torch_xla" in run(tmp_path, "-rs")
    assert "1 passed" in run(tmp_path, "--skips", "0", "-k", "plain")
    refused = subprocess.run(
        [sys.executable, "-m", "pytest", "--skips", "0"], cwd=tmp_path, capture_output=True, text=True
    )
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "1 of these tests need torch_xla, and at most 0 may be skipped" in refused.stderr
