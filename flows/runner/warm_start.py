"""Find the model that training starts from, as `train.warm_start_from` names it: perhaps the recipe's own newest one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trnflow.flows.recipes.names import model_name
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.keys.lineage import start_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.model_names import (
    CHAMPION,
    MODEL_STAGES,
    ModelName,
    artifact_of_run,
    find_stored,
    newest_model,
)

MODEL, TRAINING = MODEL_STAGES
MODEL_KINDS = {"model": MODEL, "checkpoint": TRAINING}
LEAST = 8
"""Hex digits from which an unknown name is called a digest in the error, not a recipe."""


@dataclass(frozen=True)
class EarlierModel:
    """A model of the store that training can start from.

    setting: its name, for messages; document: the key document of the training that made it, None if the setting is a
    digest or the record is gone; is_champion: whether the setting is `NAME@champion` or `NAME@N`.
    """

    artifact: Artifact
    setting: str
    document: KeyDocument | None = None
    is_champion: bool = False


def earlier_model(store: Store, text: str, setting: str, folder: Path | None = None) -> EarlierModel | None:
    """Return the model that a setting names; None if it is the champion of a recipe without one.

    Args:
        text: A name as `parse_model` reads it. RECIPE means `RECIPE@newest` here.
        setting: The name of the setting, for error messages.
        folder: What the path of a recipe's file is joined to; None for the working directory.

    Raises:
        ConfigError: The store has no such model, or has lost a file of it.
    """
    try:
        return _find(store, model_name(text, folder), setting)
    except ConfigError as error:
        if error.message.startswith(setting):
            raise
        raise ConfigError(f"{setting}: {error.message}", error.fix) from error


def _find(store: Store, name: ModelName, setting: str) -> EarlierModel | None:
    """Find the model that a name means: the recipe's newest first, then that of a run, champion or digest."""
    is_bare = name.which is None and not name.is_whole_digest  # no recipe is looked for among the runs' documents then
    meaning = newest_model(store, name.recipe) if is_bare else None
    meaning = meaning or find_stored(store, name, MODEL_STAGES)
    if meaning is None:
        if name.which == CHAMPION:
            return None
        raise _unknown(name)
    if meaning.run is not None:
        return _of_run(store, meaning.run, setting)
    model = _model(store, str(meaning.artifact), setting)
    if meaning.champion is None:
        return EarlierModel(model, setting)
    return EarlierModel(model, setting, _training_of(store, model.digest), is_champion=True)


def _of_run(store: Store, run: str, setting: str) -> EarlierModel:
    """Return the model of a run, with the key document of its training."""
    document = store.run(run) or {}
    digest = artifact_of_run(document, *MODEL_STAGES)
    if digest is None:
        raise ConfigError(f"the run {run} made no model", "`trnflow runs` lists others")
    key = next((stage["key"] for stage in document["stages"] if stage["stage"] == TRAINING), None)
    record = store.record(TRAINING, key) if key else None
    return EarlierModel(_model(store, digest, setting), setting, record["document"] if record else None)


def _unknown(name: ModelName) -> ConfigError:
    """Return the error for a name that means no model in the store."""
    if len(name.digest) >= len("sha256:") + LEAST:
        return ConfigError(f"there is no model {name.digest}", "`trnflow show RECIPE` names them")
    return ConfigError(
        f"no completed run of the recipe {name.recipe} made a model in this store",
        "give a digest (`trnflow show RECIPE` names them), or run that recipe first",
    )


def starting_model(store: Store, earlier: EarlierModel, document: KeyDocument) -> tuple[Artifact | None, str]:
    """Return (the model that training starts from, or None; a note for the user, or "").

    That is `earlier`, unless this training repeats the one that made it: then it is the model which that one started from
    (None for a champion that started from none), so that the key is the same, and the result is a hit.

    document: the key document of the training that is about to start, without its starting model.
    """
    before, start = start_of(earlier.document) if earlier.document else (None, None)
    if before is None or key_of(before) != key_of(document):
        return earlier.artifact, ""
    if start is None:
        return (None if earlier.is_champion else earlier.artifact), ""
    newest, other = earlier.artifact.digest[:19], start[:19]
    try:
        found = _model(store, start, earlier.setting)
    except ConfigError:
        gone = f"{other}, of which this training made {newest}, is gone: it starts from {newest}"
        return earlier.artifact, f"{earlier.setting}: {gone}"
    again = (
        f"nothing changed since {newest} was made of {other}, which it starts from again; to train on, name the digest"
    )
    return found, f"{earlier.setting}: {again}"


def _model(store: Store, digest: str, setting: str) -> Artifact:
    """Return the artifact of a model. Raises ConfigError if it is none, or a file is missing."""
    try:
        artifact = store.artifact(digest)
    except BlobLost as error:
        raise ConfigError(f"{setting}: {error.message}", "name a model that the store still holds") from error
    if artifact.kind not in MODEL_KINDS:
        raise ConfigError(
            f"{setting}: {digest[:19]} is of kind {artifact.kind}, no model", "name what consolidate or train made"
        )
    checked_artifact(store, MODEL_KINDS[artifact.kind], digest)
    missing = store.missing(artifact)
    if missing is not None:
        raise ConfigError(f"{setting}: the store has lost {missing.path} of {digest[:19]}", "run what made it again")
    return artifact


def _training_of(store: Store, model: str) -> KeyDocument | None:
    """Return the key document of the training of which consolidate made a model; None if a record is gone."""
    made = next((record for record in store.records(MODEL) if record["artifact"] == model), None)
    shards = made["document"]["inputs"].get("shards") if made else None
    records = store.records(TRAINING) if shards else []
    trained = next((record for record in records if record["artifact"] == shards), None)
    return trained["document"] if trained else None
