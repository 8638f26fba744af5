"""Numbered roots: files `<root>/roots/<kind>/<name>/<n>.json`, of which the highest n counts.

Each file is created once and never changed, so the history stays and two writers can't overwrite each other: whoever
finds n + 1 taken reads it and decides anew. There are two kinds. `champions` names the model that a recipe's users should
get, with its evaluation, its scores and the frozen rows. `frozen` names the rows on which the recipe's models are compared.

Garbage collection follows only the files that count (see `counting`); the others stay, and keep nothing.
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
"""The folder of the files that say how a recipe's newest retrain ended. Such a file keeps nothing but itself."""

KEPT_CHAMPIONS = 3
"""The number of different artifacts, the last that were champions of a name, that garbage collection keeps."""


class Numbered(NamedTuple):
    """A numbered root. number: the n of its file; document: the file's content."""

    number: int
    document: Meta


def add_numbered(backend: Backend, kind: str, name: str, number: int, document: Meta) -> bool:
    """Create a numbered root; return False if this number is taken.

    kind: CHAMPIONS or FROZEN; name: of a recipe, any text."""
    data = json.dumps(document, indent=1, sort_keys=True).encode()
    return backend.create(_place(kind, name, number), data)


def remove_numbered(backend: Backend, kind: str, name: str, number: int) -> None:
    """Remove a numbered root that was just created, because what it names was lost meanwhile."""
    backend.remove(_place(kind, name, number))


def numbered(backend: Backend, kind: str, name: str) -> list[Numbered]:
    """Return the numbered roots of a name, the highest number first. StoreError when one can't be read."""
    folder = f"{kind}/{quoted_name(name)}"
    places = sorted(((_number(place), place) for place in backend.names(folder)), reverse=True)
    return [Numbered(number, _document(place, backend.read(place))) for number, place in places if number]


def series_of(found: list[Numbered]) -> str:
    """Return a text that names a series of numbered roots: two stores have different ones, even under the same path, because
    each series begins with a file of its own time. found: all roots of a name, the highest number first."""
    first = found[-1].document
    return f"{first['created']} {str(first['artifact'])[7:19]}"


def names_of(backend: Backend, kind: str) -> list[str]:
    """Return the names that have a numbered root of a kind, sorted."""
    return sorted({unquote(place.split("/")[2]) for place in backend.names(kind) if _number(place)})


def counting(places: Iterable[str], read: Callable[[str], Meta]) -> set[str]:
    """Return those of the files below `roots/` that garbage collection follows.

    These are all pins and other unnumbered roots (but not those of `RETRAINED`), the newest file of each of the last three
    different artifacts that were champions of a name, and the newest frozen rows of a name. The rows that a champion was
    compared on are named by its own file. read: returns the document of a file."""
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
    """Return a recipe's name as the name of a file or folder: letters, digits, `_`, `-` and inner dots stay."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E", 1) if quoted.startswith(".") else quoted


def _number(place: str) -> int:
    """The n of a numbered root's file, from 1 on; 0 of any other file."""
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
