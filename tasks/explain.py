"""Why a stage would run: the difference between two key documents, value by value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tasks.artifact import Json, Meta

PARTS = ("code", "params", "inputs", "env", "accel")


class Change(NamedTuple):
    """part: code, params, inputs, env or accel; name: dotted below it; before, after: values, None when absent."""

    part: str
    name: str
    before: Json
    after: Json

    def __str__(self) -> str:
        if self.part == "code":
            what = "is new" if self.before is None else "is gone" if self.after is None else "changed"
            return f"code of {self.name} {what}"
        return f"{self.part}.{self.name}: {_short(self.before)} -> {_short(self.after)}"


def difference(before: Meta, after: Meta) -> list[Change]:
    """Every leaf in which two key documents differ, in the order of PARTS."""
    changes = []
    for part in PARTS:
        old, new = (dict(_leaves(document.get(part, {}))) for document in (before, after))
        for name in sorted(old.keys() | new.keys()):
            if _is_filled(name, old, new) or _is_filled(name, new, old):
                continue
            if name not in old or name not in new or not _same(old[name], new[name]):
                changes.append(Change(part, name, old.get(name), new.get(name)))
    return changes


def nearest_record(records: list[Meta], document: Meta) -> tuple[Meta, list[Change]] | None:
    """The past record that differs least from `document` (the newest of equals; records are newest first) and how it differs."""
    scored = [(record, difference(record["document"], document)) for record in records]
    return min(scored, key=lambda pair: len(pair[1]), default=None)


def _leaves(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            # module names hold dots: a code part is flat, and its names stay whole
            yield from _leaves(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _is_filled(name: str, empty: Meta, other: Meta) -> bool:
    """Whether `name` is an empty table here and holds entries there: these say it all."""
    return empty.get(name) == {} and any(
        found.startswith(f"{name}." if name else "") for found in other if found != name
    )


def _same(one: Json, other: Json) -> bool:
    return type(one) is type(other) and one == other


def _short(value: Json) -> str:
    text = "nothing" if value is None else str(value)
    if text.startswith("sha256:"):
        return text[:19]
    return text if len(text) <= 60 else f"{text[:57]}..."
