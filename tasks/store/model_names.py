"""Names of models, and what they mean in a store. No other module parses one.

    MODEL = RECIPE | RECIPE@WHICH | RUN | last[~N] | DIGEST;  WHICH = champion | newest | N

RUN is a run's id or its unique beginning, DIGEST `sha256:` and 2 to 64 digits, or the digits alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trnflow.tasks.documents import RunRecord
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store.layout import blob_name, is_ahead, read_manifest
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.store.ledger.entries import Entry
from trnflow.tasks.store.store import Store

CHAMPION, NEWEST = "champion", "newest"
MODEL_STAGES = ("consolidate", "train")
"""The stages whose artifact is a model; the first is preferred."""

WITH_WHICH = re.compile(r"(?P<recipe>.+)@(?P<which>champion|newest|[1-9][0-9]*)", re.DOTALL)
LAST = re.compile(r"last(?:~(?P<back>[0-9]+))?")
DIGEST = re.compile(r"(?:sha256:)?(?P<digits>[0-9a-f]{2,64})")
DIGITS = 64

LONGEST_MANIFEST = 1 << 26
"""Bytes; a larger file is not read when manifests are searched."""


class ModelName(NamedTuple):
    """A name of a model by its form alone; the store says which of the possible meanings it has.

    Attributes:
        text: The name as it was written.
        recipe: What stands before `@WHICH`; the whole text without it.
        which: `champion`, `newest` or a champion's number; None without `@WHICH`.
        back: The N of `last~N`, 0 for `last`; None for other names.
        digest: `sha256:` and the digits; "" if no digest begins so.
    """

    text: str
    recipe: str
    which: str | int | None = None
    back: int | None = None
    digest: str = ""

    @property
    def is_whole_digest(self) -> bool:
        """Whether the name is all of a digest: then it can mean no recipe and no run."""
        return len(self.digest) == len("sha256:") + DIGITS


class Meaning(NamedTuple):
    """What a name means in a store: a run, an artifact, and of `@champion` and `@N` the entry that made the champion."""

    run: str | None = None
    artifact: str | None = None
    champion: Entry | None = None


def parse_model(text: str) -> ModelName:
    """Return what a name can mean by its form. Any text has a form: at least that of a recipe's name."""
    if match := WITH_WHICH.fullmatch(text):
        which = match["which"]
        return ModelName(text, match["recipe"], int(which) if which.isdecimal() else which)
    last, digest = LAST.fullmatch(text), DIGEST.fullmatch(text)
    back = int(last["back"] or 0) if last else None
    return ModelName(text, text, None, back, f"sha256:{digest['digits']}" if digest else "")


def find_stored(
    store: Store,
    name: ModelName,
    stages: Sequence[str] = (),
    *,
    recipe: str | None = None,
    more_runs: Iterable[str] = (),
) -> Meaning | None:
    """Return what a name other than RECIPE alone means in a store; None if it means nothing there, also for
    `@champion` of a recipe without one.

    Args:
        stages: The stages whose artifact is asked for. `last` and `@newest` count the runs that have one.
        recipe: Of a command about one recipe: `last` counts its runs alone.
        more_runs: Ids of runs that are not on record.

    Raises:
        ConfigError: The name means a run and an artifact, or several; there are fewer champions or runs.
    """
    if name.which is not None:
        return _of_recipe(store, name, stages or MODEL_STAGES)
    if name.back is not None:
        return _nth_last(store, name, stages, recipe, more_runs)
    may_be_run = name.text and not name.is_whole_digest
    runs = [run for run in _run_ids(store, more_runs) if run.startswith(name.text)] if may_be_run else []
    digests = _digests(store, name) if name.digest else []
    if runs and digests:
        raise ConfigError(
            f"{name.text} begins the run {runs[0]} and the digest {digests[0][:19]}",
            f"give more of it; sha256:{name.text} is the digest",
        )
    if runs:
        run = unique(name.text, runs, "run", "")
        return Meaning(run, artifact_of_run(store.run(run) or {}, *stages))
    return Meaning(artifact=unique(name.digest, digests, "artifact", "")) if digests else None


def find_run(store: Store, name: ModelName, more_runs: Iterable[str] = ()) -> str:
    """Return the id of the run that a name means: of an artifact, the newest that made or used it. Raises ConfigError."""
    meaning = find_stored(store, name, more_runs=more_runs)
    if meaning is None:
        raise ConfigError(f"there is no run {name.text}", "`last` is the newest; `trnflow runs` lists them")
    if meaning.run is not None:
        return meaning.run
    runs = ((run, store.run(run) or {}) for run in store.run_ids())
    for run, document in runs:
        if meaning.artifact in artifacts_of(document):
            return run
    raise ConfigError(f"no run in this store made or used {str(meaning.artifact)[:19]}", "`trnflow runs` lists them")


def find_artifact(store: Store, name: ModelName) -> str:
    """Return the digest of the artifact that a name means: of a run its model, else its last. Raises ConfigError."""
    meaning = find_stored(store, name)
    if meaning is not None and meaning.artifact is not None:
        return meaning.artifact
    if meaning is not None and meaning.run is not None:
        run = store.run(meaning.run) or {}
        digest = artifact_of_run(run, *MODEL_STAGES) or next(iter(reversed(artifacts_of(run))), None)
        if digest is None:
            raise ConfigError(f"the run {meaning.run} made no artifact", "`trnflow runs` lists others")
        return digest
    raise ConfigError(
        f"there is no artifact {name.digest or name.text}", "`trnflow show RECIPE` and `trnflow runs --json` name them"
    )


def newest_model(store: Store, recipe: str, stages: Sequence[str] = MODEL_STAGES) -> Meaning | None:
    """Return the newest completed run of a recipe with an artifact of `stages`, or None."""
    for run in store.run_ids():
        document = store.run(run) or {}
        if document.get("recipe") == recipe and document.get("outcome") == "completed":
            digest = artifact_of_run(document, *stages)
            if digest is not None:
                return Meaning(run, digest)
    return None


def artifact_of_run(run: RunRecord, *stages: str) -> str | None:
    """Return the digest of the artifact of the first of `stages` that has one in a run record, or None."""
    made = {stage["stage"]: stage.get("artifact") for stage in run.get("stages", [])}
    return next((made[stage] for stage in stages if made.get(stage)), None)


def no_such_model(name: ModelName, fix: str) -> ConfigError:
    """Return the error for a name that means nothing. fix: what helps, if the name's form is right."""
    wrong = "@" in name.text and name.which is None
    right = "after RECIPE@ stands champion, newest, or the number of a champion"
    return ConfigError(f"there is no recipe, run or artifact {name.text}", right if wrong else fix)


def unique(text: str, names: Iterable[str], what: str, fix: str) -> str:
    """Return the name that equals `text`, or else the only name that begins with `text`.

    what: the noun for the names in the error, such as "run"; fix: what helps if no name matches. Raises ConfigError if
    no name or more than one matches."""
    matching = sorted({name for name in names if name.startswith(text)})
    if text in matching:
        return text
    if len(matching) != 1:
        several = f"{text} begins {len(matching)} {what}s: {', '.join(matching[:3])} ..."
        raise ConfigError(several if matching else f"there is no {what} {text}", "give more of it" if matching else fix)
    return matching[0]


def _of_recipe(store: Store, name: ModelName, stages: Sequence[str]) -> Meaning | None:
    """Return what `RECIPE@WHICH` means; None for `@champion` of a recipe without one."""
    if name.which == NEWEST:
        newest = newest_model(store, name.recipe, stages)
        if newest is None:
            what = "a model" if set(stages) & set(MODEL_STAGES) else f"an artifact of {stages[0]}"
            raise ConfigError(f"no completed run of the recipe {name.recipe} made {what} in this store", "run it first")
        return newest
    ledger = read_ledger(store, name.recipe)
    if name.which == CHAMPION:
        chosen = ledger.champion
    else:
        chosen = next((champion for champion in ledger.champions() if champion["number"] == name.which), None)
        if chosen is None:
            fix = f"`trnflow champions {name.recipe}` lists them"
            raise ConfigError(f"{name.recipe} has no champion {name.which}", fix)
    return Meaning(artifact=chosen["champion"], champion=chosen) if chosen else None


def _nth_last(
    store: Store, name: ModelName, stages: Sequence[str], recipe: str | None, more_runs: Iterable[str]
) -> Meaning:
    """Return the run that `last~N` means, counting those that have what is asked for."""
    back, ids = name.back or 0, _run_ids(store, more_runs)
    if not stages and recipe is None:
        if back >= len(ids):
            raise ConfigError(f"there is no run {name.text}: the store has {len(ids)}", "`trnflow runs` lists them")
        return Meaning(ids[back])
    for run in ids:
        document = store.run(run) or {}
        digest = artifact_of_run(document, *stages)
        if recipe in (None, document.get("recipe")) and (digest is not None or not stages):
            if not back:
                return Meaning(run, digest)
            back -= 1
    whose = f" of {recipe}" if recipe else ""
    what = "made a model" if set(stages) & set(MODEL_STAGES) else f"has an artifact of {', '.join(stages)}"
    raise ConfigError(f"there is no run {name.text}{whose} that {what}", "`trnflow runs` lists the runs")


def _run_ids(store: Store, more: Iterable[str]) -> list[str]:
    """Return the ids of the runs, newest first."""
    ids = store.run_ids()
    return sorted(sorted({*ids, *more}, reverse=True), key=is_ahead) if (more := [*more]) else ids


def artifacts_of(run: RunRecord) -> list[str]:
    """Return the digests of a run's artifacts, in the order of its stages."""
    return [str(stage["artifact"]) for stage in run.get("stages", []) if stage.get("artifact")]


def _digests(store: Store, name: ModelName) -> list[str]:
    """Return the digests of artifacts that begin so, whether or not their manifests are in the store."""
    beginning = name.digest
    if name.is_whole_digest and store.backend.size(blob_name(beginning)) is not None:
        return [beginning]
    known = {record["artifact"] for record in store.all_records()}
    known.update(digest for run in store.run_ids() for digest in artifacts_of(store.run(run) or {}))
    matching = {digest for digest in known if digest.startswith(beginning)}
    return sorted(matching or set(_manifests(store, beginning)))


def _manifests(store: Store, beginning: str) -> Iterator[str]:
    """Yield the digests of all manifests with this beginning."""
    digits = beginning.removeprefix("sha256:")
    for path in store.backend.names(f"blobs/sha256/{digits[:2]}"):
        digest = f"sha256:{path.rsplit('/', 1)[1]}"
        is_short = digest.startswith(beginning) and (store.backend.size(path) or 0) < LONGEST_MANIFEST
        if is_short and read_manifest(store.backend.read(path), digest):
            yield digest
