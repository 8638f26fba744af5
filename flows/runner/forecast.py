"""Predict how long a stage will run and how large its artifact will be, from its past attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

from trnflow.tasks.documents import Record
from trnflow.tasks.keys.explain import difference
from trnflow.tasks.store import Store

ANYWAY = ("hit", "skip")
"""The actions of stages that cost nothing: the artifact is in the store, or no other stage needs it."""


class Forecast(NamedTuple):
    """The expected cost of a stage. seconds: wall clock; bytes: of its artifact; None if no attempt recorded them."""

    seconds: float | None = None
    bytes: int | None = None


class Total(TypedDict):
    """What stages are expected to cost together. unknown: those whose seconds can't be predicted; they count as 0."""

    seconds: float
    bytes: int
    dollars: float
    unknown: list[str]


def forecast(store: Store, records: list[Record], known: Mapping[str, Any]) -> Forecast:
    """Return what the attempt needed that made the past result most like this one.

    Args:
        records: Of the stage, newest first.
        known: The tables of the key document that are known before the run, which alone are compared.
    """

    def distance(record: Record) -> int:
        past: Mapping[str, Any] = record["document"]
        return len(difference({part: past[part] for part in known}, known))

    # a journal may be lost or torn: the next nearest then tells
    for record in sorted(records, key=distance):
        attempt = store.attempt(record["key"], record["attempt"])
        if attempt.get("seconds") is not None:
            return Forecast(float(attempt["seconds"]), attempt.get("bytes"))
    return Forecast()


def dollars(seconds: float, price_per_hour: float) -> float:
    """Return the cost in USD of `seconds` seconds on hardware that costs `price_per_hour` USD per hour."""
    return seconds / 3600 * price_per_hour


def total(stages: Iterable[Mapping[str, Any]], price_per_hour: float) -> Total:
    """Return what the stages of a plan that would run or may run are expected to cost together. price_per_hour: USD."""
    due = [stage for stage in stages if stage["action"] not in ANYWAY]
    seconds = sum(stage["seconds"] or 0.0 for stage in due)
    return Total(
        seconds=seconds,
        bytes=sum(stage["bytes"] or 0 for stage in due),
        dollars=dollars(seconds, price_per_hour),
        unknown=[stage["stage"] for stage in due if stage["seconds"] is None],
    )
