from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnflow.tasks.keys.canonical_json import canonical, digest_of

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
def test_nested_values_are_encoded_as_those_at_the_top(value: Any) -> None:
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


def test_a_value_that_nothing_could_read_again_is_an_error() -> None:
    value: Any = 0
    for _ in range(20_000):
        value = [value]
    with pytest.raises(TypeError, match="nested this deeply"):
        canonical(value)


def test_keys_do_not_depend_on_process_hash_seed_or_order() -> None:
    program = "from trnflow.tasks.keys.canonical_json import digest_of;"
    program += " print(digest_of({'b': [1, 2.5], 'a': {'y': None, 'x': 'ü'}}))"
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
