"""Look whether a recipe's data differs from that of its newest retrain.

A look costs a stat for each unchanged file. `<home>/watch/<recipe>.json` keeps what earlier looks saw. The caller
announces a change by the event that starts a retrain.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.ended import Ended, newest_ended, present_data
from trnflow.flows.retraining.lease import holder_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import is_ahead
from trnflow.tasks.store.ledger.entries import quoted_name
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.json_objects import read_object
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.whole_file import write_whole

EVERY_SECONDS = 300.0
TRIES = 3
LONGEST_WAIT = 3600.0

Outcome = Literal["unchanged", "new", "changed", "waiting", "training", "failed"]


class Look(NamedTuple):
    """The result of one look.

    Attributes:
        outcome: `unchanged`; `new` (a later look must find the same data); `changed` (a retrain is due); `waiting`
            (announced before, or a retrain failed on this data); `training` (a retrain is under way); `failed` (three
            retrains failed on this data).
        data: Its digest.
        why: For the user.
    """

    recipe: str
    outcome: Outcome
    data: str
    why: str

    def to_json(self) -> Meta:
        """Return what `trnflow watch --json` prints of a look."""
        return {"schema": 1, **self._asdict()}


class WatchState(NamedTuple):
    """What earlier looks saw. Times are seconds since 1970.

    data: the digest that the last look found, first at `since`; told: how often it was announced; last: when, or 0.
    """

    data: str = ""
    since: float = 0.0
    told: int = 0
    last: float = 0.0


def look(
    recipe: Recipe,
    store: Store,
    *,
    every: float = EVERY_SECONDS,
    offline: bool = False,
    clock: Callable[[], float] = time.time,
) -> Look:
    """Look at a recipe's data once. If the outcome is `changed`, the caller announces it, then calls `note_announced`.

    every: seconds between two looks, also the first wait before a change is announced again; clock: returns seconds since
    1970. Raises ConfigError, DataError or StoreError if data, ledger or the home can't be used.
    """
    data = present_data(recipe, store, offline=offline)
    time_now, seen = clock(), _read(_file(store, recipe.name))
    if seen.data != data or time_now < max(seen.since, seen.last):  # or the clock was ahead, and would hold all up
        seen = WatchState(data, time_now)
        _write(_file(store, recipe.name), recipe.name, seen)
    outcome, why = _judge(recipe, store, seen, every, time_now)
    return Look(recipe.name, outcome, data, why)


def note_announced(finding: Look, store: Store, *, clock: Callable[[], float] = time.time) -> None:
    """Record that a change was announced; nothing if a later look found other data."""
    seen = _read(_file(store, finding.recipe))
    if seen.data == finding.data:
        _write(_file(store, finding.recipe), finding.recipe, seen._replace(told=seen.told + 1, last=clock()))


def _judge(recipe: Recipe, store: Store, seen: WatchState, every: float, time_now: float) -> tuple[Outcome, str]:
    """Return a look's outcome, and why."""
    name, ended = recipe.name, newest_ended(store, recipe.name)
    if ended is not None and ended.settled == seen.data:
        return "unchanged", f"the data of {name} is that of its newest retrain"
    # a file that still grows starts no retrain
    if time_now - seen.since < every / 2:
        return "new", f"the data of {name} is new: it counts as changed if it is the same {every / 2:.0f} s later"
    if (holder := holder_of(recipe, store)) is not None:
        return "training", f"a retrain of {name} is under way: {holder}"
    failures = ended.failures if ended is not None and ended.data == seen.data else 0
    # the nightly schedule still tries this data
    if failures >= TRIES:
        fix = f"see `trnflow retrain {name}`, correct the data or the recipe"
        return "failed", f"{failures} retrains of {name} failed on this data, and it is not tried again: {fix}"
    if (due := _due(ended if failures else None, seen, every)) > time_now:
        when = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        since = f"a retrain failed on it {failures} times" if failures else "it was announced"
        return "waiting", f"the data of {name} changed, and {since}; it is announced again after {when}"
    return "changed", f"the data of {name} changed" if ended else f"no retrain of {name} has ended in this store yet"


def _due(failed: Ended | None, seen: WatchState, every: float) -> float:
    """Return when a change is announced. failed: the newest retrain, if it failed on this data."""
    announced = seen.last + _wait(every, seen.told) if seen.told else 0.0
    if failed is None:
        return announced
    ended = datetime.fromisoformat(failed.created).timestamp()
    return announced if is_ahead(failed.created) else max(announced, ended + _wait(every, failed.failures))


def _wait(every: float, times: int) -> float:
    """Return the seconds to wait after `times` announcements or failures, at most an hour."""
    # announced again as long as the change lasts: an event may be lost
    return min(every * 2.0 ** min(times - 1, 12), LONGEST_WAIT)


def _file(store: Store, recipe: str) -> Path:
    return store.home / "watch" / f"{quoted_name(recipe)}.json"


def _read(file: Path) -> WatchState:
    """Return what earlier looks saw; nothing if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        # a damaged file costs one look: the data then count as new
        document: Meta = read_object(file.read_bytes())
        return WatchState(
            str(document["data"]), float(document["since"]), int(document["told"]), float(document["last"])
        )
    return WatchState()


def _write(file: Path, recipe: str, seen: WatchState) -> None:
    """Write down what was seen. Raises StoreError."""
    document = {"schema": 1, "recipe": recipe, "created": now(), **seen._asdict()}
    try:
        make_home(file.parents[1])
        write_whole(file, json.dumps(document, indent=1))
    except OSError as error:
        raise StoreError(f"{file} can't be written: {error}", "free some space, or set TRNFLOW_HOME") from error
