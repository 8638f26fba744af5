from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from trnflow.tasks.keys.code_closure import closure, code_hash
from trnflow.tasks.keys.hash_cache import Memo


def hashed(source: str) -> str:
    return code_hash(ast.parse(source))


def test_comments_docstrings_and_positions_do_not_count() -> None:
    plain = "def f(x):\n    return x + 1\n"
    dressed = '"""Module."""\n\n\n# why\ndef f(x):\n    """Doc."""\n    # because\n    return (x +\n      1)\n'
    assert hashed(plain) == hashed(dressed)
    assert hashed(plain) != hashed("def f(x):\n    return x + 2\n")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """house.stage imports house.helper inside a function, which imports house.deep."""
    folder = tmp_path / "house"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "stage.py").write_text(
        "def run():\n    from house.helper import help\n    import numpy\n    return help()\n"
    )
    (folder / "helper.py").write_text("from house import deep\n\ndef help():\n    return deep.VALUE\n")
    (folder / "deep.py").write_text("VALUE = 1\n")
    (folder / "unrelated.py").write_text("OTHER = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "house"]:
        del sys.modules[name]


def test_the_closure_is_transitive_and_counts_no_more(package: Path, tmp_path: Path) -> None:
    code, env = closure("house.stage", Memo(tmp_path / "memo.db"))
    assert set(code) == {"house", "house.stage", "house.helper", "house.deep"}
    assert "numpy" in env
    assert "torch" not in env


def test_an_edit_two_imports_below_changes_that_module_only(package: Path, tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.db")
    before, _ = closure("house.stage", memo)
    (package / "deep.py").write_text("VALUE = 2\n")
    (package / "unrelated.py").write_text("OTHER = 2\n")
    (package / "helper.py").write_text("# a comment\nfrom house import deep\n\ndef help():\n    return deep.VALUE\n")
    after, _ = closure("house.stage", memo)
    assert {name for name in before if before[name] != after[name]} == {"house.deep"}


def test_a_package_counts_before_a_file_of_the_same_name(package: Path, tmp_path: Path) -> None:
    """Python imports the package, so the file's code can't matter and that of the package's modules does."""
    (package / "deep").mkdir()
    (package / "deep/__init__.py").write_text("VALUE = 3\n")
    (package / "deep/inner.py").write_text("NUMBER = 4\n")
    (package / "helper.py").write_text("from house import deep\nfrom house.deep.inner import NUMBER\n")
    code, _ = closure("house.stage", Memo(tmp_path / "memo.db"))
    assert code["house.deep"] == hashed("VALUE = 3\n")
    assert code["house.deep.inner"] == hashed("NUMBER = 4\n")


def test_plumbing_counts_by_its_schema(tmp_path: Path) -> None:
    code, _ = closure("trnflow.tasks.keys.explain", Memo(tmp_path / "memo.db"))
    assert code["trnflow.tasks.artifact"] == "schema:1"
    assert code["trnflow.tasks.keys.explain"].startswith("sha256:")
