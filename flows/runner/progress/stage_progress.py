"""Follow how far a stage is, from the events that it reports, and estimate when its work will be done."""

from __future__ import annotations

import time
from collections.abc import Callable

from tasks.artifact import Meta

Clock = Callable[[], float]


class StageProgress:
    """The progress of one stage, updated from its events.

    done, total: how much of the work is done, in units of `unit` (such as `steps`); total is 0 until the stage reports one.
    values: the last value of each metric, by name. clock: a monotonic clock in seconds.
    """

    def __init__(self, stage: str, clock: Clock = time.monotonic) -> None:
        self.stage, self._clock, self._begun = stage, clock, clock()
        self.done, self.total, self.unit = 0, 0, ""
        self.values: dict[str, float] = {}
        self._first = self._last = (0.0, 0)

    def take(self, event: Meta) -> None:
        """Update the progress from an event of the stage, which may have `progress` (done, total, unit) and `metrics`."""
        if "metrics" in event:
            self.values |= event["metrics"]["values"]
        progress = event.get("progress")
        if progress:
            self._count(progress["done"], progress["total"], progress["unit"])
            self.values |= {k: v for k, v in progress.items() if k not in ("done", "total", "unit")}

    def _count(self, done: int, total: int, unit: str) -> None:
        now = self._clock()
        if (total, unit) != (self.total, self.unit):  # the stage begins to count something else
            self._first = (now, done)
        self.done, self.total, self.unit, self._last = done, total, unit, (now, done)

    @property
    def elapsed(self) -> float:
        """The seconds since the stage began."""
        return self._clock() - self._begun

    @property
    def eta(self) -> float | None:
        """The expected seconds until the work is done, at the mean speed so far. None before the stage has reported
        progress twice."""
        (begun, first), (last, done) = self._first, self._last
        if done <= first:
            return None
        return max((self.total - done) * (last - begun) / (done - first) - (self._clock() - last), 0.0)

    @property
    def counted(self) -> Meta:
        """How far the work is: `step` of `of` in `unit`, and `eta` in seconds, None until it is known."""
        eta = None if self.eta is None else round(self.eta, 1)
        return {"step": self.done, "of": self.total, "unit": self.unit, "eta": eta}

    @property
    def figures(self) -> Meta:
        """What is known, by name: `step` of `of` in `unit` (once the stage counts), `eta` in seconds (None until it is
        known), `elapsed` in seconds, and the last value of each metric."""
        counted = self.counted if self.total else {"eta": None}
        return {**self.values, **counted, "elapsed": round(self.elapsed, 1)}
