"""Predict the seconds and bytes of a stage that has to run, from the attempt that made its most similar past result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flows.runner.call import Outcome
from tasks.artifact import Meta
from tasks.keys.explain import difference
from tasks.store import Store

ANYWAY = ("hit", "skip")
"""The actions of stages that cost nothing: the artifact is in the store, or no other stage needs it."""


class Forecast(NamedTuple):
    """The expected cost of running a stage. seconds: wall-clock time; bytes: size of its artifact. Each is None when no
    past attempt recorded it."""

    seconds: float | None = None
    bytes: int | None = None


def forecast(store: Store, records: list[Meta], known: Meta) -> Forecast:
    """Return the expected seconds and bytes of a stage: those of the attempt that made its most similar past result.

    The past result whose key document (the JSON of all that decides a result) differs in the fewest values is used, and
    of several the newest. Results whose attempt has no record of its seconds are passed over.

    store: the store of the attempts' journals; records: the records of the stage's past results, newest first; known:
    the entries of the stage's key document that are known already, such as {"params": ...}. Only these are compared.
    """
    for record in sorted(records, key=lambda record: _distance(record["document"], known)):
        attempt = store.attempt(record["key"], record["attempt"])
        if attempt.get("seconds") is not None:
            return Forecast(float(attempt["seconds"]), attempt.get("bytes"))
    return Forecast()


def _distance(document: Meta, known: Meta) -> int:
    return len(difference({part: document[part] for part in known}, known))


def dollars(seconds: float, price_per_hour: float) -> float:
    """Return the cost in USD of `seconds` seconds on hardware that costs `price_per_hour` USD per hour."""
    return seconds / 3600 * price_per_hour


def total(outcomes: Iterable[Outcome], price_per_hour: float) -> Meta:
    """Return the sums over all planned stages that would run or may run (those with another action than `hit` and
    `skip`): {"seconds", "bytes", "dollars", "unknown"}.

    unknown: the names of the stages whose seconds can't be predicted; they count as 0 seconds. price_per_hour: USD.
    """
    due = [outcome for outcome in outcomes if outcome.action not in ANYWAY]
    seconds = sum(outcome.seconds or 0.0 for outcome in due)
    return {
        "seconds": seconds,
        "bytes": sum(outcome.bytes or 0 for outcome in due),
        "dollars": dollars(seconds, price_per_hour),
        "unknown": [outcome.stage for outcome in due if outcome.seconds is None],
    }
