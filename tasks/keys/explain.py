"""Differences between key documents: why a stage would run again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.keys.key_document import PARTS


class Change(NamedTuple):
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
        if self.part == "code":
            what = "is new" if self.before is None else "is gone" if self.after is None else "changed"
            return f"code of {self.name} {what}"
        if self.part == "schema":
            return f"the form of keys changed: {self.before} -> {self.after}"
        return f"{self.part}.{self.name}: {_short(self.before)} -> {_short(self.after)}"


def difference(before: Meta, after: Meta) -> list[Change]:
    """Return the values that differ between two key documents, sorted by table, then by name."""
    changes = []
    for part in PARTS:
        old, new = (dict(_leaves(document.get(part, {}))) for document in (before, after))
        for name in sorted(old.keys() | new.keys()):
            if _is_filled(name, old, new) or _is_filled(name, new, old):
                continue
            if name not in old or name not in new or not _same(old[name], new[name]):
                changes.append(Change(part, name, old.get(name), new.get(name)))
    forms = before.get("schema"), after.get("schema")
    if not _same(*forms):
        changes.append(Change("schema", "", *forms))
    return changes


def moved_settings(before: Meta, after: Meta) -> dict[str, str]:
    """Return {old name: new name} of settings that moved to another section. Values may differ.

    before, after: tables `params`.
    """
    old, new = (dict(_leaves(params)).keys() for params in (before, after))
    gone, appeared = _by_last_part(old - new), _by_last_part(new - old)
    # only a last word that is gone once and new once tells for sure where a setting went
    return {gone[last][0]: appeared[last][0] for last in gone if len(gone[last]) == len(appeared.get(last, ())) == 1}


def nearest_record(records: list[Meta], document: Meta) -> tuple[Meta, list[Change]] | None:
    """Return (record, differences) of the record nearest to `document`, the newest of several; None without records."""
    scored = [(record, difference(record["document"], document)) for record in records]
    return min(scored, key=lambda pair: len(pair[1]), default=None)


def _leaves(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            # the code part is not nested; the dots in its names belong to module names
            yield from _leaves(entry, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _by_last_part(names: Iterable[str]) -> dict[str, list[str]]:
    by_last: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_last[name.rpartition(".")[2]].append(name)
    return by_last


def _is_filled(name: str, empty: Meta, other: Meta) -> bool:
    """Return whether `name` is an empty table in `empty`, and has entries in `other`."""
    return empty.get(name) == {} and any(
        entry.startswith(f"{name}." if name else "") for entry in other if entry != name
    )


def _same(first: Json, second: Json) -> bool:
    return type(first) is type(second) and first == second


def _short(value: Json) -> str:
    text = "nothing" if value is None else str(value)
    if text.startswith("sha256:"):
        return text[:19]
    return text if len(text) <= 60 else f"{text[:57]}..."
