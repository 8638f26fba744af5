"""Shapes of documents are checked to any depth, and a document that no parser gets to the end of is one kind of error."""

from __future__ import annotations

import json
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnflow.tasks.system.json_objects import DEEPEST, misfit, parsed, read_object


class Inner(TypedDict):
    name: str
    size: NotRequired[int]


class Outer(TypedDict):
    parts: list[Inner]
    share: float | None
    kind: Literal["a", "b"]
    free: dict[str, Any]


GOOD: dict[str, Any] = {
    "parts": [{"name": "x", "size": 1}, {"name": "y"}],
    "share": 1,
    "kind": "c",
    "free": {"a": [{}]},
    "new": 1,
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("deep", [b"[" * 10**6, b'{"a":' * 10**6, b'{"a":' * DEEPEST + b"{}" + b"}" * DEEPEST])
def test_a_document_that_is_nested_too_deeply_is_damaged(deep: bytes) -> None:
    with pytest.raises(ValueError, match=f"more than {DEEPEST} levels"):
        read_object(deep)
    assert parsed(deep) is None


def test_a_document_of_as_many_levels_as_may_be_is_read() -> None:
    assert read_object(b'{"a":' * (DEEPEST - 1) + b"{}" + b"}" * (DEEPEST - 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""), ({"share": None}, ""), ({"share": float("inf")}, "share is inf"), ({"share": "1"}, "share is a text"),
        ({"share": True}, "share is true or false"), ({"share": 1 << 63}, "share is 9223372036854775808"),
        ({"kind": 3}, "kind is 3"), ({"parts": {}}, "parts is an object"), ({"parts": [{}]}, "parts[0] has no name"),
        ({"parts": [{"name": "x"}, {"name": "y", "size": None}]}, "parts[1].size is null"), ({"free": []}, "free is a list"),
    ],
)  # fmt: skip
def test_the_first_part_of_another_type_is_named(change: dict[str, Any], says: str) -> None:
    assert misfit(GOOD | change, Outer) == says


@given(VALUES)
def test_any_value_has_the_shape_or_says_where_it_has_not(value: Any) -> None:
    assert isinstance(misfit(value, Outer), str) and misfit(value, Any) == ""
    assert bool(misfit(value, dict[str, int | None])) == (
        not isinstance(value, dict)
        or not all(each is None or (type(each) is int and abs(each) < 1 << 63) for each in value.values())
    )


@given(VALUES)
def test_reading_what_was_written_is_that_or_a_value_error(value: Any) -> None:
    text = json.dumps(value)
    try:
        assert json.dumps(read_object(text)) == text
    except ValueError:
        assert not isinstance(value, dict)
