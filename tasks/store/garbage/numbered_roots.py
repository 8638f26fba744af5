"""Numbered roots: files `<root>/roots/<kind>/<name>/<n>.json` in a store, which name artifacts that garbage collection
must keep. Of the files of one recipe name, the file with the highest n is the present one.

Each file is created once and never changed, so the history stays and two writers can't overwrite each other: a writer
that finds the number n + 1 taken reads that file and decides again. There are two kinds. A file of `champions` names
the model that a recipe's users should get, with its evaluation, its scores and the frozen rows. A file of `frozen`
names the frozen rows: the test rows on which the recipe's models are compared.

Garbage collection keeps all these files, but protects the artifacts of only some of them (see `counting`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from tasks.artifact import Meta
from tasks.errors import StoreError
from tasks.store.backend import Backend
from tasks.store.layout import read_object

CHAMPIONS, FROZEN = "roots/champions", "roots/frozen"
RETRAINED = "roots/retrained"
"""The folder of the files that say how a recipe's newest retrain ended. Such a file protects no other file."""

KEPT_CHAMPIONS = 3
"""How many models of a recipe name garbage collection keeps: the present champion and the last other artifacts that
were champions before."""


class Numbered(NamedTuple):
    """A numbered root: a file `roots/<kind>/<name>/<n>.json` of the store, which names the nth champion (the model that
    a recipe's users should get) or the nth frozen rows (fixed test rows) of a recipe. number: n; document: the file's
    content."""

    number: int
    document: Meta


def add_numbered(backend: Backend, kind: str, name: str, number: int, document: Meta) -> bool:
    """Create the file `<kind>/<name>/<number>.json` of a numbered root, which names the nth champion model or frozen
    rows (fixed test rows) of a recipe, and return True; return False, and change nothing, if this number is taken.

    kind: `roots/champions` or `roots/frozen`; name: a recipe's name, any text; number: from 1 on; document: the
    content."""
    data = json.dumps(document, indent=1, sort_keys=True).encode()
    return backend.create(_place(kind, name, number), data)


def remove_numbered(backend: Backend, kind: str, name: str, number: int) -> None:
    """Remove the file of a numbered root (the nth champion model or frozen test rows of a recipe) that was just
    created, because the artifact that the file names was lost meanwhile. The arguments are those of `add_numbered`."""
    backend.remove(_place(kind, name, number))


def numbered(backend: Backend, kind: str, name: str) -> list[Numbered]:
    """Return all numbered roots of a recipe's name (the files that name its champion models or its frozen test rows,
    one after another), the highest number (the present one) first; [] if there are none. StoreError when a file is no
    JSON object. kind: `roots/champions` or `roots/frozen`."""
    folder = f"{kind}/{quoted_name(name)}"
    places = sorted(((_number(place), place) for place in backend.names(folder)), reverse=True)
    return [Numbered(number, _document(place, backend.read(place))) for number, place in places if number]


def series_of(found: list[Numbered]) -> str:
    """Return a text that identifies a series of numbered roots (all the champions, or all the frozen test rows, that a
    recipe has had): the time and the artifact of the series' first file. Series in two stores have different texts,
    even if one store replaced the other at the same path.

    found: all roots of a name, at least one, the highest number first, as `numbered` returns them."""
    first = found[-1].document
    return f"{first['created']} {str(first['artifact'])[7:19]}"


def names_of(backend: Backend, kind: str) -> list[str]:
    """Return the recipe names that have at least one numbered root of a kind, sorted. kind: `roots/champions` (champion
    models) or `roots/frozen` (frozen test rows)."""
    return sorted({unquote(place.split("/")[2]) for place in backend.names(kind) if _number(place)})


def counting(places: Iterable[str], read: Callable[[str], Meta]) -> set[str]:
    """Return those of the files below `roots/` whose artifacts and runs garbage collection must keep.

    These are all pins and other unnumbered roots (but not those below `roots/retrained`, which say how retrains ended),
    the newest file of each of the last 3 different artifacts that were champions (the model that users should get) of a
    recipe's name, and the newest frozen rows (fixed test rows) of a name. The rows that a champion was compared on are
    named by the champion's own file.

    places: names of files below `roots/`; read: returns the document of a file."""
    found: set[str] = set()
    series: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for place in places:
        number = _number(place)
        if place.startswith(f"{RETRAINED}/"):
            continue
        if number:
            series[place.rpartition("/")[0]].append((number, place))
        else:
            found.add(place)
    for folder, members in series.items():
        most = KEPT_CHAMPIONS if folder.startswith(f"{CHAMPIONS}/") else 1
        newest: dict[str, str] = {}
        for _, place in sorted(members, reverse=True):
            if len(newest) < most:
                newest.setdefault(str(read(place).get("artifact")), place)
        found.update(newest.values())
    return found


def _place(kind: str, name: str, number: int) -> str:
    return f"{kind}/{quoted_name(name)}/{number}.json"


def quoted_name(name: str) -> str:
    """Return a recipe's name as the name of a file or folder: percent-encoded, except ASCII letters, digits, `_`, `-`,
    `~` and dots that are not at the beginning."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E", 1) if quoted.startswith(".") else quoted


def _number(place: str) -> int:
    """Return the n of a numbered root's file, from 1 on; 0 for any other file."""
    parts = place.split("/")
    number = parts[-1].removesuffix(".json")
    is_numbered = len(parts) == 4 and "/".join(parts[:2]) in (CHAMPIONS, FROZEN) and number.isdecimal()
    return int(number) if is_numbered else 0


def _document(place: str, data: bytes) -> Meta:
    try:
        return read_object(data)
    except ValueError as error:
        raise StoreError(
            f"{place} can't be read: {error}",
            "look at the file: it names a champion or frozen rows; restore or remove it",
        ) from error
