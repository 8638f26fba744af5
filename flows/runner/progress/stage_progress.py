"""Follow how far a stage is, from the events that it reports, and estimate when its work will be done."""

from __future__ import annotations

import time
from collections.abc import Callable

from trnflow.tasks.artifact import Meta

Clock = Callable[[], float]


class StageProgress:
    """The progress of one stage, updated from the stage's events.

    Args:
        stage: The stage's name.
        clock: Returns monotonic time in seconds.

    Attributes:
        done, total: How many units of the work are done, and how many there are in all; both 0 until the stage reports
            progress. A stage may count one thing after another: the last reported numbers are kept.
        unit: The name of the counted units, such as `steps` or `rows`; empty until the stage reports progress.
        values: {name: the last reported value} of the metrics, such as loss, and of the values reported with progress.
    """

    def __init__(self, stage: str, clock: Clock = time.monotonic) -> None:
        self.stage, self._clock, self._begun = stage, clock, clock()
        self.done, self.total, self.unit = 0, 0, ""
        self.values: dict[str, float] = {}
        self._first = self._last = (0.0, 0)

    def take(self, event: Meta) -> None:
        """Update the progress from an event of the stage.

        event: used are `progress`, {"done", "total", "unit": as the attributes; further values to show, by name}, and
        `metrics`, {"values": {name: value}}. An event with neither changes nothing.
        """
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
        """The seconds since this object was made, at the begin of the stage."""
        return self._clock() - self._begun

    @property
    def eta(self) -> float | None:
        """The expected seconds until `done` reaches `total`, at least 0. None until the stage has reported a higher
        `done` than in its first report with the present `total` and `unit`.

        The estimate takes the mean speed between that first report and the last one.
        """
        (begun, first), (last, done) = self._first, self._last
        if done <= first:
            return None
        return max((self.total - done) * (last - begun) / (done - first) - (self._clock() - last), 0.0)

    @property
    def counted(self) -> Meta:
        """The progress for a line of a log: {"step": units done, "of": units in all, "unit": the name of the units,
        "eta": expected seconds until all units are done, None if unknown}."""
        eta = None if self.eta is None else round(self.eta, 1)
        return {"step": self.done, "of": self.total, "unit": self.unit, "eta": eta}

    @property
    def figures(self) -> Meta:
        """The values that a line of a log contains, {name: value}: the last value of each metric, the entries of
        `counted`, and `elapsed`, the seconds since the stage began. Before the first report of progress, `eta` (None)
        is the only entry of `counted`."""
        counted = self.counted if self.total else {"eta": None}
        return {**self.values, **counted, "elapsed": round(self.elapsed, 1)}
