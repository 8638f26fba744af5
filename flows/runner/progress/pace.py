"""Estimate when a stage that counts its work will be done."""

from __future__ import annotations

import time
from collections.abc import Callable

from tasks.artifact import Json, Meta


class Pace:
    """The pace of a stage since its first count. A training that was resumed begins to count above 0.

    clock: Seconds of a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._unit: Json = None
        self._first, self._begun = 0, 0.0

    def at(self, progress: Meta) -> Meta:
        """Return {step, of, unit, eta} of an event's `progress`. eta: seconds until the stage is done with this unit; None
        as long as it is unknown."""
        done, total, unit = int(progress["done"]), int(progress["total"]), progress.get("unit")
        now = self._clock()
        if unit != self._unit or done < self._first:
            self._unit, self._first, self._begun = unit, done, now
        gone = done - self._first
        eta = round((now - self._begun) / gone * (total - done), 1) if gone and total >= done else None
        return {"step": done, "of": total, "unit": unit, "eta": eta}
