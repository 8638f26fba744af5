"""Numbered roots: files `<root>/roots/<kind>/<name>/<n>.json` in a store. Each names artifacts that garbage collection
must keep. `<name>` is the name of a recipe, and n counts 1, 2, ...: the file with the highest n is the valid one, the
others are its history.

There are two kinds. A file of the kind `champions` names the model that a recipe's users should get, with its
evaluation, its scores and its frozen rows. A file of the kind `frozen` names frozen rows: test rows on which the
recipe's models are compared.

A file is created once and never changed, so two writers can't overwrite each other: a writer that finds the number n +
1 taken reads that file and decides again. Garbage collection keeps all these files, but protects the artifacts of only
some of them (see `counting`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.layout import read_object

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
    """Create a numbered root, the file `<kind>/<name>/<number>.json`, which names the nth champion model or the nth
    frozen rows (fixed test rows) of a recipe. Return True; if a file with this number exists, change nothing and return
    False.

    kind: `roots/champions` or `roots/frozen`; name: a recipe's name, any text; number: n, from 1 on; document: the
    file's content."""
    data = json.dumps(document, indent=1, sort_keys=True).encode()
    return backend.create(_place(kind, name, number), data)


def remove_numbered(backend: Backend, kind: str, name: str, number: int) -> None:
    """Remove the file of a numbered root (the nth champion model or frozen test rows of a recipe) that was just
    created, because the artifact that the file names was lost meanwhile. The arguments are those of `add_numbered`."""
    backend.remove(_place(kind, name, number))


def numbered(backend: Backend, kind: str, name: str) -> list[Numbered]:
    """Return all numbered roots of a recipe and a kind (the files that name the recipe's champion models one after
    another, or its frozen test rows), the highest number first: the first is the valid one. [] if there are none.

    name: the recipe's name; kind: `roots/champions` or `roots/frozen`. StoreError when a file is no JSON object."""
    folder = f"{kind}/{quoted_name(name)}"
    places = sorted(((_number(place), place) for place in backend.names(folder)), reverse=True)
    return [Numbered(number, _document(place, backend.read(place))) for number, place in places if number]


def series_of(found: list[Numbered]) -> str:
    """Return a text that identifies a recipe's series of numbered roots (all files that name its champions, or all that
    name its frozen test rows): the time and the artifact of the series' first file. Series that began in different
    stores have different texts, even if one store replaced the other at the same path.

    found: all numbered roots of a name, at least one, the highest number first, as `numbered` returns them."""
    first = found[-1].document
    return f"{first['created']} {str(first['artifact'])[7:19]}"


def names_of(backend: Backend, kind: str) -> list[str]:
    """Return the recipe names that have at least one numbered root of a kind, sorted. kind: `roots/champions` (champion
    models) or `roots/frozen` (frozen test rows)."""
    return sorted({unquote(place.split("/")[2]) for place in backend.names(kind) if _number(place)})


def counting(places: Iterable[str], read: Callable[[str], Meta]) -> set[str]:
    """Return the names of those files below `roots/` whose artifacts and runs garbage collection must keep: all pins
    and other unnumbered roots; for each recipe, the newest frozen rows (test rows to compare models on); and for each
    recipe the files of its last 3 champions (models that users should get).

    Three different artifacts count as 3 champions: if a model was champion several times, only its newest file is
    returned. The frozen rows that a champion was compared on are named by the champion's own file. Files below
    `roots/retrained`, which say how retrains ended, are not returned.

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
