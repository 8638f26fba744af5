"""Predict how long a stage will run and how large its artifact will be, from its past attempts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from trnflow.tasks.artifact import Meta
from trnflow.tasks.keys.explain import difference
from trnflow.tasks.store import Store

ANYWAY = ("hit", "skip")
"""The actions of stages that cost nothing: the artifact is in the store, or no other stage needs it."""


class Expected(Protocol):
    """What a planned step is expected to cost."""

    action: str
    seconds: float | None

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int | None: ...


class Forecast(NamedTuple):
    """The expected cost of a stage. seconds: wall clock; bytes: of its artifact; None if no attempt recorded them."""

    seconds: float | None = None
    bytes: int | None = None


def forecast(store: Store, records: list[Meta], known: Meta) -> Forecast:
    """Return what the attempt needed that made the past result most like this one.

    Args:
        records: Of the stage, newest first.
        known: The tables of the key document that are known before the run, which alone are compared.
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


def total(steps: Iterable[Expected], price_per_hour: float) -> Meta:
    """Return the expected cost of a plan: the sums over the stages that would run or may run. Stages with the action
    `hit` (the artifact is in the store) or `skip` (no other stage needs it) are not counted.

    Args:
        steps: The planned steps.
        price_per_hour: Price of the hardware in USD per hour.

    Returns:
        {"seconds": wall-clock seconds, "bytes": size of the stages' artifacts, "dollars": USD for these seconds,
        "unknown": the names of the stages whose seconds can't be predicted, which count as 0 seconds}.
    """
    due = [step for step in steps if step.action not in ANYWAY]
    seconds = sum(step.seconds or 0.0 for step in due)
    return {
        "seconds": seconds,
        "bytes": sum(step.bytes or 0 for step in due),
        "dollars": dollars(seconds, price_per_hour),
        "unknown": [step.name for step in due if step.seconds is None],
    }
