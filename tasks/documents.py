"""The documents of a store, each field named once: key documents, records, journals of attempts, run records."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import PlacedError


class Format(TypedDict):
    """`FORMAT.json`, which makes a folder a store."""

    format: int
    hash: str


class Manifest(TypedDict):
    """The files of an artifact: (path, size, digest), sorted by path."""

    kind: str
    meta: Meta
    files: list[tuple[str, int, str]]


class KeyDocument(TypedDict):
    """What a stage's result depends on; its digest is the key.

    code: {module or asset: hash}; params: {setting: value}; inputs: {name: digest, or identity of a source}; env:
    {distribution: version}; accel: accelerator and machine, or {}; schema: none in form 1.
    """

    schema: NotRequired[int]
    stage: str
    code: dict[str, str]
    params: Meta
    inputs: Meta
    env: dict[str, str]
    accel: Meta


class Documented(TypedDict):
    """What holds a key document: a record, or an attempt that left partial state."""

    document: KeyDocument


class RecordName(TypedDict):
    """A record of the store."""

    stage: str
    key: str


class Shard(RecordName):
    """A part or a kept input that an attempt has published."""

    artifact: str


Adoption = TypedDict(
    "Adoption",
    {"from": str, "attempt": NotRequired[str], "created": NotRequired[str], "changes": NotRequired[list[str]]},
)
"""By `trnflow accept`: the key that had the result or the state, and how its key document differs."""


class Record(RecordName, Documented):
    """`records/<stage>/<key>.json`. shards: the records that the artifact depends on; counted: of an artifact with files
    aside, the digest that keys have of it."""

    schema: int
    artifact: str
    attempt: str
    created: str
    shards: NotRequired[list[RecordName]]
    counted: NotRequired[str]
    adopted: NotRequired[Adoption]


class Failure(TypedDict):
    type: str
    message: str


class Holding(TypedDict):
    """The process that took a lease: `Process` as JSON."""

    host: str
    boot: str
    space: str
    pid: int
    start: int


class LeaseDocument(TypedDict):
    """`leases/<key>/<fence>.json`. since: in UTC; ttl: seconds without a heartbeat until takeover."""

    token: str
    process: Holding
    run: str
    attempt: str
    since: str
    ttl: float


class Counted(TypedDict):
    """Progress. eta: seconds."""

    step: float | None
    of: float | None
    unit: str | None
    eta: float | None


class Heartbeat(TypedDict, total=False):
    """`leases/<key>/<fence>.<token>`. beat: how many there were; at: in UTC; progress: {} before the first report."""

    beat: int
    at: str
    progress: Counted | dict[str, None]


class Journal(TypedDict, total=False):
    """`attempts/<key>/<attempt>.json`. holds: records that garbage collection leaves alone while the attempt is alive;
    document: of a stage that may leave partial state; adopted: of `trnflow accept`."""

    schema: int
    attempt: str
    run: str
    recipe: str
    stage: str
    host: str
    pid: int
    started: str
    ended: str
    outcome: str
    seconds: float
    figures: Meta
    holds: list[RecordName]
    document: KeyDocument
    shards: list[Shard]
    artifact: str
    bytes: int
    error: Failure
    adopted: Adoption


CheckResult = Literal["passed", "warned", "stopped", "not applied"]


class CheckDocument(TypedDict):
    """A check of the data: its settings, the default limit filled in, and what it found. value: None if it was not applied."""

    what: str
    limit: float
    then: Literal["warn", "stop"]
    column: str | None
    value: float | None
    result: CheckResult
    why: str


class StageFacts(TypedDict):
    """What a plan and a run record say of a stage. action, in a record: ran, hit or skip."""

    stage: str
    action: str
    why: str
    key: str | None
    artifact: str | None
    seconds: float | None


class RecordedStage(StageFacts):
    """A stage in a run record."""

    metrics: NotRequired[Meta]
    figures: NotRequired[Meta]


class Start(TypedDict):
    """The model in the store that training started from."""

    artifact: str


class RunRecord(TypedDict, total=False):
    """`runs/<run>.json`. resolved: the recipe with all settings, without secrets; ended: in UTC; checkout: of the program."""

    schema: int
    run: str
    recipe: str
    seconds: float | None
    dollars: float
    stages: list[RecordedStage]
    notes: list[str]
    error: PlacedError
    resolved: Meta
    until: str | None
    force: list[str]
    outcome: str
    ended: str
    host: Meta
    checkout: Meta | None
    start: Start


class JobName(TypedDict):
    """Of `jobs/<id>/order.json` what every version writes."""

    name: str


class JobRun(TypedDict, total=False):
    """`jobs/<id>/runs/<run>`."""

    run: str
    host: str
    begun: str


class JobResult(TypedDict, total=False):
    """`jobs/<id>/result.json`: how the newest run of a job ended. error: as `TrnflowError.placed` returns it."""

    run: str
    outcome: str
    ended: str
    error: Meta | None
    stages: list[RecordedStage]
    notes: list[str]


class JobSubmission(TypedDict):
    """`jobs/<id>/submitted/<n>.json`: a job at a platform.

    Fields:
        platform: Its kind.
        ticket: The platform's own name of the job.
        earlier: The runs that the job had before.
        host, time: Of who submitted it.
    """

    platform: str
    ticket: str
    earlier: list[str]
    host: str
    time: str


class KeyTables(TypedDict):
    """The tables of a key document that depend on the machine."""

    params: Meta
    env: Meta
    accel: Meta


class StageMachine(TypedDict):
    """What a stage's key had here when a job made its result, and what it had there."""

    here: KeyTables
    there: KeyTables


MachineFacts = dict[str, StageMachine]
"""`machines/<digest>.json`: {stage: its tables}."""
