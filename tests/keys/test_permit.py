"""What a permit refuses, and when the audit sees it: the same as `test_file_audit`, without a stage."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.file_audit import Permit, watch_process


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project below a hidden folder, with a module, a file and hidden folders of its own."""
    folder = tmp_path / ".work/project"
    for name in ("house/a.py", "house/__pycache__/a.pyc", "rows.csv", ".venv/b.py", ".git/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1\n")
    return folder


def permit_of(root: Path, *known: str) -> Permit:
    files = frozenset(str(root / name) for name in known)
    return Permit("train", ((f"{root}/", f"{root}/"),), files, (), {})


def test_of_a_project_below_a_hidden_folder_hidden_is_what_is_hidden_in_the_project(root: Path) -> None:
    permit = permit_of(root, "rows.csv")
    names = ("house/a.py", "rows.csv", ".venv/b.py", ".git/config", "house/__pycache__/a.pyc", "house/none.py")
    assert [permit.refused(str(root / name)) for name in names] == ["house/a.py", None, None, None, None, None]


@pytest.mark.parametrize(
    ("mode", "refused"), [("r", True), ("rb", True), ("r+", True), ("a+", True), ("w", False), ("a", False)]
)
def test_a_file_that_is_only_written_is_not_read(root: Path, mode: str, refused: bool) -> None:
    def opens() -> None:
        with watch_process(permit_of(root)):
            (root / "rows.csv").open(mode).close()

    if refused:
        with pytest.raises(CodeError, match="train read rows.csv, and its key does not know that file"):
            opens()
    else:
        opens()


def test_a_module_that_was_there_before_is_looked_at_in_the_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("house_of_before")
    module.__file__ = str(root / "house/a.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(CodeError, match="train used house/a.py"), watch_process(permit_of(root)):
        pass
    with watch_process(permit_of(root, "house/a.py")):
        pass
