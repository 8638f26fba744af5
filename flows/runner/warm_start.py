"""Find the model in the store that a setting such as `train.warm_start_from` names.

The setting's value is the model's digest, the beginning of the digest, or the name of the recipe that made the model.
The recipe's name stands for its newest model, `NAME@champion` for its champion (the model that was promoted last), and
`NAME@N` for its nth champion.

A recipe may name itself, to continue training from its own newest model. That model changes with each run, so a
repeated run would never find its result in the store. If nothing else has changed, `starting_model` therefore returns
the model from which the newest model was trained: the training's key (the hash of everything that decides its result)
is then the same as before, and the result is found. The same holds for a champion; if the champion was trained from no
earlier model, `starting_model` returns None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.keys.lineage import start_of, unique
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.numbered_roots import CHAMPIONS, numbered
from trnflow.tasks.store.layout import newest_runs

MADE_BY = {"consolidate": "model", "train": "checkpoint"}
CHAMPION = re.compile(r"(?P<name>.+)@(?P<which>champion|[1-9][0-9]*)")
LEAST = 8
"""The smallest number of hex digits that a text needs to be read as the beginning of a digest."""


@dataclass(frozen=True)
class EarlierModel:
    """A model in the store from which a training can start, found by the value of a setting.

    Attributes:
        artifact: The model: an artifact of consolidate (a Hugging Face folder) or train (a checkpoint).
        setting: The name of the setting, such as train.warm_start_from, for messages.
        document: The key document (all that decided the result) of the training that made the model; None if the
            setting is a digest, or the store has no record of that training.
        is_champion: Whether the setting names a champion (a promoted model: `NAME@champion`, `NAME@N`).
    """

    artifact: Artifact
    setting: str
    document: Meta | None = None
    is_champion: bool = False


def champion_named(text: str | None) -> str | None:
    """Return the recipe's name NAME if the text names a champion (a promoted model) of that recipe, as `NAME@champion`
    (the last) or `NAME@N` (number N); None for any other text. The store is not read."""
    found = CHAMPION.fullmatch(text or "")
    return found["name"] if found else None


def earlier_model(store: Store, text: str, setting: str) -> EarlierModel | None:
    """Find the model that a setting names. Return None if the text is `NAME@champion` and the recipe has no champion
    (promoted model) yet.

    Args:
        text: The setting's value: a digest or its first 8 hex digits or more; or a recipe's name, which stands for the
            model of its newest completed run that made one; or `NAME@champion` or `NAME@N` (champion number N of the
            recipe).
        setting: The name of the setting, for error messages.

    Raises:
        ConfigError: The store has no such model, or has lost a file of it.
    """
    if _is_digest(text):
        return EarlierModel(_model(store, _by_digest(store, text), setting), setting)
    if champion_named(text):
        return _champion(store, text, setting)
    digest, key = _by_recipe(store, text, setting)
    record = store.record("train", key) if key else None
    return EarlierModel(_model(store, digest, setting), setting, record["document"] if record else None)


def starting_model(store: Store, earlier: EarlierModel, document: Meta) -> tuple[Artifact | None, str]:
    """Return (the model that training starts from, or None for no model; a note for the user, or "").

    Usually the model is that of `earlier`. The exception is a training that repeats the one that made `earlier`: their
    key documents (the JSON of everything that decides a result) are equal except for the starting model. Then the model
    from which the former training started is returned, with a note: the new training's key is the same as before, and
    the run finds the result in the store. If the former training started from no model, None is returned for a
    champion (a promoted model), and the model of `earlier` otherwise. If the store has lost the model from which the
    former training started, the model of `earlier` is returned with a note.

    Args:
        earlier: The model that the setting names.
        document: The key document of the training that is about to start, without the model that it starts from.
    """
    before, start = start_of(earlier.document or {})
    if key_of(before) != key_of(document):
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
    """Return the artifact of a model. Raise ConfigError when the artifact is not a model, or when one of its files is
    missing."""
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


def _champion(store: Store, text: str, setting: str) -> EarlierModel | None:
    """Find the champion that `NAME@champion` or `NAME@N` names. Return None for `NAME@champion` if the recipe has
    none."""
    found = CHAMPION.fullmatch(text)
    assert found is not None
    champions = numbered(store.backend, CHAMPIONS, found["name"])
    if found["which"] == "champion":
        champions = champions[:1]
        if not champions:
            return None
    chosen = next((one.document for one in champions if found["which"] in ("champion", str(one.number))), None)
    if chosen is None:
        raise ConfigError(
            f"{setting}: {found['name']} has no champion {found['which']}",
            f"`trnflow champions {found['name']}` lists them",
        )
    model = _model(store, chosen["artifact"], setting)
    return EarlierModel(model, setting, _training_of(store, model.digest), is_champion=True)


def _training_of(store: Store, model: str) -> Meta | None:
    """Return the key document of the training from whose checkpoint consolidate made a model; None if the store no
    longer has the record of either stage. model: the digest of consolidate's artifact."""
    made = next((one for one in store.records("consolidate") if one["artifact"] == model), None)
    shards = made["document"]["inputs"].get("shards") if made else None
    trained = next((one for one in store.records("train") if one["artifact"] == shards), None) if shards else None
    return trained["document"] if trained else None


def _is_digest(text: str) -> bool:
    digits = text.removeprefix("sha256:")
    return len(digits) >= LEAST and set(digits) <= set("0123456789abcdef")


def _by_digest(store: Store, text: str) -> str:
    wanted = f"sha256:{text.removeprefix('sha256:')}"
    if len(wanted) == len("sha256:") + 64:
        return wanted
    made = [record["artifact"] for stage in MADE_BY for record in store.records(stage)]
    return unique(wanted, made, "model", "`trnflow show RECIPE` names them")


def _by_recipe(store: Store, name: str, setting: str) -> tuple[str, str | None]:
    """Return (digest of the newest model of a recipe, key of the training that made it)."""
    for run in newest_runs(store.backend.entries("runs")):
        document = store.run(run) or {}
        if document.get("recipe") == name and document.get("outcome") == "completed":
            stages = {stage["stage"]: stage for stage in document.get("stages", [])}
            made = next((stages[name]["artifact"] for name in MADE_BY if stages.get(name, {}).get("artifact")), None)
            if made:
                return made, stages.get("train", {}).get("key")
    raise ConfigError(
        f"{setting}: no completed run of the recipe {name} made a model in this store",
        "give a digest (`trnflow show RECIPE` names them), or run that recipe first",
    )
