"""Write the metrics that a stage reports (loss and others, step by step) as JSON lines to a file beside the stage's
log, in `<home>/logs`, where home is the folder of local state (TRNFLOW_HOME).

Where the price of the hardware is known, the cost so far in USD is added.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from trnflow.flows.runner.forecast import dollars
from trnflow.tasks.artifact import Meta


class Curve:
    """Writes the metrics of one stage to a file and adds their cost.

    Args:
        file: Gets one line for each event that reports metrics: `{"stage": the stage's name, "step": the training step,
            "time": seconds since 1970, "values": {name of a metric: value}}`. Created with the first line; later lines
            are appended.
        stage: The stage's name.
        price_per_hour: Price of the hardware in USD per hour; 0 adds no cost.
    """

    def __init__(self, file: Path, stage: str, price_per_hour: float) -> None:
        self._file, self._stage, self._price = file, stage, price_per_hour
        self._begun = time.monotonic()

    def priced(self, event: Meta) -> Meta:
        """Return a copy of a stage's event that reports metrics (values of a step, such as the loss) or figures (such
        as samples_per_second), with the stage's cost so far added as `dollars` (USD).

        The cost is the price of the hardware for the time since this object was made. Other events, and all events if
        the hardware has no price, are returned unchanged.
        """
        if not self._price:
            return event
        spent = {"dollars": round(dollars(time.monotonic() - self._begun, self._price), 6)}
        if "metrics" in event:
            return event | {"metrics": event["metrics"] | {"values": event["metrics"]["values"] | spent}}
        return event | {"figures": event["figures"] | spent} if "figures" in event else event

    def note(self, event: Meta) -> None:
        if "metrics" in event:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"stage": self._stage} | event["metrics"], sort_keys=True) + "\n")
