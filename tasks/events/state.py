"""Compute the state of a run from its events: progress, time left, outcome, cost. Nothing else computes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import Counted, RecordedStage, RunRecord
from trnflow.tasks.errors import ErrorDocument, PlacedError
from trnflow.tasks.events.event_types import Event, Progress, RunBegun, RunEnded, StageEnded, stages_of

NOTHING_TO_DO = ("hit", "skip")
"""Actions of stages that cost nothing."""
OVER = ("ran", "hit", "skip")
"""Actions of stages that have ended."""

RECORDED = ("stage", "action", "key", "artifact", "seconds", "metrics", "figures", "why")
"""What a run record has of a stage."""

Clock = Callable[[], float]


@dataclass
class StageState:
    """The state of one stage.

    Attributes:
        action: hit, run, maybe or skip by the plan; running; then ran, hit, skip or failed.
        expected: Seconds by the plan, or None.
        due: Whether the plan has something to do for the stage.
        begun: Seconds since 1970; None before the stage begins.
        done, total, unit: The last counted progress; 0, 0, "" before the first.
        values: {name: the last value} of metrics, and of values beside the progress.
    """

    stage: str
    action: str = "run"
    expected: float | None = None
    due: bool = False
    key: str | None = None
    attempt: str | None = None
    artifact: str | None = None
    begun: float | None = None
    seconds: float | None = None
    done: int = 0
    total: int = 0
    unit: str = ""
    values: Meta = field(default_factory=dict)
    metrics: Meta = field(default_factory=dict)
    figures: Meta = field(default_factory=dict)
    facts: Meta = field(default_factory=dict)
    why: str = ""
    error: ErrorDocument | None = None
    _first: tuple[float, int] = (0.0, 0)
    _last: tuple[float, int] = (0.0, 0)

    def count(self, event: Progress) -> None:
        """Take a report of progress."""
        if (event["total"], event["unit"]) != (self.total, self.unit):  # the stage begins to count something else
            self._first = (event["time"], event["done"])
        self.done, self.total, self.unit = event["done"], event["total"], event["unit"]
        self._last = (event["time"], event["done"])
        self.values |= event["values"]

    def elapsed(self, now: float) -> float:
        """Return the seconds since the stage began, 0 before. now: seconds since 1970."""
        return 0.0 if self.begun is None else max(now - self.begun, 0.0)

    def eta(self, now: float) -> float | None:
        """Return the expected seconds until `done` reaches `total`, by the mean speed since the first report with the
        present total and unit; None until `done` has grown since then. now: seconds since 1970."""
        (begun, first), (last, done) = self._first, self._last
        if done <= first:
            return None
        return max((self.total - done) * (last - begun) / (done - first) - (now - last), 0.0)

    def counted(self, now: float) -> Counted:
        """Return the progress as heartbeats, `status` and logs have it. now: seconds since 1970."""
        eta = self.eta(now)
        return {"step": self.done, "of": self.total, "unit": self.unit, "eta": None if eta is None else round(eta, 1)}

    def shown(self, now: float) -> Meta:
        """Return the values that a line of a log has. Before the first progress, `eta` (None) is all that is counted."""
        counted: Meta = {**self.counted(now)} if self.total else {"eta": None}
        return {**self.values, **counted, "elapsed": round(self.elapsed(now), 1)}

    @property
    def share(self) -> float:
        """The share of the stage's present count that is done, 0 to 1."""
        return min(self.done / self.total, 1.0) if self.total else 0.0


@dataclass
class RunState:
    """The state of a run.

    Attributes:
        outcome: running, completed, failed or cancelled; killed if its log ends without the run's end.
        begun, ended: Seconds since 1970, or None.
        stages: By name.
        planned: The names of the plan's stages, in order; None before there is a plan.
        lost: Lines that could not be written.
        skipped: Lines that are no events.
    """

    run: str = ""
    recipe: str = ""
    kind: str = "run"
    parent: str | None = None
    outcome: str = "running"
    begun: float | None = None
    ended: float | None = None
    seconds: float | None = None
    price_per_hour: float = 0.0
    settings: Meta = field(default_factory=dict)
    options: Meta = field(default_factory=dict)
    store: str = ""
    host: Meta = field(default_factory=dict)
    checkout: Meta | None = None
    stages: dict[str, StageState] = field(default_factory=dict)
    planned: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    error: PlacedError | None = None
    lost: int = 0
    skipped: int = 0
    last: float = 0.0

    def take(self, event: Event) -> None:
        """Change the state by one event. Events of a later version change nothing."""
        self.last = max(self.last, event["time"])
        if event["event"] == "run_begun":
            self._begin(event)
        elif event["event"] == "planned":
            self.planned = [one["stage"] for one in stages_of(event)]
            for one in stages_of(event):
                due = one["action"] not in NOTHING_TO_DO
                planned = StageState(one["stage"], one["action"], one.get("seconds"), due, one.get("key"))
                self.stages[one["stage"]] = planned
        elif event["event"] == "stage_begun":
            before = self._of(event["stage"])
            begun = StageState(event["stage"], "running", before.expected, before.due, event["key"], event["attempt"])
            begun.begun, self.stages[event["stage"]] = event["time"], begun
        elif event["event"] == "progress":
            self._of(event["stage"]).count(event)
        elif event["event"] == "metrics":
            self._of(event["stage"]).values |= event["values"]
        elif event["event"] == "figures":
            self._of(event["stage"]).figures |= event["values"]
        elif event["event"] == "stage_ended":
            self._end_stage(event)
        elif event["event"] == "stage_failed":
            failed = self._of(event["stage"])
            failed.action, failed.error = "failed", event["error"]
        elif event["event"] == "run_ended":
            self._end(event)
        elif event["event"] == "skipped":
            self.skipped += 1

    def begin(self, stage: str) -> StageState:
        """Add work that is no stage of a plan, such as a prediction, as running from now on; return its state."""
        self.stages[stage] = StageState(stage, "running", begun=present())
        return self.stages[stage]

    def dollars(self, now: float | None = None) -> float:
        """Return the cost so far in USD, 0 without a price. now: seconds since 1970, of a run that has not ended."""
        spent = self.seconds
        if spent is None:
            spent = 0.0 if self.begun is None else max((self.last if now is None else now) - self.begun, 0.0)
        return spent / 3600 * self.price_per_hour

    def record(self) -> RunRecord:
        """Return the run record of a run that has ended: all that is needed to repeat it except secrets."""
        ended = [self.stages[name] for name in self.planned or () if self.stages[name].action in OVER]
        return {
            "schema": 1,
            "run": self.run,
            "recipe": self.recipe,
            "seconds": self.seconds,
            "dollars": round(self.dollars(), 4),
            "stages": [cast(RecordedStage, {name: getattr(stage, name) for name in RECORDED}) for stage in ended],
            "notes": self.notes,
            **({} if self.error is None else {"error": self.error}),
            "resolved": self.settings,
            "until": self.options["until"],
            "force": self.options["force"],
            "outcome": self.outcome,
            "ended": datetime.fromtimestamp(self.ended or self.last, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "host": self.host,
            "checkout": self.checkout,
        }

    @property
    def share(self) -> float:
        """The share of the run's expected seconds that is over, 0 to 1. A stage of unknown duration counts as the mean
        of the others, a running stage with the share that it reported."""
        due = [one for one in self.stages.values() if one.due]
        known = [one.expected for one in due if one.expected]
        weights = {one.stage: one.expected or (sum(known) / len(known) if known else 1.0) for one in due}
        if not weights:
            return 0.0 if self.planned is None else 1.0
        passed = sum(weights[one.stage] * (1.0 if one.action in OVER else one.share) for one in due)
        return passed / sum(weights.values())

    def _begin(self, event: RunBegun) -> None:
        self.run, self.recipe, self.kind = event["run"], event["recipe"], event["kind"]
        self.parent, self.begun, self.settings = event["parent"], event["time"], event["settings"]
        self.store, self.options, self.host = event["store"], event["options"], event["host"]
        self.checkout, self.price_per_hour, self.outcome = event["checkout"], event["price_per_hour"], "running"

    def _end_stage(self, event: StageEnded) -> None:
        ended = self._of(event["stage"])
        ended.action, ended.key, ended.artifact = event["action"], event["key"], event["artifact"]
        ended.seconds, ended.metrics, ended.why = event["seconds"], event["metrics"], event["why"]
        ended.figures, ended.facts = event["figures"], event["facts"]

    def _end(self, event: RunEnded) -> None:
        self.outcome, self.error, self.ended = event["outcome"], event["error"], event["time"]
        self.seconds, self.lost, self.notes = event["seconds"], event["lost"], event["notes"]

    def _of(self, stage: str) -> StageState:
        return self.stages.setdefault(stage, StageState(stage))


def fold(events: Iterable[Event], state: RunState | None = None) -> RunState:
    """Return the state of a run after these events. state: the state before them, changed in place."""
    state = RunState() if state is None else state
    for event in events:
        state.take(event)
    return state


def present() -> float:
    """Return the present time as events have it: seconds since 1970, to the millisecond."""
    return round(time.time(), 3)
