"""Differences between key documents: why a stage would run again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.documents import Documented, KeyDocument
from trnflow.tasks.keys.key_document import TABLES

HasDocument = TypeVar("HasDocument", bound=Documented)


class ValueChange(NamedTuple):
    """A value that differs between two key documents.

    Attributes:
        part: Table of the value, such as "code", or "schema".
        name: The value's dotted name in the table; a module's in "code".
        before, after: None where the value does not exist.
    """

    part: str
    name: str
    before: Json
    after: Json

    def __str__(self) -> str:
        both = isinstance(self.before, str) and isinstance(self.after, str)
        is_hash = str(self.before).startswith(("sha256:", "schema:"))
        if self.part == "code" and both and not is_hash:  # the name of a hook's function
            return f"{self.name}: {_short(self.before)} -> {_short(self.after)}"
        if self.part == "code":
            what = "is new" if self.before is None else "is gone" if self.after is None else "changed"
            return f"code of {self.name} {what}"
        if self.part == "schema":
            return f"the form of keys changed: {self.before} -> {self.after}"
        return f"{self.part}.{self.name}: {_short(self.before)} -> {_short(self.after)}"


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ValueChange]:
    """Return the values that differ between two key documents, sorted by table, then by name."""
    changes = []
    for part in TABLES:
        old, new = (dict(leaves(document.get(part, {}), with_empty=True)) for document in (before, after))
        for name in sorted(old.keys() | new.keys()):
            if _is_filled(name, old, new) or _is_filled(name, new, old):
                continue
            if name not in old or name not in new or not _same(old[name], new[name]):
                changes.append(ValueChange(part, name, old.get(name), new.get(name)))
    forms = before.get("schema"), after.get("schema")
    if not _same(*forms):
        changes.append(ValueChange("schema", "", *forms))
    return changes


def moved_settings(before: Meta, after: Meta) -> dict[str, str]:
    """Return {old name: new name} of settings that moved to another section. Values may differ.

    before, after: tables `params`.
    """
    old, new = (dict(leaves(params, with_empty=True)).keys() for params in (before, after))
    gone, appeared = _by_last_part(old - new), _by_last_part(new - old)
    # only a last word that is gone once and new once tells for sure where a setting went
    return {gone[last][0]: appeared[last][0] for last in gone if len(gone[last]) == len(appeared.get(last, ())) == 1}


def nearest_record(
    records: Iterable[HasDocument], document: KeyDocument
) -> tuple[HasDocument, list[ValueChange]] | None:
    """Return (record, differences) of the record nearest to `document`, the newest of several; None without records."""
    scored = [(record, difference(record["document"], document)) for record in records]
    return min(scored, key=lambda pair: len(pair[1]), default=None)


def leaves(value: Json, name: str = "", *, with_empty: bool = False) -> Iterator[tuple[str, Json]]:
    """Yield (dotted name, value) of all values in nested objects: ("a.b", 1) for {"a": {"b": 1}}.

    with_empty: an empty object is a value, too.
    """
    if isinstance(value, dict) and (value or not with_empty):
        for key, entry in value.items():
            yield from leaves(entry, f"{name}.{key}" if name else str(key), with_empty=with_empty)
    else:
        yield name, value


def _by_last_part(names: Iterable[str]) -> dict[str, list[str]]:
    by_last: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_last[name.rpartition(".")[2]].append(name)
    return by_last


def _is_filled(name: str, empty: Meta, other: Meta) -> bool:
    """Return whether `name` is an empty table, or null, in `empty`, and has entries in `other`."""
    return (
        name in empty
        and empty[name] in (None, {})
        and any(entry.startswith(f"{name}." if name else "") for entry in other if entry != name)
    )


def _same(first: Json, second: Json) -> bool:
    return type(first) is type(second) and first == second


def _short(value: Json) -> str:
    text = "nothing" if value is None else str(value)
    if text.startswith("sha256:"):
        return text[:19]
    return text if len(text) <= 60 else f"{text[:57]}..."
