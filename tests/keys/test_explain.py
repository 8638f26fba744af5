from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trnflow.tasks.keys.explain import ValueChange, difference, moved_settings, nearest_record

leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
params = st.dictionaries(st.text("abc", min_size=1, max_size=3), leaves, max_size=5)


def document(**parts: Any) -> dict[str, Any]:
    return {"schema": 1, "stage": "s", "code": {}, "params": {}, "inputs": {}, "env": {}, "accel": {}, **parts}


@given(params, params)
def test_the_difference_names_each_changed_value_and_no_other(one: dict[str, Any], other: dict[str, Any]) -> None:
    found = {change.name for change in difference(document(params=one), document(params=other))}
    changed = {
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or (type(one[name]), one[name]) != (type(other[name]), other[name])
    }
    assert found == changed


def test_types_count() -> None:
    assert difference(document(params={"x": 1}), document(params={"x": True})) == [ValueChange("params", "x", 1, True)]


def test_a_table_that_was_null_or_empty_is_named_by_its_entries() -> None:
    filled = document(params={"split": {"test": 0.1}})
    for empty in (None, {}):
        for pair in ((document(params={"split": empty}), filled), (filled, document(params={"split": empty}))):
            assert [change.name for change in difference(*pair)] == ["split.test"]


def test_code_is_named_by_module() -> None:
    changes = difference(
        document(code={"tasks.pack": "sha256:1"}), document(code={"tasks.pack": "sha256:2", "tasks.new": "x"})
    )
    assert [str(change) for change in changes] == ["code of tasks.new is new", "code of tasks.pack changed"]


def test_the_nearest_record_differs_least_and_is_the_newest_of_equals() -> None:
    records = [
        {"created": "3", "document": document(params={"a": 1, "b": 2})},
        {"created": "2", "document": document(params={"a": 1, "b": 1})},
        {"created": "1", "document": document(params={"a": 1, "b": 3})},
    ]
    near = nearest_record(records, document(params={"a": 1, "b": 9}))
    assert near is not None
    assert near[0]["created"] == "3"
    assert [str(change) for change in near[1]] == ["params.b: 2 -> 9"]
    assert nearest_record([], document()) is None


def test_the_form_of_keys_is_a_change_of_its_own() -> None:
    (change,) = difference(document(), {**document(), "schema": 2})
    assert str(change) == "the form of keys changed: 1 -> 2"


def test_a_setting_moved_where_its_last_word_is_gone_once_and_new_once() -> None:
    before = {"train": {"seed": 1, "rate": 2}, "data": {"limit": 3}}
    assert moved_settings(before, {"optimizer": {"seed": 1, "rate": 5}, "data": {"limit": 3}}) == {
        "train.seed": "optimizer.seed", "train.rate": "optimizer.rate",
    }  # fmt: skip
    assert moved_settings(before, {"one": {"seed": 1}, "other": {"seed": 1}, "train": {"rate": 2}}) == {}
    assert moved_settings({"one": {"seed": 1}, "other": {"seed": 1}}, {"train": {"seed": 1}}) == {}
    assert moved_settings(before, before) == {}
