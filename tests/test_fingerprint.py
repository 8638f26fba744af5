from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.fingerprint import canonical, closure, code_hash, digest_of
from tasks.memo import Memo

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def typed(value: Any) -> Any:
    """The value with its types spelled out, so that == means the same typed value."""
    if isinstance(value, dict):
        return ("dict", sorted((name, typed(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("list", [typed(item) for item in value])
    return (type(value).__name__, repr(value))


@given(values, values)
def test_equal_typed_values_have_equal_encodings_and_distinct_ones_distinct(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (typed(one) == typed(other))


@given(values)
def test_the_encoding_is_json(value: Any) -> None:
    assert typed(json.loads(canonical(value))) == typed(value)


@given(values)
def test_tables_and_lists_of_plain_values_are_encoded_as_all_others(value: Any) -> None:
    """A nested empty list keeps what holds it from the short way."""
    assert canonical([value, []]) == f"[{canonical(value)},[]]"
    assert canonical([value, 1]) == f"[{canonical(value)},1]"
    assert canonical({"a": value, "b": []}) == f'{{"a":{canonical(value)},"b":[]}}'


def test_types_that_look_alike_differ() -> None:
    assert len({canonical(value) for value in (1, 1.0, "1", True, [1], {"1": 1})}) == 6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, {1: 2}, object(), Path("x")])
def test_what_is_not_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="key document"):
        canonical({"here": value})
    with pytest.raises(TypeError, match="key document"):
        canonical([value, []])


def test_depth_has_no_limit() -> None:
    value: Any = 0
    for _ in range(20_000):
        value = [value]
    assert canonical(value) == "[" * 20_000 + "0" + "]" * 20_000


def test_keys_do_not_depend_on_process_hash_seed_or_order() -> None:
    program = "from tasks.fingerprint import digest_of; print(digest_of({'b': [1, 2.5], 'a': {'y': None, 'x': 'ü'}}))"
    seen = set()
    for seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            check=True,
        )
        seen.add(done.stdout.strip())
    assert seen == {digest_of({"a": {"x": "ü", "y": None}, "b": [1, 2.5]})}


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


def test_plumbing_counts_by_its_schema(tmp_path: Path) -> None:
    code, _ = closure("tasks.explain", Memo(tmp_path / "memo.db"))
    assert code["tasks.artifact"] == "schema:1"
    assert code["tasks.explain"].startswith("sha256:")
