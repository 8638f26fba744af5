"""What a store of format 1 kept in the place of ledgers, as a ledger's first entries.

`roots/champions/<recipe>/<n>.json` and `roots/frozen/<recipe>/<n>.json`, of which the highest n counted;
`roots/judged/<recipe>.json`, the newest judged model; `roots/retrained/<recipe>.json`, how the newest retrain ended.
The files stay, and nothing but their entries counts once a ledger has an entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import PlacedError
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.ledger.entries import (
    NOTHING,
    Entry,
    JudgedModel,
    NewEntry,
    Outcome,
    complete_entry,
    number_of,
    quoted_name,
    unreadable,
)
from trnflow.tasks.system.json_objects import misfit

CHAMPIONS, FROZEN, JUDGED, RETRAINED = (f"roots/{kind}" for kind in ("champions", "frozen", "judged", "retrained"))
FOLDERS = (CHAMPIONS, FROZEN, JUDGED, RETRAINED)


def old_files(backend: Backend, recipe: str) -> Iterator[str]:
    """Yield the names of the files about a recipe. Costs four requests."""
    for folder in (CHAMPIONS, FROZEN):
        yield from backend.names(f"{folder}/{quoted_name(recipe)}")
    for folder in (JUDGED, RETRAINED):
        place = f"{folder}/{quoted_name(recipe)}.json"
        if backend.size(place) is not None:
            yield place


def import_entries(recipe: str, documents: dict[str, Meta]) -> list[Entry]:
    """Return the entries that say what the files say, in the order of their times; equal files give equal entries.

    documents: {name of a file: its content}. Raises StoreError if one is damaged.
    """
    timed = [*_numbered(documents, FROZEN, _frozen), *_numbered(documents, CHAMPIONS, _champion)]
    timed += [(entry["created"], entry) for entry in _retrains(recipe, documents)]
    entries: list[Entry] = []
    for n, (_, entry) in enumerate(sorted(timed, key=lambda pair: pair[0]), 1):
        before = entries[-1]["stands"] if entries else NOTHING
        entries.append(complete_entry(recipe, n, before, entry | NewEntry(imported=True)))
    return entries


def _numbered(
    documents: dict[str, Meta], folder: str, convert: Callable[[Meta], NewEntry]
) -> Iterator[tuple[str, NewEntry]]:
    """Yield (time, entry) of the numbered files of one kind. Clocks differ, so numbers decide within a kind."""
    latest = ""
    for place in sorted((place for place in documents if place.startswith(f"{folder}/")), key=number_of):
        entry = _converted(place, documents[place], convert) | NewEntry(number=number_of(place))
        latest = max(latest, entry["created"])
        yield latest, entry


def _retrains(recipe: str, documents: dict[str, Meta]) -> Iterator[NewEntry]:
    """Yield the entry of the newest judged model and that of the newest retrain: one entry if they are the same."""
    names = [f"{folder}/{quoted_name(recipe)}.json" for folder in (JUDGED, RETRAINED)]
    judged, ended = (documents.get(name) for name in names)
    entry = _converted(names[0], judged, _judged) if judged is not None else None
    ending = _converted(names[1], ended, _ended) if ended is not None else None
    if entry and ending and (ending["run"], ending["outcome"]) == (entry["run"], entry["outcome"]):
        yield entry | ending
        return
    yield from (each for each in (entry, ending) if each)


def _converted(place: str, document: Meta, convert: Callable[[Meta], NewEntry]) -> NewEntry:
    try:
        entry = convert(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise unreadable(place, f"{type(error).__name__}: {error}") from error
    if wrong := misfit(entry, NewEntry):
        raise unreadable(place, wrong)
    return entry


def _frozen(document: Meta) -> NewEntry:
    return NewEntry(
        outcome="frozen", by="freeze", why="the test rows were frozen", frozen=document["artifact"],
        records=document.get("records", []), created=document.get("created", ""),
    )  # fmt: skip


def _champion(document: Meta) -> NewEntry:
    outcome: Outcome = "rolled back" if document.get("action") == "rolled back" else "promoted"
    same = ("replaces", "frozen", "scores", "evaluation", "task", "shaping", "comparison")
    entry: Meta = {name: document.get(name) for name in same}
    return cast(NewEntry, entry) | NewEntry(
        outcome=outcome, by=document.get("by") or ("promote" if outcome == "promoted" else "rollback"),
        why=document.get("why", ""), champion=document["artifact"], challenger=document["artifact"],
        records=document.get("records", []), created=document.get("created", ""),
    )  # fmt: skip


def _judged(document: Meta) -> NewEntry:
    outcome = document["document"]
    earlier = [JudgedModel(run=each["run"], model=each["model"]) for each in document.get("earlier", [])]
    return NewEntry(
        outcome="promoted" if outcome.get("promoted") else "kept", by="retrain", why=outcome.get("why", ""),
        run=document["run"], challenger=outcome["challenger"], created=document.get("created", ""),
        judged=[JudgedModel(run=document["run"], model=outcome["challenger"]), *earlier],
    )  # fmt: skip


def _ended(document: Meta) -> NewEntry:
    outcome = document["document"]
    error = outcome.get("error")
    whole = error and cast(PlacedError, {"stage": None, "type": "", "message": "", "fix": ""} | error)
    return NewEntry(
        outcome=document["outcome"], by="retrain", why=outcome.get("why", ""), run=outcome.get("run"),
        data=document["data"], challenger=outcome.get("challenger"), checks=outcome.get("checks", []),
        error=whole, created=document["created"], settled=document["settled"],
        failures=document["failures"],
    )  # fmt: skip
