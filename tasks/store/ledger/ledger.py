"""The ledger of a recipe: every decision about its models, `<root>/roots/ledger/<recipe>/<n>.json`, n = 1, 2, ...

An entry is created once and never changed: a writer that finds its number taken reads that entry and decides again.
Each entry repeats what stands after it, so that one listing and one read answer. `@N` is a champion's number, not n.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from urllib.parse import unquote

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.store.backend import Backend
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
from trnflow.tasks.store.ledger.format_1 import FOLDERS, import_entries, old_files
from trnflow.tasks.system.json_objects import read_object

READERS = 16
"""Threads that read entries."""


class Ledger:
    """What happened to the models of one recipe. Entries are read when they are asked for, each once.

    numbers: of the entries in the store; read: returns the document of a file, by its name; old: entries that are made of a
    store of format 1 and not in the ledger yet.
    """

    def __init__(
        self, recipe: str, numbers: Iterable[int], read: Callable[[str], Meta], old: Iterable[Entry] = ()
    ) -> None:
        self.recipe = recipe
        self._read = read
        self._known: dict[int, Entry] = {entry["n"]: entry for entry in old}
        stored = {*numbers}
        self.to_import = [entry for entry in self._known.values() if entry["n"] not in stored]
        self._all = {*stored, *self._known}
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
    """Return a recipe's ledger. Costs a listing, and a read for the newest entry; four more requests as long as there is
    no entry. Raises StoreError if an entry can't be read."""
    backend = store.backend

    def read(place: str) -> Meta:
        try:
            return read_object(backend.read(place))
        except ValueError as error:
            raise unreadable(place, str(error)) from error

    return _ledger(recipe, backend.names(f"{LEDGER}/{quoted_name(recipe)}"), partial(old_files, backend, recipe), read)


def append_ledger(store: BlobStore, recipe: str, entry: NewEntry, after: int) -> Entry | None:
    """Add an entry with the number `after` + 1, and return it as it is in the store; None if another writer was first.

    The first entry makes the store one of format 2, and is preceded by those that are made of what format 1 kept.

    after: the number of the newest entry when the writer decided; 0 if there was none. Raises StoreError if an entry
    can't be read or written.
    """
    ledger = read_ledger(store, recipe)
    if ledger.newest is None or ledger.newest["imported"]:
        _refuse_older_programs(store.backend)
        ledger = read_ledger(store, recipe)  # what an older program wrote until now
    if ledger.number != after:
        return None
    for imported in sorted(ledger.to_import, key=lambda each: each["n"]):
        _create(store.backend, imported)
    written = complete_entry(recipe, after + 1, ledger.stands, entry)
    return written if _create(store.backend, written) else None


def remove_newest(store: BlobStore, recipe: str, n: int) -> None:
    """Remove an entry that was just added, if none has followed: the artifact that it names was lost meanwhile."""
    if read_ledger(store, recipe).number == n:
        store.backend.remove(place_of(recipe, n))


def recipes_of(store: BlobStore) -> list[str]:
    """Return the names of the recipes with a ledger, sorted."""
    folders = (LEDGER, *FOLDERS)
    listed = in_threads(store.backend.names, folders, 1 if store.is_local else len(folders))
    return sorted({unquote(_quoted_in(place)) for names in listed for place in names})


def by_recipe(places: Iterable[str]) -> list[list[str]]:
    """Return the names of files below `roots/` in groups: those about one recipe, and each other file by itself."""
    groups: dict[str, list[str]] = defaultdict(list)
    for place in places:
        is_about_one = place.startswith(tuple(f"{folder}/" for folder in (LEDGER, *FOLDERS)))
        groups[_quoted_in(place) if is_about_one else place].append(place)
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
    own: dict[str, list[str]] = defaultdict(list)
    old: dict[str, list[str]] = defaultdict(list)
    for place in places:
        folder = place.rpartition("/")[0] if not number_of(place) else place.rsplit("/", 2)[0]
        if folder == LEDGER and number_of(place):
            own[_quoted_in(place)].append(place)
        elif folder in FOLDERS:
            old[_quoted_in(place)].append(place)
        else:
            yield place, read(place)
    for name in sorted({*own, *old}):
        ledger = _ledger(unquote(name), own[name], partial(iter, old[name]), read)
        for n, named in _protected(ledger):
            yield (place_of(ledger.recipe, n) if own[name] else old[name][0]), named


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


def _ledger(
    recipe: str, places: Iterable[str], old: Callable[[], Iterable[str]], read: Callable[[str], Meta]
) -> Ledger:
    """Return a ledger, with what format 1 kept unless an entry of its own follows that. old: names of those files."""
    numbers = [number for place in places if (number := number_of(place))]
    ledger = Ledger(recipe, numbers, read)
    if ledger.newest is None or ledger.newest["imported"]:
        return Ledger(recipe, numbers, read, import_entries(recipe, {place: read(place) for place in old()}))
    return ledger


def _quoted_in(place: str) -> str:
    """Return the quoted name of the recipe that a file is about."""
    return place.split("/")[2] if number_of(place) else place.split("/")[2].removesuffix(".json")


def _refuse_older_programs(backend: Backend) -> None:
    """Make the store one of format 2, so that no older program goes on writing what the ledger replaces."""
    data = canonical(FORMAT).encode()
    if backend.create("FORMAT.json", data):  # a retrain may fail before there is a store
        return
    if backend.read("FORMAT.json") != data:
        backend.replace("FORMAT.json", data)


def _create(backend: Backend, entry: Entry) -> bool:
    data = json.dumps(entry, indent=1, sort_keys=True).encode()
    return backend.create(place_of(entry["recipe"], entry["n"]), data)
