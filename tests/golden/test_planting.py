"""What counts as found when a fault is planted: a test that fails, and no test that is not there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.golden.mutants import _imported
from tests.golden.planting import Fault, first_failure, planted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "answer.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "tests/test_it.py").write_text(
        "import answer\n\ndef test_first():\n    pass\n\ndef test_answer():\n    assert answer.answer() == 42\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    more\n    slow\n    nightly\n")
    return tmp_path


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ("return 42", ""),
        ("return 43", "tests/test_it.py::test_answer"),
        ("import os; os._exit(3)", "ends the process"),
        ("while True: pass", "hangs"),
        ("return return", "tests/test_it.py"),
    ],
)
def test_a_planted_fault_is_found_by_the_test_that_fails(project: Path, new: str, found: str) -> None:
    with planted(Fault("", "answer.py", "return 42", new, ""), project):
        # a busy machine takes longer than three seconds for pytest's own start
        patience = 3.0 if found == "hangs" else 120.0
        assert first_failure(["tests/test_it.py"], project, patience=patience) == found
    assert first_failure(["tests/test_it.py"], project) == ""


@pytest.mark.parametrize("test", ["tests/test_gone.py", "tests/test_it.py::test_gone"])
def test_a_test_that_is_not_there_finds_nothing(project: Path, test: str) -> None:
    assert first_failure([test], project) == ""


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ('shell.json("gc", "--dry-run")', ["flows/cli/store_commands.py"]),
        ('InProcessShell(folder)("freeze", "mine")', ["flows/cli/model/champion_commands.py"]),
        ('seen.add("run")', []),
        ('OWN = "trnflow.tasks.training.own_loss:imported"', ["tasks/training/own_loss.py"]),
        ('"see trnflow.tasks.training.own_loss"', []),
        ("import trnflow as tr", ["flows/python/recipe.py", "flows/python/run.py"]),
        ("from trnflow.tasks import train", ["tasks/__init__.py", "tasks/train.py"]),
    ],
)
def test_what_is_imported_by_its_name_is_found_too(code: str, files: list[str]) -> None:
    """Of modules of commands no test was found: `main` imports them by name."""
    found = [file for node in ast.walk(ast.parse(code)) for file in _imported(node) if not file.startswith("trnflow/")]
    assert sorted(found) == files
