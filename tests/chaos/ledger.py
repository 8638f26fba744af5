"""What the firings of a schedule came to: each one's outcome, whether any is missing or double, what was judged."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from tests.chaos.house import is_final, time_of

JUDGED = ("promoted", "kept")
BUSY = "busy"
"""The outcome of a firing during another one's retrain, which `trnflow retrain` calls unchanged."""


class Firing(NamedTuple):
    """A flow run that has ended.

    Attributes:
        number: Its number among the firings of the schedule, from 1.
        due: Its time in the schedule.
        outcome: As `trnflow retrain` names it, or BUSY.
        documents: The JSON of `trnflow retrain`; of a retrain that went round twice that of the first round too.
    """

    number: int
    due: datetime
    begun: datetime
    ended: datetime
    outcome: str
    documents: tuple[dict[str, Any], ...]

    @property
    def line(self) -> str:
        late, took = (self.begun - self.due).total_seconds(), (self.ended - self.begun).total_seconds()
        why = " ".join(str(self.documents[-1]["why"]).split())
        return (
            f"{self.number:4} due {self.due:%H:%M:%S} late {late:5.1f} took {took:5.1f} s  {self.outcome:10}{why[:100]}"
        )


def firing(number: int, run: dict[str, Any], events: list[dict[str, Any]]) -> Firing:
    """The firing of a flow run and of its events, the last of which must say the same."""
    outcome = str(events[-1]["event"]).removeprefix("trnflow.retrain.")
    state = str(run["state_name"]).lower()
    assert outcome == state, f"flow run {run['id']}: Prefect says {state}, the event says {outcome}"
    if outcome == "unchanged" and "is under way" in events[-1]["payload"]["why"]:
        outcome = BUSY
    due, begun, ended = (time_of(run[name]) for name in ("expected_start_time", "start_time", "end_time"))
    return Firing(number, due, begun, ended, outcome, tuple(one["payload"] for one in events))


def judged(firings: Iterable[Firing]) -> list[tuple[str, str]]:
    """(outcome, id of the run whose model was judged) of each judgement, in the order of the firings' ends."""
    documents = (one for done in sorted(firings, key=lambda one: one.ended) for one in done.documents)
    return [("promoted" if one["promoted"] else "kept", one["run"]) for one in documents if is_judgement(one)]


def is_judgement(document: dict[str, Any]) -> bool:
    return bool(document["changed"] and document["run"] and not document["stopped"] and "error" not in document)


def faults(runs: list[dict[str, Any]], every: int) -> list[str]:
    """Say which flow runs of a schedule are lost, double, or in no final state. runs: all of them, by their due time."""
    found = [
        f"{run['id']} (due {run['expected_start_time']}): {run['state_name']}" for run in runs if not is_final(run)
    ]
    for one, other in pairwise(time_of(run["expected_start_time"]) for run in runs):
        if other - one != timedelta(seconds=every):
            found.append(
                f"{(other - one).total_seconds():.0f} s, not {every} s, between the firings of {one} and {other}"
            )
    return found


def sequence(firings: list[Firing]) -> str:
    """The outcomes in the order in which the firings began, equal neighbours counted."""
    outcomes = [one.outcome for one in sorted(firings, key=lambda one: one.begun)]
    counted = [(outcome, len([*same])) for outcome, same in groupby(outcomes)]
    return ", ".join(f"{outcome} x{count}" if count > 1 else outcome for outcome, count in counted)
