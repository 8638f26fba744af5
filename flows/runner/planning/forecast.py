"""Predict the seconds and bytes of a stage that has to run, from the attempt that made its most similar past result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flows.runner.call import Outcome
from tasks.artifact import Meta
from tasks.keys.explain import difference
from tasks.store import Store

ANYWAY = ("hit", "skip")
"""What costs nothing."""


class Forecast(NamedTuple):
    """What a stage is expected to take. seconds: wall-clock time; bytes: size of its artifact; both None when no past
    attempt recorded them."""

    seconds: float | None = None
    bytes: int | None = None


def forecast(store: Store, records: list[Meta], known: Meta) -> Forecast:
    """Return what a stage is expected to take: the figures of its most similar past result.

    records: the stage's past records, newest first; known: the parts of the stage's key document that are known already.
    The record that differs least in these parts is used, and of several the newest.
    """
    for record in sorted(records, key=lambda record: _distance(record["document"], known)):
        attempt = store.attempt(record["key"], record["attempt"])
        if attempt.get("seconds") is not None:
            return Forecast(float(attempt["seconds"]), attempt.get("bytes"))
    return Forecast()


def _distance(document: Meta, known: Meta) -> int:
    return len(difference({part: document[part] for part in known}, known))


def dollars(seconds: float, price_per_hour: float) -> float:
    """Return the price in USD of `seconds` on hardware that costs `price_per_hour` USD."""
    return seconds / 3600 * price_per_hour


def total(outcomes: Iterable[Outcome], price_per_hour: float) -> Meta:
    """Return the sums over all stages that would or may run: {"seconds", "bytes", "dollars", "unknown"}.

    unknown: the names of stages without a past result; they count as 0 in the sums.
    """
    due = [outcome for outcome in outcomes if outcome.action not in ANYWAY]
    seconds = sum(outcome.seconds or 0.0 for outcome in due)
    return {
        "seconds": seconds,
        "bytes": sum(outcome.bytes or 0 for outcome in due),
        "dollars": dollars(seconds, price_per_hour),
        "unknown": [outcome.stage for outcome in due if outcome.seconds is None],
    }
