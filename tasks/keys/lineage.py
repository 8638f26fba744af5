"""Trace which artifacts were made from which, and compare two runs. Pure functions of records (the store's documents
that name the artifact that a stage made for a key) and of run documents; nothing is read or written.

The ancestors of an artifact are the inputs in the key document of its record (the JSON of which the key is the hash),
the inputs of those inputs, and so on; its descendants are the artifacts whose records have it among their inputs, and
so on. A stage that runs after another stage without reading its artifact (train after precompile) does not make a
descendant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.keys.explain import Change, difference


class Family:
    """The records of a store (documents that name the artifact that a stage made for a key), linked so that the
    ancestors of an artifact (the artifacts from which it was made) and its descendants (those made from it) can be
    found.

    records: the records of all stages, newest first. Where several records name one artifact, `up` describes the
    newest."""

    def __init__(self, records: Iterable[Meta]) -> None:
        self._made: dict[str, list[Meta]] = defaultdict(list)
        self._used: dict[str, list[Meta]] = defaultdict(list)
        for record in records:
            self._made[record["artifact"]].append(record)
            for digest in set(_digests(record["document"]["inputs"])):
                self._used[digest].append(record)

    @property
    def artifacts(self) -> list[str]:
        """The digests of all artifacts that have a record (a document that says which stage made the artifact), in the
        order of the records, newest first."""
        return list(self._made)

    def up(self, artifact: str) -> Meta:
        """Return how an artifact was made, with its ancestors (the artifacts from which it was made) as a tree.
        artifact: the artifact's digest.

        Returns:
            "artifact": the artifact's digest.
            "stage", "key", "created", "attempt": from the record (the store's document of a stage's result): the stage
                that made the artifact, the stage key for which it was made, when, and the id of the attempt (the try of
                the stage).
            "adopted": None if the artifact was made for this key. If the user accepted another key's result instead:
                {"from": the other key, "created": when that result was made, "changes": texts on how the keys differ}.
            "params", "code", "env", "accel": tables of the key document (the JSON of which the key is the hash):
                settings, code hashes, library versions and accelerator.
            "inputs": {name of an input: an object with these fields for an artifact, or {"source": identity} for data
                or a model from outside the store}.
            "shards": the number of separately stored pieces of the stage's work from which the artifact was put
                together.
            "also": other keys whose result is the same artifact.
            "repeated": whether the artifact occurs earlier in the tree: then "inputs" is {} here.

        For an artifact without a record, and where an artifact is among its own ancestors, the object is {"artifact",
        "stage": None}."""
        return self._up(artifact, (), set())

    def _up(self, artifact: str, below: tuple[str, ...], seen: set[str]) -> Meta:
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

    def down(self, artifact: str) -> list[Meta]:
        """Return the artifacts that were made directly from an artifact, each with its own descendants.

        artifact: the artifact's digest. Returns [{"stage", "key", "created" (from the record, the store's document of a
        stage's result), "artifact": digest, "down": a list of this form, of the artifacts that were made from this
        one}], sorted as the records of this Family, newest first. Where an artifact occurs twice, only its first entry
        lists its descendants; the others have "down": []."""
        return self._down(artifact, {artifact})

    def _down(self, artifact: str, seen: set[str]) -> list[Meta]:
        found = []
        for record in self._used.get(artifact, []):
            made = record["artifact"]
            node = {name: record[name] for name in ("stage", "key", "created", "artifact")}
            is_new = made not in seen
            seen.add(made)
            found.append({**node, "down": self._down(made, seen) if is_new else []})
        return found

    def _input(self, value: Json, below: tuple[str, ...], seen: set[str]) -> Meta:
        if isinstance(value, str) and value.startswith("sha256:"):
            return self._up(value, below, seen)
        return {"source": value}


def start_of(document: Meta) -> tuple[Meta, str | None]:
    """Take the model that a training started from (the input `warm_start`) out of the training's key document (the JSON
    of which the training's key is the hash). Returns (a copy of the key document without this input, the digest of the
    model's artifact). The digest is None if the training did not start from another training's model."""
    inputs = dict(document.get("inputs", {}))
    start = inputs.pop("warm_start", None)
    return {**document, "inputs": inputs}, start


def compare(before: Meta, after: Meta, documents: tuple[dict[str, Meta], dict[str, Meta]]) -> Meta:
    """Return how two runs differ. Values that are the same in both runs are left out.

    before, after: the run documents (the store's JSON on a run: recipe, stages, keys, outcome); documents: for each of
    the two runs {stage: key document, the JSON of which the stage's key is the hash}, without stages whose record no
    longer exists.

    Returns:
        "settings": settings of the recipe that differ: [{"name", "before": value in the first run, "after": value in
            the second}].
        "data": inputs of the stage load_data that differ, in the same form, with "stages": ["load_data"].
        "code": hashes of modules that differ, in the same form, with "stages": the stages that use the module.
        "env": library versions, accelerator, host and git checkout that differ, in the same form, with "stages": the
            stages whose key has the difference, [] for host and checkout.
        "artifacts": stages that made different artifacts: [{"stage", "before", "after"}], with the artifacts' digests.
        "metrics": metrics that differ: [{"stage", "name", "before", "after"}].
        "unknown": stages that lack a key document in one of the runs; "data", "code" and "env" say nothing about them.
    """
    old, new = documents
    changes = {stage: difference(old[stage], new[stage]) for stage in old if stage in new}
    stages = _stages(before), _stages(after)
    both = list(dict.fromkeys([*stages[0], *stages[1]]))
    return {
        "settings": _settings(before.get("resolved", {}), after.get("resolved", {})),
        "data": _shared(changes, "inputs", only="load_data"),
        "code": _shared(changes, "code"),
        "env": _shared(changes, "env") + _shared(changes, "accel") + _surroundings(before, after),
        "artifacts": _differing("stage", both, _digests_of(stages[0]), _digests_of(stages[1])),
        "metrics": _metrics(both, *stages),
        "unknown": [name for name in both if name not in old or name not in new],
    }


def leaves(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    """Yield (dotted name, value) of each value in nested JSON objects that is not an object itself, such as ("a.b", 1)
    for {"a": {"b": 1}}. name: a prefix for the names, without the dot."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _digests(value: Json) -> Iterator[str]:
    """Yield each artifact digest among the inputs of a key document."""
    if isinstance(value, str) and value.startswith("sha256:"):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _digests(item)


def _stages(run: Meta) -> dict[str, Meta]:
    return {stage["stage"]: stage for stage in run.get("stages", [])}


def _settings(before: Meta, after: Meta) -> list[Meta]:
    return [_entry(change) for change in difference({"params": before}, {"params": after})]


def _shared(changes: dict[str, list[Change]], part: str, only: str | None = None) -> list[Meta]:
    """Return the changes of one part of the key documents, each once, with the stages in which the change occurs."""
    found: dict[str, Meta] = {}
    for stage, listed in changes.items():
        for change in listed:
            if change.part == part and only in (None, stage):
                found.setdefault(repr(change), {**_entry(change), "stages": []})["stages"].append(stage)
    return list(found.values())


def _surroundings(before: Meta, after: Meta) -> list[Meta]:
    """Return the differences between the hosts and git checkouts of two runs, which no key includes."""
    sides = [dict(leaves({part: run.get(part) for part in ("host", "checkout")})) for run in (before, after)]
    return [{**change, "stages": []} for change in _differing("name", sorted(sides[0] | sides[1]), sides[0], sides[1])]


def _metrics(stages: list[str], before: dict[str, Meta], after: dict[str, Meta]) -> list[Meta]:
    """Return each metric that differs between two runs, for every stage."""
    found = []
    for stage in stages:
        sides = [dict(leaves(side.get(stage, {}).get("metrics", {}))) for side in (before, after)]
        names = list(dict.fromkeys([*sides[0], *sides[1]]))
        found += [{"stage": stage, **change} for change in _differing("name", names, sides[0], sides[1])]
    return found


def _digests_of(stages: dict[str, Meta]) -> Meta:
    return {name: stage.get("artifact") for name, stage in stages.items()}


def _differing(label: str, names: list[str], before: Meta, after: Meta) -> list[Meta]:
    return [
        {label: name, "before": before.get(name), "after": after.get(name)}
        for name in names
        if before.get(name) != after.get(name)
    ]


def _entry(change: Change) -> Meta:
    return {"name": change.name, "before": change.before, "after": change.after}
