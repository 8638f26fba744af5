"""The events of a run, one class each: a line of the event log is one of them, as docs/events.md describes.

Additions to an event, and new events, keep SCHEMA. It grows when a reader of today would misread a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import RecordedStage, StageFacts
from trnflow.tasks.errors import ErrorDocument, PlacedError

SCHEMA = 1

Numbers = dict[str, float]


class _Line(TypedDict):
    """n: the line's number; a gap means lines that could not be written. time: seconds since 1970."""

    n: int
    time: float


class _RunBegun(_Line):
    """kind: run, retrain, trial, sweep, freeze, check, promote, rollback, mirror or preview. parent: the id of a trial's sweep.
    settings: the recipe with all settings, without secrets. price_per_hour: USD, 0 if unknown. why: the reason for a
    retrain."""

    event: Literal["run_begun"]
    schema: int
    run: str
    recipe: str
    kind: str
    parent: str | None
    settings: Meta
    options: Meta
    store: str
    host: Meta
    checkout: Meta | None
    price_per_hour: float


class RunBegun(_RunBegun, total=False):
    """tracking: {experiment, uri, artifacts, tags} in MLflow; None if the run is not for MLflow. artifacts: where a new
    experiment stores files."""

    why: str
    tracking: Meta | None


class PlannedStage(StageFacts):
    """action: hit, run, maybe or skip. seconds, bytes: expected; None if unknown."""

    bytes: int | None


class Planned(_Line):
    event: Literal["planned"]
    stages: list[PlannedStage]


class StageBegun(_Line):
    """settings: those in the stage's key."""

    event: Literal["stage_begun"]
    stage: str
    key: str
    attempt: str
    settings: Meta


class Progress(_Line):
    event: Literal["progress"]
    stage: str
    done: int
    total: int
    unit: str
    values: Meta


class Metrics(_Line):
    """time: of the training step."""

    event: Literal["metrics"]
    stage: str
    step: int
    values: Numbers


class Figures(_Line):
    event: Literal["figures"]
    stage: str
    values: Meta


class Part(_Line):
    event: Literal["part"]
    stage: str
    number: int
    artifact: str


class Waits(_Line):
    event: Literal["waits"]
    stage: str
    holder: str


class Note(_Line):
    """level: info or warning. stage: None for a note about the whole run."""

    event: Literal["note"]
    stage: str | None
    level: str
    text: str


class Repair(_Line):
    event: Literal["repair"]
    digest: str


class _StageEnded(_Line, RecordedStage):
    """facts: what tables show of an artifact without metrics, such as the rows of each split."""

    event: Literal["stage_ended"]
    facts: Meta


class StageEnded(_StageEnded, total=False):
    """kind: of the artifact. own: names of the user's metrics. plots: names of files that were copied for MLflow. lengths:
    {split: {"<upper bound>": rows}} by tokens. chosen: {setting: value} of training's settings that are `auto`."""

    kind: str
    chosen: Meta
    own: list[str]
    plots: list[str]
    lengths: dict[str, dict[str, int]]


class StageFailed(_Line):
    """stopped: a person or a scheduler ended the stage."""

    event: Literal["stage_failed"]
    stage: str
    error: ErrorDocument
    stopped: bool


class Decided(_Line):
    """entry: of the ledger, about how a retrain, a promotion, a rollback or a freezing ended."""

    event: Literal["decided"]
    entry: Meta


class _Champion(_Line):
    """The recipe's present champion, when a run ends or a champion is made. created: when it became champion. challenger: the
    digest of a model that lost against it. comparison: of the two; {} if none were compared. frozen: the digest of the
    rows on which they were."""

    event: Literal["champion"]
    recipe: str
    task: str
    number: int
    series: str
    created: str
    champion: str
    challenger: str | None
    comparison: Numbers
    frozen: str | None


class Champion(_Champion, total=False):
    """why: it became champion. metrics: of its evaluation. columns, optional: that rows must have, and may have."""

    why: str
    metrics: Numbers
    columns: list[str]
    optional: list[str]


class RunEnded(_Line):
    """outcome: completed, failed or cancelled. lost: how many lines of the log could not be written."""

    event: Literal["run_ended"]
    outcome: str
    error: PlacedError | None
    seconds: float
    dollars: float
    lost: int
    notes: list[str]


class Skipped(_Line):
    """Stands in for a line that is no event. No log has one: `follow` makes it. bytes: the line's length."""

    event: Literal["skipped"]
    bytes: int


Event = (
    RunBegun | Planned | StageBegun | Progress | Metrics | Figures | Part | Waits | Note | Repair | StageEnded
    | StageFailed | Decided | Champion | RunEnded | Skipped
)  # fmt: skip

_CLASSES: Mapping[str, Any] = {
    "run_begun": RunBegun, "planned": Planned, "stage_begun": StageBegun, "progress": Progress, "metrics": Metrics,
    "figures": Figures, "part": Part, "waits": Waits, "note": Note, "repair": Repair, "stage_ended": StageEnded,
    "stage_failed": StageFailed, "decided": Decided, "champion": Champion, "run_ended": RunEnded,
}  # fmt: skip

_NUMBER = (int, float)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "n": int, "time": _NUMBER, "schema": int, "price_per_hour": _NUMBER, "stage": (str, type(None)), "settings": dict,
    "stages": list, "values": dict, "metrics": dict, "figures": dict, "facts": dict, "notes": list, "unit": str,
    "level": str, "text": str, "done": _NUMBER, "total": _NUMBER, "step": int, "lost": int,
    "seconds": (*_NUMBER, type(None)),
}  # fmt: skip
"""The types of fields that the fold computes with."""


def checked_event(document: Meta) -> Event | None:
    """Return a line's JSON object as an event; None if it is none: its name is no text, or a field that the event
    always has is missing or of another type. An unknown name is an event of a later version."""
    name = document.get("event")
    if not isinstance(name, str) or name == "skipped":
        return None
    required = _CLASSES[name].__required_keys__ if name in _CLASSES else frozenset(("n", "time"))
    if not required <= document.keys():
        return None
    if any(not isinstance(document[field], _TYPES.get(field, object)) for field in required):
        return None
    return cast(Event, document)


def stages_of(event: Planned) -> list[PlannedStage]:
    """Return the stages of a plan, without entries that have no name or action."""
    stages = (one for one in event["stages"] if isinstance(one, dict) and "action" in one)
    return [one for one in stages if isinstance(one.get("stage"), str)]
