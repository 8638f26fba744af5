"""What a stage says of itself step by step, as lines of JSON beside its log; with dollars, where the hardware has a price."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flows.forecast import dollars
from tasks.artifact import Meta


class Curve:
    """file: made with the first line, `{"stage", "step", "time", "values"}`; price_per_hour: USD; 0 says nothing of dollars."""

    def __init__(self, file: Path, stage: str, price_per_hour: float) -> None:
        self._file, self._stage, self._price = file, stage, price_per_hour
        self._begun = time.monotonic()

    def priced(self, event: Meta) -> Meta:
        """The event with what the stage cost so far, if it is one of metrics or figures."""
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
