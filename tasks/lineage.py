"""Where an artifact came from, what was made of it, and how two runs differ: pure functions of records and run records.

An artifact's ancestors stand in the key documents of the records that made it; its descendants are the records whose inputs name
it. Stages that are only ordered after another (train after precompile) are not related by their bytes, and not here either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tasks.artifact import Json, Meta
from tasks.errors import ConfigError
from tasks.explain import Change, difference


class Family:
    """The records of a store, newest first, and who is made of whom."""

    def __init__(self, records: Iterable[Meta]) -> None:
        self._made: dict[str, list[Meta]] = defaultdict(list)
        self._used: dict[str, list[Meta]] = defaultdict(list)
        for record in records:
            self._made[record["artifact"]].append(record)
            for digest in set(_digests(record["document"]["inputs"])):
                self._used[digest].append(record)

    @property
    def artifacts(self) -> list[str]:
        """Digests of all artifacts that a record made."""
        return list(self._made)

    def up(self, artifact: str) -> Meta:
        """How it was made: {"artifact", "stage", "key", "created", "adopted", "attempt", "params", "code", "env", "accel",
        "inputs": {name: the same of an artifact, or {"source": identity}}, "shards": how many it was put together from,
        "also": other keys that made the same bytes}.

        Where no record says so: {"artifact", "stage": None}.
        """
        return self._up(artifact, ())

    def _up(self, artifact: str, below: tuple[str, ...]) -> Meta:
        records = self._made.get(artifact)
        if not records or artifact in below:  # a stage may return what it was given
            return {"artifact": artifact, "stage": None}
        record, document = records[0], records[0]["document"]
        return {
            "artifact": artifact,
            **{name: record.get(name) for name in ("stage", "key", "created", "adopted", "attempt")},
            **{part: document[part] for part in ("params", "code", "env", "accel")},
            "inputs": {name: self._input(value, (*below, artifact)) for name, value in document["inputs"].items()},
            "shards": len(record.get("shards", [])),
            "also": [other["key"] for other in records[1:]],
        }

    def down(self, artifact: str) -> list[Meta]:
        """Who used it: [{"stage", "key", "created", "artifact", "down": [...]}], newest first; what is below
        an artifact stands there once."""
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

    def _input(self, value: Json, below: tuple[str, ...]) -> Meta:
        if isinstance(value, str) and value.startswith("sha256:"):
            return self._up(value, below)
        return {"source": value}


def compare(before: Meta, after: Meta, documents: tuple[dict[str, Meta], dict[str, Meta]]) -> Meta:
    """How two runs differ. documents: the key documents of each run's stages, where their records still exist.

    {"settings", "data", "code", "env", "metrics": [{"name", "before", "after", and "stages" or "stage"}], "artifacts": [{"stage",
    "before", "after"}], "unknown": stages whose record is gone}
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


def nearest_run(text: str, runs: list[str]) -> str:
    """The run that `text` means: an id, the beginning of one, `last` or `last~N`. runs: newest first. ConfigError."""
    if text.split("~")[0] == "last":
        back = text.partition("~")[2] or "0"
        if not back.isdigit() or int(back) >= len(runs):
            raise ConfigError(f"there is no run {text}: the store has {len(runs)}", "`trnflow runs` lists them")
        return runs[int(back)]
    return unique(text, runs, "run", "`trnflow runs` lists them")


def unique(text: str, names: Iterable[str], what: str, fix: str) -> str:
    """The one of `names` that is `text` or begins with it. ConfigError when there is none or more than one."""
    found = sorted({name for name in names if name.startswith(text)})
    if text in found:
        return text
    if len(found) != 1:
        several = f"{text} begins {len(found)} {what}s: {', '.join(found[:3])} ..."
        raise ConfigError(several if found else f"there is no {what} {text}", "give more of it" if found else fix)
    return found[0]


def leaves(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    """(dotted name, value) of everything in a document that is no object."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _digests(value: Json) -> Iterator[str]:
    """Every digest among a key's inputs."""
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
    """Changes of one part, each once, with the stages it touches."""
    found: dict[str, Meta] = {}
    for stage, listed in changes.items():
        for change in listed:
            if change.part == part and only in (None, stage):
                found.setdefault(repr(change), {**_entry(change), "stages": []})["stages"].append(stage)
    return list(found.values())


def _surroundings(before: Meta, after: Meta) -> list[Meta]:
    """Where and from which checkout the runs ran: kept for the reader, no part of any key."""
    sides = [dict(leaves({part: run.get(part) for part in ("host", "checkout")})) for run in (before, after)]
    return [{**change, "stages": []} for change in _differing("name", sorted(sides[0] | sides[1]), sides[0], sides[1])]


def _metrics(stages: list[str], before: dict[str, Meta], after: dict[str, Meta]) -> list[Meta]:
    """Every metric of every stage that differs."""
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
