"""Lineage of artifacts, and the comparison of two runs: pure functions of records and run records.

A stage that runs after another without reading its artifact (train after precompile) makes no descendant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NotRequired, TypedDict, final

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.documents import Adoption, KeyDocument, Record, RecordedStage, RecordName, RunRecord
from trnflow.tasks.keys.explain import ValueChange, difference, leaves

Documents = dict[str, KeyDocument]
"""By stage."""


@final
class FromSource(TypedDict):
    """An input from outside the store, by its identity."""

    source: Json


@final
class Made(TypedDict):
    """How an artifact was made, by its newest record and key document. Without a record `stage` is None, and there are no
    further fields.

    inputs: by name; {} where `repeated`: the artifact occurs earlier in the tree. shards: their number. also: other keys
    with this artifact.
    """

    artifact: str
    stage: str | None
    key: NotRequired[str]
    created: NotRequired[str]
    adopted: NotRequired[Adoption | None]
    attempt: NotRequired[str]
    params: NotRequired[Meta]
    code: NotRequired[dict[str, str]]
    env: NotRequired[dict[str, str]]
    accel: NotRequired[Meta]
    inputs: NotRequired[dict[str, Made | FromSource]]
    shards: NotRequired[int]
    also: NotRequired[list[str]]
    repeated: NotRequired[bool]


class Descendant(RecordName):
    """What was made from an artifact. down: [] where the artifact occurs earlier."""

    created: str
    artifact: str
    down: list[Descendant]


class Family:
    """The records of a store, linked by their artifacts. records: of all stages, newest first."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._made: dict[str, list[Record]] = defaultdict(list)
        self._used: dict[str, list[Record]] = defaultdict(list)
        records = [*records]
        # inputs are named by what keys count of them
        self._whole = {record["counted"]: record["artifact"] for record in reversed(records) if "counted" in record}
        for record in records:
            self._made[record["artifact"]].append(record)
            for digest in {self._whole.get(digest, digest) for digest in _digests(record["document"]["inputs"])}:
                self._used[digest].append(record)

    @property
    def artifacts(self) -> list[str]:
        """Digests of all artifacts on record, newest first."""
        return list(self._made)

    def up(self, artifact: str, below: tuple[str, ...] = (), seen: set[str] | None = None) -> Made:
        """Return how an artifact was made, as a tree of its inputs."""
        seen = set() if seen is None else seen
        artifact = self._whole.get(artifact, artifact)
        records = self._made.get(artifact)
        if not records or artifact in below:  # a stage may return its input unchanged
            return {"artifact": artifact, "stage": None}
        record, document = records[0], records[0]["document"]
        repeated = artifact in seen
        seen.add(artifact)
        inputs = {} if repeated else document["inputs"]
        return {
            "artifact": artifact, "stage": record["stage"], "key": record["key"], "created": record["created"],
            "adopted": record.get("adopted"), "attempt": record["attempt"], "params": document["params"],
            "code": document["code"], "env": document["env"], "accel": document["accel"],
            "inputs": {name: self._input(value, (*below, artifact), seen) for name, value in inputs.items()},
            "shards": len(record.get("shards", [])), "also": [other["key"] for other in records[1:]],
            "repeated": repeated,
        }  # fmt: skip

    def down(self, artifact: str, seen: set[str] | None = None) -> list[Descendant]:
        """Return what was made from an artifact, newest first."""
        nodes: list[Descendant] = []
        # of an artifact that occurs twice, what was made of it is listed in the first place alone
        seen = {artifact} if seen is None else seen
        for record in self._used.get(artifact, []):
            digest = record["artifact"]
            is_new = digest not in seen
            seen.add(digest)
            nodes.append(
                Descendant(
                    stage=record["stage"], key=record["key"], created=record["created"], artifact=digest,
                    down=self.down(digest, seen) if is_new else [],
                )
            )  # fmt: skip
        return nodes

    def _input(self, value: Json, below: tuple[str, ...], seen: set[str]) -> Made | FromSource:
        if isinstance(value, str) and value.startswith("sha256:"):
            return self.up(value, below, seen)
        return {"source": value}


def start_of(document: KeyDocument) -> tuple[KeyDocument, str | None]:
    """Return (a train's key document without its warm start, the warm start's digest or None)."""
    inputs = dict(document.get("inputs", {}))
    start = inputs.pop("warm_start", None)
    return {**document, "inputs": inputs}, start


class Change(TypedDict):
    """A value of two runs that differs. name: of a setting, source, module, library or metric; stage: of an artifact or a
    metric; stages: that have the change, [] for host and checkout."""

    before: Json
    after: Json
    name: NotRequired[str]
    stage: NotRequired[str]
    stages: NotRequired[list[str]]


class RunDifference(TypedDict):
    """How two runs differ. unknown: stages without key document in one run, which data, code and env leave out."""

    settings: list[Change]
    data: list[Change]
    code: list[Change]
    env: list[Change]
    artifacts: list[Change]
    metrics: list[Change]
    unknown: list[str]


def compare_runs(before: RunRecord, after: RunRecord, documents: tuple[Documents, Documents]) -> RunDifference:
    """Return how two runs differ. documents: of each run, as far as records exist."""
    (old, new), runs = documents, (before, after)
    changes = {stage: difference(old[stage], new[stage]) for stage in old if stage in new}
    stages = _stages(before), _stages(after)
    both = list(dict.fromkeys([*stages[0], *stages[1]]))
    # of an earlier version's run a stage may have no artifact
    digests = [{name: stage.get("artifact") for name, stage in side.items()} for side in stages]
    return {
        "settings": [_entry(change) for change in difference(*({"params": run.get("resolved", {})} for run in runs))],
        "data": _shared(changes, "inputs", only=next(iter(both), "")),  # the first stage reads the data
        "code": _shared(changes, "code"),
        "env": _shared(changes, "env") + _shared(changes, "accel") + _surroundings(before, after),
        "artifacts": [{"stage": name, **change} for name, change in _differing(both, *digests)],
        "metrics": _metrics(both, *stages),
        "unknown": [name for name in both if name not in old or name not in new],
    }


def _digests(value: Json) -> Iterator[str]:
    """Yield each artifact digest among the inputs of a key document."""
    if isinstance(value, str) and value.startswith("sha256:"):
        yield value
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _digests(below)


def _stages(run: RunRecord) -> dict[str, RecordedStage]:
    return {stage["stage"]: stage for stage in run.get("stages", [])}


def _shared(changes: dict[str, list[ValueChange]], part: str, only: str | None = None) -> list[Change]:
    """Return the changes of one table, each once, with the stages that have it."""
    shared: dict[str, Change] = {}
    for stage, stage_changes in changes.items():
        for change in stage_changes:
            if change.part == part and only in (None, stage):
                shared.setdefault(repr(change), {**_entry(change), "stages": []})["stages"].append(stage)
    return list(shared.values())


def _surroundings(before: RunRecord, after: RunRecord) -> list[Change]:
    """Return the differences of hosts and checkouts, which are in no key."""
    sides = [dict(leaves({"host": run.get("host"), "checkout": run.get("checkout")})) for run in (before, after)]
    found = _differing(sorted(sides[0] | sides[1]), *sides)
    return [{"name": name, **change, "stages": []} for name, change in found]


def _metrics(stages: list[str], *runs: dict[str, RecordedStage]) -> list[Change]:
    """Return each metric that differs, for every stage."""
    changes: list[Change] = []
    for stage in stages:
        sides = [dict(leaves(run[stage].get("metrics", {}) if stage in run else {})) for run in runs]
        names = list(dict.fromkeys([*sides[0], *sides[1]]))
        changes += [{"stage": stage, "name": name, **change} for name, change in _differing(names, *sides)]
    return changes


def _differing(names: list[str], before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[tuple[str, Change]]:
    """Yield (name, change) of the values that differ."""
    for name in names:
        if before.get(name) != after.get(name):
            yield name, {"before": before.get(name), "after": after.get(name)}


def _entry(change: ValueChange) -> Change:
    return {"name": change.name, "before": change.before, "after": change.after}
