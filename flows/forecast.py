"""What a stage that has to run is expected to take: the figures of the attempt that made its past result most like this one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flows.call import Outcome
from tasks.artifact import Meta
from tasks.explain import difference
from tasks.store import Store

ANYWAY = ("hit", "skip")
"""What costs nothing."""


class Forecast(NamedTuple):
    """seconds: of the clock; bytes: of the artifact; None where no attempt says."""

    seconds: float | None = None
    bytes: int | None = None


def forecast(store: Store, records: list[Meta], known: Meta) -> Forecast:
    """records: the stage's past, newest first; known: the parts of its key document that are known yet. Of the records
    that differ least in these the newest counts."""
    for record in sorted(records, key=lambda record: _distance(record["document"], known)):
        attempt = store.attempt(record["key"], record["attempt"])
        if attempt.get("seconds") is not None:
            return Forecast(float(attempt["seconds"]), attempt.get("bytes"))
    return Forecast()


def _distance(document: Meta, known: Meta) -> int:
    return len(difference({part: document[part] for part in known}, known))


def dollars(seconds: float, price_per_hour: float) -> float:
    """USD for `seconds` on hardware of that price."""
    return seconds / 3600 * price_per_hour


def total(outcomes: Iterable[Outcome], price_per_hour: float) -> Meta:
    """{seconds, bytes, dollars, unknown} of what runs or may run; unknown: stages that have no past, not in the sums."""
    due = [outcome for outcome in outcomes if outcome.action not in ANYWAY]
    seconds = sum(outcome.seconds or 0.0 for outcome in due)
    return {
        "seconds": seconds,
        "bytes": sum(outcome.bytes or 0 for outcome in due),
        "dollars": dollars(seconds, price_per_hour),
        "unknown": [outcome.stage for outcome in due if outcome.seconds is None],
    }
