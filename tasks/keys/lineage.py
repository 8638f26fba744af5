"""Lineage of artifacts, and the comparison of two runs: pure functions of records and run records.

A stage that runs after another without reading its artifact (train after precompile) makes no descendant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.keys.explain import ValueChange, difference, leaves


class Family:
    """The records of a store, linked by their artifacts. records: of all stages, newest first."""

    def __init__(self, records: Iterable[Meta]) -> None:
        self._made: dict[str, list[Meta]] = defaultdict(list)
        self._used: dict[str, list[Meta]] = defaultdict(list)
        for record in records:
            self._made[record["artifact"]].append(record)
            for digest in set(_digests(record["document"]["inputs"])):
                self._used[digest].append(record)

    @property
    def artifacts(self) -> list[str]:
        """Digests of all artifacts on record, newest first."""
        return list(self._made)

    def up(self, artifact: str, below: tuple[str, ...] = (), seen: set[str] | None = None) -> Meta:
        """Return how an artifact was made, as a tree of its inputs; without a record {"artifact", "stage": None}.

        Returns:
            {"artifact", "stage", "key", "created", "adopted", "attempt": of its newest record, "params", "code", "env",
            "accel": of its key document, "inputs": {name: such a tree, or {"source": identity}}, "shards": their
            number, "also": other keys with this artifact, "repeated": whether it occurs earlier, without "inputs" here}
        """
        seen = set() if seen is None else seen
        records = self._made.get(artifact)
        if not records or artifact in below:  # a stage may return its input unchanged
            return {"artifact": artifact, "stage": None}
        record, document = records[0], records[0]["document"]
        repeated = artifact in seen
        seen.add(artifact)
        inputs = {} if repeated else document["inputs"]
        return {
            "artifact": artifact,
            **{name: record.get(name) for name in ("stage", "key", "created", "adopted", "attempt")},
            **{part: document[part] for part in ("params", "code", "env", "accel")},
            "inputs": {name: self._input(value, (*below, artifact), seen) for name, value in inputs.items()},
            "shards": len(record.get("shards", [])),
            "also": [other["key"] for other in records[1:]],
            "repeated": repeated,
        }

    def down(self, artifact: str, seen: set[str] | None = None) -> list[Meta]:
        """Return [{"stage", "key", "created", "artifact", "down"}] of what was made from an artifact, newest first."""
        # of an artifact that occurs twice "down" is [] from the second place on
        nodes, seen = [], {artifact} if seen is None else seen
        for record in self._used.get(artifact, []):
            digest = record["artifact"]
            node = {name: record[name] for name in ("stage", "key", "created", "artifact")}
            is_new = digest not in seen
            seen.add(digest)
            nodes.append({**node, "down": self.down(digest, seen) if is_new else []})
        return nodes

    def _input(self, value: Json, below: tuple[str, ...], seen: set[str]) -> Meta:
        if isinstance(value, str) and value.startswith("sha256:"):
            return self.up(value, below, seen)
        return {"source": value}


def start_of(document: Meta) -> tuple[Meta, str | None]:
    """Return (a train's key document without its warm start, the warm start's digest or None)."""
    inputs = dict(document.get("inputs", {}))
    start = inputs.pop("warm_start", None)
    return {**document, "inputs": inputs}, start


def compare_runs(before: Meta, after: Meta, documents: tuple[dict[str, Meta], dict[str, Meta]]) -> Meta:
    """Return how two runs differ.

    before, after: run records; documents: {stage: key document} of each run, as far as records exist.

    Returns:
        {"settings", "data", "code", "env": [{"name", "before", "after"}], all but settings with "stages", [] for host
        and checkout; "artifacts": [{"stage", "before", "after"}]; "metrics": [{"stage", "name", "before", "after"}];
        "unknown": stages without key document in one run, which "data", "code" and "env" leave out}
    """
    (old, new), runs = documents, (before, after)
    changes = {stage: difference(old[stage], new[stage]) for stage in old if stage in new}
    stages = _stages(before), _stages(after)
    both = list(dict.fromkeys([*stages[0], *stages[1]]))
    return {
        "settings": [_entry(change) for change in difference(*({"params": run.get("resolved", {})} for run in runs))],
        "data": _shared(changes, "inputs", only=next(iter(both), "")),  # the first stage reads the data
        "code": _shared(changes, "code"),
        "env": _shared(changes, "env") + _shared(changes, "accel") + _surroundings(before, after),
        "artifacts": _differing("stage", both, _digests_of(stages[0]), _digests_of(stages[1])),
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


def _stages(run: Meta) -> dict[str, Meta]:
    return {stage["stage"]: stage for stage in run.get("stages", [])}


def _shared(changes: dict[str, list[ValueChange]], part: str, only: str | None = None) -> list[Meta]:
    """Return the changes of one table, each once, with the stages that have it."""
    shared: dict[str, Meta] = {}
    for stage, stage_changes in changes.items():
        for change in stage_changes:
            if change.part == part and only in (None, stage):
                shared.setdefault(repr(change), {**_entry(change), "stages": []})["stages"].append(stage)
    return list(shared.values())


def _surroundings(before: Meta, after: Meta) -> list[Meta]:
    """Return the differences of hosts and checkouts, which are in no key."""
    sides = [dict(leaves({part: run.get(part) for part in ("host", "checkout")})) for run in (before, after)]
    return [{**change, "stages": []} for change in _differing("name", sorted(sides[0] | sides[1]), sides[0], sides[1])]


def _metrics(stages: list[str], before: dict[str, Meta], after: dict[str, Meta]) -> list[Meta]:
    """Return each metric that differs, for every stage."""
    changes = []
    for stage in stages:
        sides = [dict(leaves(side.get(stage, {}).get("metrics", {}))) for side in (before, after)]
        names = list(dict.fromkeys([*sides[0], *sides[1]]))
        changes += [{"stage": stage, **change} for change in _differing("name", names, sides[0], sides[1])]
    return changes


def _digests_of(stages: dict[str, Meta]) -> Meta:
    return {name: stage.get("artifact") for name, stage in stages.items()}


def _differing(label: str, names: list[str], before: Meta, after: Meta) -> list[Meta]:
    return [
        {label: name, "before": before.get(name), "after": after.get(name)}
        for name in names
        if before.get(name) != after.get(name)
    ]


def _entry(change: ValueChange) -> Meta:
    return {"name": change.name, "before": change.before, "after": change.after}
