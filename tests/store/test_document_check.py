"""Each kind of document: the sound one passes, and whatever stands in a place of it ends in one kind of error, or nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.stores import record_of, recorded
from trnflow.tasks.store.document_check import checked_document
from trnflow.tasks.store.layout import record_name
from trnflow.tasks.store.ledger.entries import NOTHING, complete_entry

RECORD = record_of(f"sha256:{'1' * 64}")
LEASE = {
    "token": "t", "run": "r", "attempt": "a", "since": "2026-01-01T00:00:00Z", "ttl": 60.0,
    "process": {"host": "h", "boot": "b", "space": "s", "pid": 1, "start": 1},
}  # fmt: skip
SOUND: dict[str, Any] = {
    "FORMAT.json": {"format": 2, "hash": "sha256"},
    record_name("s", RECORD["key"]): RECORD,
    "attempts/k/a.json": {"stage": "s", "pid": 1, "figures": {}, "holds": [{"stage": "s", "key": "k"}]},
    "runs/r.json": {"run": "r", "seconds": None, "stages": [recorded("s", "k")]},
    "leases/k/1.json": LEASE,
    "leases/k/1.t": {"beat": 1, "at": "", "progress": {"step": 1, "of": 2, "unit": "rows", "eta": None}},
    "partial/k/step-000000001/COMMIT": {"x": "sha256:1"},
    "roots/ledger/mine/1.json": complete_entry(
        "mine", 1, NOTHING, {"outcome": "kept", "by": "retrain", "why": "as good"}
    ),
    "roots/pins/p.json": {"run": "r"},
    "jobs/1/order.json": {"name": "mine"},
    "jobs/1/runs/r": {"run": "r", "host": "h", "begun": "2026-01-01T00:00:00Z"},
    "jobs/1/result.json": {"run": "r", "outcome": "failed", "ended": "2026-01-01T00:00:00Z", "error": {"message": "m"}},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place below a JSON value, as the keys that lead there."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value in a place."""
    copy = inner = json.loads(json.dumps(document))
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize("name", SOUND, ids=lambda name: name.split("/")[0])
def test_a_sound_document_passes_and_a_list_does_not(name: str) -> None:
    assert checked_document(name, json.dumps(SOUND[name]).encode()) == SOUND[name]
    for wrong in (b"[]", b"", b"[" * 10**6):
        with pytest.raises(ValueError):
            checked_document(name, wrong)


@given(st.data())
def test_whatever_stands_anywhere_is_a_value_error_or_the_document(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SOUND)))
    path = data.draw(st.sampled_from([*places(SOUND[name])]))
    document = changed(SOUND[name], path, data.draw(VALUES))
    try:
        found = checked_document(name, json.dumps(document).encode())
    except ValueError as error:
        assert str(error)
    else:
        assert json.dumps(found) == json.dumps(document)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("leases/k/1.json", "ttl", 0), ("leases/k/1.json", "token", "../../x"), ("leases/k/1.json", "process", {}),
        ("attempts/k/a.json", "pid", "1"), ("runs/r.json", "stages", [{}]), ("runs/r.json", "seconds", "long"),
        ("roots/ledger/mine/1.json", "stands", {}), ("roots/ledger/mine/1.json", "n", 2), ("FORMAT.json", "format", "2"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_damage(name: str, field: str, value: Any) -> None:
    with pytest.raises(ValueError):
        checked_document(name, json.dumps({**SOUND[name], field: value}).encode())
