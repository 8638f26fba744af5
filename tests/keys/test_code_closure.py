from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.code_closure import closure, closure_files
from trnflow.tasks.keys.code_hash import code_hash
from trnflow.tasks.keys.distributions import distributions_of
from trnflow.tasks.keys.hash_cache import Memo, stamp


def hashed(source: str) -> str:
    return code_hash(ast.parse(source))


def test_comments_docstrings_and_positions_do_not_count() -> None:
    plain = "def f(x):\n    return x + 1\n"
    dressed = '"""Module."""\n\n\n# why\ndef f(x):\n    """Doc."""\n    # because\n    return (x +\n      1)\n'
    assert hashed(plain) == hashed(dressed)
    assert hashed(plain) != hashed("def f(x):\n    return x + 2\n")


RAISE = """
def read(name, found, why):
    if found is None:
        raise {call}
    return DataError("kept", "kept")
"""
CALL = 'DataError("{0}", f"{0}{{name}}{0}{{found.rows:.2f}}", fix=f"{0}" + why, *["{0}", {{"at": "{0}"}}], at=where("{0}", name))'
WORDS = st.text(st.characters(whitelist_categories=("L", "N", "Zs"), max_codepoint=0x17F), max_size=20)


def test_marks_that_say_who_may_set_a_setting_do_not_count_and_others_do() -> None:
    text = "from trnflow.tasks.config import NOT_KEYED{}\nclass A:\n    a: Annotated[str | None, NOT_KEYED{}] = {}\n"
    before = hashed(text.format("", "", "None"))
    assert hashed(text.format(", RUNS_CODE, SOURCE", ", SOURCE, RUNS_CODE", "None")) == before
    assert hashed(text.format(", WHEN_SET", ", WHEN_SET", "None")) != before != hashed(text.format("", "", "SOURCE"))


@given(WORDS, WORDS)
def test_the_texts_of_a_raise_do_not_count(before: str, after: str) -> None:
    assert hashed(RAISE.format(call=CALL.format(before))) == hashed(RAISE.format(call=CALL.format(after)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('DataError("no rows")', 'DataError("no rows", "give some")'),
        ('DataError(f"{name} is empty")', 'DataError(f"the file {name} has no rows")'),
        ('DataError("it is " "empty")', 'DataError(f"it is empty")'),
        ('DataError(f"{name}: {why}")', 'DataError(f"{name} {why}", f"repair it")'),
        ('DataError("{} of {}".format(name, why))', 'DataError("{} is of {}".format(name, why))'),
        ('DataError("a" if found else "b")', 'DataError("c" if found else "d")'),
        ('DataError("a").with_traceback(why)', 'DataError("b").with_traceback(why)'),
    ],
)
def test_an_error_can_be_worded_better(before: str, after: str) -> None:
    assert hashed(RAISE.format(call=before)) == hashed(RAISE.format(call=after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('DataError(f"{name}")', 'DataError(f"{found}")'),
        ('DataError(f"{name}")', 'DataError(f"{name!r}")'),
        ('DataError(f"{name:.1f}")', 'DataError(f"{name:.2f}")'),
        ('DataError(f"{name}")', 'DataError(f"{name}{found}")'),
        ("""DataError(f"{found['a']}")""", """DataError(f"{found['b']}")"""),
        ('DataError("row " + found["a"])', 'DataError("row " + found["b"])'),
        ('DataError("a" if name == "x" else "b")', 'DataError("a" if name == "y" else "b")'),
        ('DataError("no rows")', 'ConfigError("no rows")'),
        ('DataError("no rows", 1)', 'DataError("no rows", 2)'),
        ('DataError(b"no rows")', 'DataError(b"no row")'),
        ('KINDS["a"]("no rows")', 'KINDS["b"]("no rows")'),
        ('DataError("no rows") from KeyError("a")', 'DataError("no rows") from KeyError("b")'),
    ],
)
def test_what_a_raise_formats_in_counts(before: str, after: str) -> None:
    assert hashed(RAISE.format(call=before)) != hashed(RAISE.format(call=after))


OTHERS = """
LABEL = "{0}"
def read(name, by="{1}"):
    found = DataError("{2}")
    assert name, "{3}"
    if name == "{4}":
        return DataError("{5}", f"{6}{{name}}")
    raise found
"""


@given(WORDS, WORDS, st.integers(0, 6))
def test_every_other_string_counts(before: str, after: str, at: int) -> None:
    old, new = (hashed(OTHERS.format(*(word if n == at else "same" for n in range(7)))) for word in (before, after))
    assert (old == new) is (before == after)


def test_a_hash_that_an_earlier_release_remembered_is_not_believed(package: Path, tmp_path: Path) -> None:
    memo, file = Memo(tmp_path / "memo.db"), package / "deep.py"
    memo.put("code", file, stamp(file), {"hash": "sha256:old", "imports": [], "foreign": []})
    assert closure("house.stage", memo)[0]["house.deep"] == hashed("VALUE = 1\n")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_a_closure_without_the_module_itself_is_an_error(package: Path, tmp_path: Path) -> None:
    """A module made by a program, or renamed since it was imported, has no file that a key could hash."""
    for name in ("house.gone", "house.stage.inner"):
        with pytest.raises(CodeError, match=f"the code of {name} is not in its key: {tmp_path} has no file") as caught:
            closure(name, Memo(tmp_path / "memo.db"))
        assert "move the stage into a file of its package" in caught.value.fix


def test_a_folder_of_the_package_may_be_a_link(package: Path, tmp_path: Path) -> None:
    """As in a checkout whose package holds links to its folders: code and names are those of an installed package."""
    rooms = package / "rooms"
    rooms.mkdir()
    (rooms / "__init__.py").write_text("")
    (rooms / "stage.py").write_text("from house.rooms import helper\n")
    (rooms / "helper.py").write_text("VALUE = 1\n")
    installed = closure("house.rooms.stage", Memo(tmp_path / "one.db"))
    rooms.rename(tmp_path / "rooms")
    rooms.symlink_to("../rooms")
    assert closure("house.rooms.stage", Memo(tmp_path / "other.db")) == installed
    assert set(installed[0]) == {"house", "house.rooms", "house.rooms.stage", "house.rooms.helper"}
    assert closure_files("house.rooms.stage", Memo(tmp_path / "other.db"))["house.rooms.helper"] == f"{rooms}/helper.py"


def test_a_package_counts_before_a_file_of_the_same_name(package: Path, tmp_path: Path) -> None:
    """Python imports the package, so the file's code can't matter and that of the package's modules does."""
    (package / "deep").mkdir()
    (package / "deep/__init__.py").write_text("VALUE = 3\n")
    (package / "deep/inner.py").write_text("NUMBER = 4\n")
    (package / "helper.py").write_text("from house import deep\nfrom house.deep.inner import NUMBER\n")
    code, _ = closure("house.stage", Memo(tmp_path / "memo.db"))
    assert code["house.deep"] == hashed("VALUE = 3\n")
    assert code["house.deep.inner"] == hashed("NUMBER = 4\n")


def test_a_closure_that_is_remembered_sees_files_that_come_and_go(package: Path, tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.db")
    (package / "helper.py").write_text("from house import deep\nfrom house.rooms import side\n")
    before = closure("house.stage", memo)
    (package / "rooms").mkdir()
    (package / "rooms/side.py").write_text("VALUE = 5\n")
    appeared, _ = closure("house.stage", memo)
    assert appeared == before[0] | {"house.rooms.side": hashed("VALUE = 5\n")}
    (package / "deep").mkdir()
    closure("house.stage", memo)
    (package / "deep/__init__.py").write_text("VALUE = 3\n")
    assert closure("house.stage", memo)[0]["house.deep"] == hashed("VALUE = 3\n")
    (package / "deep/__init__.py").unlink()
    (package / "rooms/side.py").unlink()
    memo.save()
    assert closure("house.stage", Memo(tmp_path / "memo.db")) == before


def test_a_file_that_no_record_has_is_of_what_claims_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an operating system installs packages."""
    packages = tmp_path / "dist-packages"
    for name, text in {"by_system/deep.py": "", "Of_System-1.0.egg-info/PKG-INFO": "Name: Of_System\nVersion: 1.0\n",
                       "Of_System-1.0.egg-info/top_level.txt": "by_system\n", "by_hand.py": ""}.items():  # fmt: skip
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    monkeypatch.syspath_prepend(packages)
    memo = Memo(tmp_path / "memo.db")
    assert distributions_of(str(packages / "by_system/deep.py"), memo) == ["of-system"]
    assert distributions_of(str(packages / "by_hand.py"), memo) == []


def test_plumbing_counts_by_its_schema(tmp_path: Path) -> None:
    code, _ = closure("trnflow.tasks.keys.explain", Memo(tmp_path / "memo.db"))
    assert code["trnflow.tasks.artifact"] == "schema:1"
    assert code["trnflow.tasks.keys.explain"].startswith("sha256:")
