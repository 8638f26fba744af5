"""The ledger of a recipe: every decision about its models, `<root>/roots/ledger/<recipe>/<n>.json`, n = 1, 2, ...

An entry is created once and never changed: a writer that finds its number taken reads that entry and decides again.
Each entry repeats what stands after it, so that one listing and one read answer. `@N` is a champion's number, not n.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.store.blob_store import BlobStore
from trnflow.tasks.store.layout import FORMAT
from trnflow.tasks.store.ledger.entries import (
    LEDGER,
    NOTHING,
    Entry,
    NewEntry,
    Stands,
    checked_entry,
    complete_entry,
    number_of,
    place_of,
    quoted_name,
    unreadable,
)
from trnflow.tasks.system.json_objects import read_object

READERS = 16
"""Threads that read entries."""


class Ledger:
    """What happened to the models of one recipe. Entries are read when they are asked for, each once.

    numbers: of the entries in the store; read: returns the document of a file, by its name.
    """

    def __init__(self, recipe: str, numbers: Iterable[int], read: Callable[[str], Meta]) -> None:
        self.recipe = recipe
        self._read, self._all = read, {*numbers}
        self._known: dict[int, Entry] = {}
        self.numbers = sorted(self._all, reverse=True)

    @property
    def number(self) -> int:
        """The n of the newest entry; 0 if there is none."""
        return self.numbers[0] if self.numbers else 0

    @property
    def newest(self) -> Entry | None:
        return self.entry(self.number) if self.numbers else None

    @property
    def stands(self) -> Stands:
        """What stands now."""
        return self.newest["stands"] if self.newest else NOTHING

    @property
    def champion(self) -> Entry | None:
        """The entry that made the present champion."""
        champions = self.stands["champions"]
        return self.entry(champions[0]["entry"]) if champions else None

    @property
    def judged(self) -> Entry | None:
        """The entry of the newest retrain that judged a model."""
        number = self.stands["judged_by"]
        return None if number is None else self.entry(number)

    def entry(self, n: int) -> Entry:
        """Return an entry. Raises StoreError if it is missing or damaged."""
        if n not in self._known:
            place = place_of(self.recipe, n)
            if n not in self._all:
                raise StoreError(f"{place} is not in the store, and other entries name it", "restore the file")
            self._known[n] = checked_entry(place, self._read(place), n)
        return self._known[n]

    def entries(self) -> list[Entry]:
        """Read and return all entries, the newest first."""
        return in_threads(self.entry, self.numbers, READERS)

    def champions(self) -> list[Entry]:
        """Read all entries, and return those that made a champion, the newest first."""
        return [entry for entry in self.entries() if entry["number"] is not None and entry["outcome"] != "frozen"]


def read_ledger(store: BlobStore, recipe: str) -> Ledger:
    """Return a recipe's ledger. Costs a listing, and a read for the newest entry. Raises StoreError if one can't be read."""
    backend = store.backend

    def read(place: str) -> Meta:
        try:
            return read_object(backend.read(place))
        except ValueError as error:
            raise unreadable(place, str(error)) from error

    return Ledger(recipe, filter(None, map(number_of, backend.names(f"{LEDGER}/{quoted_name(recipe)}"))), read)


def append_ledger(store: BlobStore, recipe: str, entry: NewEntry, after: int) -> Entry | None:
    """Add an entry with the number `after` + 1, and return it as it is in the store; None if another writer was first.

    after: the number of the newest entry when the writer decided; 0 if there was none. Raises StoreError if an entry
    can't be read or written.
    """
    ledger = read_ledger(store, recipe)
    if ledger.number != after:
        return None
    if after == 0:  # a retrain may fail before there is a store
        store.backend.create("FORMAT.json", canonical(FORMAT).encode())
    written = complete_entry(recipe, after + 1, ledger.stands, entry)
    data = json.dumps(written, indent=1, sort_keys=True).encode()
    return written if store.backend.create(place_of(recipe, after + 1), data) else None


def remove_newest(store: BlobStore, recipe: str, n: int) -> None:
    """Remove an entry that was just added, if none has followed: the artifact that it names was lost meanwhile."""
    if read_ledger(store, recipe).number == n:
        store.backend.remove(place_of(recipe, n))


def recipes_of(store: BlobStore) -> list[str]:
    """Return the names of the recipes with a ledger, sorted."""
    return sorted({unquote(_quoted_in(place)) for place in store.backend.names(LEDGER) if number_of(place)})


def by_recipe(places: Iterable[str]) -> list[list[str]]:
    """Return the names of files below `roots/` in groups: those about one recipe, and each other file by itself."""
    groups: dict[str, list[str]] = defaultdict(list)
    for place in places:
        groups[_quoted_in(place) if place.startswith(f"{LEDGER}/") else place].append(place)
    return [*groups.values()]


def protected(places: Iterable[str], read: Callable[[str], Meta]) -> Iterator[tuple[str, Meta]]:
    """Yield what garbage collection must keep, as (name of a file below `roots/`, what of its document names artifacts,
    records and runs).

    Of a ledger these are the last three different models that were champions, each with evaluation, scores and frozen
    rows; the newest frozen rows; the runs of the judged models. Of another file all that it names counts, such as a
    pin's artifact.

    Args:
        places: The names of the files below `roots/`.
        read: Returns the document of a file.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for place in places:
        if place.startswith(f"{LEDGER}/") and (number := number_of(place)):
            numbers[_quoted_in(place)].append(number)
        else:
            yield place, read(place)
    for name in sorted(numbers):
        ledger = Ledger(unquote(name), numbers[name], read)
        for n, named in _protected(ledger):
            yield place_of(ledger.recipe, n), named


def _protected(ledger: Ledger) -> Iterator[tuple[int, Meta]]:
    """Yield (n of an entry, what of it garbage collection must keep)."""
    stands = ledger.stands
    for title in stands["champions"]:
        entry = ledger.entry(title["entry"])
        named = {"evaluation": entry["evaluation"], "frozen": entry["frozen"], "scores": entry["scores"]}
        yield entry["n"], {"artifact": title["artifact"], "records": entry["records"], **named}
    if (rows := stands["frozen"]) is not None:
        entry = ledger.entry(rows["entry"])
        yield entry["n"], {"artifact": rows["artifact"], "records": entry["records"]}
    if stands["judged"]:
        yield ledger.number, {"judged": [{"run": judged["run"]} for judged in stands["judged"]]}


def _quoted_in(place: str) -> str:
    """Return the quoted name of the recipe that an entry's file is about."""
    return place.split("/")[2]
