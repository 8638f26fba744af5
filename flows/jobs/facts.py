"""What keys of a platform's machine have other than keys of this one: libraries, device, threads, and what a recipe leaves to
the machine. `<root>/machines/<digest of kind, interpreter and options>.json`"""

from __future__ import annotations

import json
from typing import cast

from trnflow.flows.jobs.listing import read_document
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import KeyDocument, MachineDifferences
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store

TABLES = ("params", "env", "accel")
ABSENT = "(absent)"


class MachineFacts:
    """The facts of the machines on which a `launch` section has jobs run, by the newest job."""

    def __init__(self, launch: LaunchConfig, store: Store) -> None:
        document = {"kind": launch.kind, "python": launch.python, "options": dict(launch.options)}
        digits = digest_of(cast(Meta, document)).removeprefix("sha256:")
        self._store, self._file = store, f"machines/{digits[:16]}.json"
        self._here: dict[str, KeyDocument] = {}
        self._known: MachineDifferences = read_document(store, self._file) or {}

    def there(self, stage: str, document: KeyDocument) -> KeyDocument | None:
        """Return a stage's key document as it would be there; None if that is not known."""
        self._here[stage] = document
        if (differences := self._known.get(stage)) is None:
            return None
        tables: dict[str, Meta] = {table: {**document[table]} for table in TABLES}  # type: ignore[literal-required]
        for table, names in differences.items():
            for name, (here, there) in names.items():
                # what is other here than it was then may be other there, too
                if tables[table].get(name, ABSENT) != here:
                    return None
                tables[table][name] = there
                if there == ABSENT:
                    del tables[table][name]
        return cast(KeyDocument, {**document, **tables})

    def learn(self, stage: str, key: str | None) -> None:
        """Take over what the record of a stage's result says of the machine that made it."""
        record, here = self._store.record(stage, key) if key else None, self._here.get(stage)
        if record is None or here is None:
            return
        there = record["document"]
        if any(there[table] != here[table] for table in ("stage", "code", "inputs")):
            return
        found = {table: _differences(here[table], there[table]) for table in TABLES}  # type: ignore[literal-required]
        differences = {table: names for table, names in found.items() if names}
        if self._known.get(stage) != differences:
            self._known[stage] = differences
            self._store.backend.replace(self._file, json.dumps(self._known, sort_keys=True).encode())


def _differences(here: Meta, there: Meta) -> dict[str, list[object]]:
    pairs = {name: [here.get(name, ABSENT), there.get(name, ABSENT)] for name in sorted({*here, *there})}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
