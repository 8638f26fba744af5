"""The model that a setting names in the store: by digest, by the beginning of one, or by the recipe that made it."""

from __future__ import annotations

from tasks.artifact import Artifact, Meta
from tasks.errors import BlobLost, ConfigError
from tasks.lineage import unique
from tasks.store import Store
from tasks.store.names import newest_runs

MADE_BY = {"consolidate": "model", "train": "checkpoint"}
LEAST = 8
"""Digits of a digest's beginning."""


def earlier_model(store: Store, text: str, setting: str) -> Artifact:
    """What `consolidate` or `train` made: of a recipe's name, its newest completed run's. ConfigError when there is none."""
    digest = _by_digest(store, text) if _is_digest(text) else _by_recipe(store, text, setting)
    try:
        artifact = store.artifact(digest)
    except BlobLost as error:
        raise ConfigError(f"{setting}: {error.message}", "name a model that the store still holds") from error
    if artifact.kind not in MADE_BY.values():
        raise ConfigError(
            f"{setting}: {digest[:19]} is of kind {artifact.kind}, no model", "name what consolidate or train made"
        )
    missing = store.missing(artifact)
    if missing is not None:
        raise ConfigError(f"{setting}: the store has lost {missing.path} of {digest[:19]}", "run what made it again")
    return artifact


def _is_digest(text: str) -> bool:
    digits = text.removeprefix("sha256:")
    return len(digits) >= LEAST and set(digits) <= set("0123456789abcdef")


def _by_digest(store: Store, text: str) -> str:
    wanted = f"sha256:{text.removeprefix('sha256:')}"
    if len(wanted) == len("sha256:") + 64:
        return wanted
    made = [record["artifact"] for stage in MADE_BY for record in store.records(stage)]
    return unique(wanted, made, "model", "`trnflow show RECIPE` names them")


def _by_recipe(store: Store, name: str, setting: str) -> str:
    for run in newest_runs(store.backend.entries("runs")):
        document = store.run(run) or {}
        if document.get("recipe") == name and document.get("outcome") == "completed":
            made = _made(document)
            if made:
                return made
    raise ConfigError(
        f"{setting}: no completed run of the recipe {name} made a model in this store",
        "give a digest (`trnflow show RECIPE` names them), or run that recipe first",
    )


def _made(run: Meta) -> str | None:
    by_stage = {stage["stage"]: stage.get("artifact") for stage in run.get("stages", [])}
    return next((by_stage[stage] for stage in MADE_BY if by_stage.get(stage)), None)
