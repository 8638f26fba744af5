"""Follow how far a stage is, from the events that it reports, and estimate when its work will be done."""

from __future__ import annotations

import time
from collections.abc import Callable

from tasks.artifact import Meta

Clock = Callable[[], float]


class StageProgress:
    """The progress of one stage, updated from the stage's events.

    Args:
        stage: The stage's name.
        clock: Returns monotonic time in seconds.

    Attributes:
        done, total: How many units of the work are done, and how many there are; both 0 until the stage reports
            progress.
        unit: The unit, such as `steps` or `rows`.
        values: The last value of each metric that the stage reported, by name.
    """

    def __init__(self, stage: str, clock: Clock = time.monotonic) -> None:
        self.stage, self._clock, self._begun = stage, clock, clock()
        self.done, self.total, self.unit = 0, 0, ""
        self.values: dict[str, float] = {}
        self._first = self._last = (0.0, 0)

    def take(self, event: Meta) -> None:
        """Update the progress from an event of the stage, which may have `progress` (done, total, unit and values to
        show) and `metrics`. Other events change nothing."""
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
        """The seconds since this object was made, which is when the stage began."""
        return self._clock() - self._begun

    @property
    def eta(self) -> float | None:
        """The expected seconds until the work that the stage counts now is done, at the mean speed since its first
        report of it. None before the count has risen."""
        (begun, first), (last, done) = self._first, self._last
        if done <= first:
            return None
        return max((self.total - done) * (last - begun) / (done - first) - (self._clock() - last), 0.0)

    @property
    def counted(self) -> Meta:
        """The progress as {"step": units done, "of": units in all, "unit": their name, "eta": expected seconds until
        the work is done, None until known}."""
        eta = None if self.eta is None else round(self.eta, 1)
        return {"step": self.done, "of": self.total, "unit": self.unit, "eta": eta}

    @property
    def figures(self) -> Meta:
        """The values that a log line contains, by name: the last value of each metric, the entries of `counted` (before
        the first report of progress only `eta`, None) and `elapsed` in seconds."""
        counted = self.counted if self.total else {"eta": None}
        return {**self.values, **counted, "elapsed": round(self.elapsed, 1)}
