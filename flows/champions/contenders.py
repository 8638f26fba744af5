"""Find the models of a recipe: the one that a user wants to promote, the champion, and those that were judged last."""

from __future__ import annotations

from dataclasses import dataclass

from trnflow.flows.champions.frozen_rows import plan_retrain
from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.recipes.names import is_recipe, model_name
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.runner.context import plan_of
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.documents import Record, RecordName, RunRecord
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, read_ledger
from trnflow.tasks.store.ledger.entries import Entry, JudgedModel
from trnflow.tasks.store.model_names import artifact_of_run, find_stored, no_such_model

SHAPING = ("format", "tokenize")
"""Sections of a recipe that say how rows become a model's tokens."""


@dataclass(frozen=True)
class Contender:
    """A model to compare on the frozen rows: the champion, or a challenger.

    shaping: the sections `format` and `tokenize` of its recipe, as JSON; evaluation: a digest, or None; records: the records
    of the model, its evaluation and, of a champion, its scores.
    """

    artifact: Artifact
    shaping: Meta
    evaluation: str | None
    records: tuple[RecordName, ...]


def find_contender(text: str, recipe: Recipe, store: Store) -> Contender:
    """Return the model that a name (see `parse_model`) means. A run must be of `recipe`, and `last` counts its runs
    alone.

    Raises:
        ConfigError: There is no such recipe, run or artifact, or it is no model.
    """
    if is_recipe(text):
        return of_recipe(load(text), store)
    name = model_name(text)
    meaning = find_stored(store, name, (ROLES["model"],), recipe=recipe.name)
    if meaning is not None and meaning.run is not None and name.which is None:
        return of_run(store, meaning.run, recipe.name)
    if meaning is not None and meaning.artifact is not None:
        return of_digest(store, meaning.artifact, recipe.name)
    if name.which is not None:
        raise no_champion(name.recipe)
    raise no_such_model(name, "`trnflow recipes` and `trnflow runs` list them")


def of_recipe(recipe: Recipe, store: Store) -> Contender:
    """Return the model of a recipe's present settings: a retrain's, else a run's. Raises ConfigError, BlobLost."""
    retrained = plan_retrain(recipe, store)
    step = retrained.steps[ROLES["model"]] if retrained else None
    if step is None or step.artifact is None:
        step = plan_of(finetune(recipe), recipe, store).steps[ROLES["model"]]
    if step.artifact is None:
        raise ConfigError(
            f"the recipe {recipe.name} has no model for these settings: {step.why}",
            "`trnflow run` makes it; or name a run (`trnflow runs`) or the digest of a model",
        )
    return _contender(store, step.artifact, recipe.to_json())


def of_run(store: Store, run: str, name: str) -> Contender:
    """Return the model that a past run of the recipe `name` made or found. run: the full id.

    Raises ConfigError when the run is of another recipe, has no model, or the store has lost it.
    """
    document = store.run(run) or {}
    if document.get("recipe") != name:
        raise ConfigError(
            f"the run {run} is of the recipe {document.get('recipe')}, not of {name}",
            f"name a run of {name} (`trnflow runs`), or the digest of the model that is meant",
        )
    digest = model_in(document)
    if digest is None:
        raise ConfigError(
            f"the run {run} of {document.get('recipe')} made no model: it ended before {ROLES['model']}",
            "name a run that completed (`trnflow runs`)",
        )
    return _contender(store, _model(store, digest), document["resolved"])


def of_digest(store: Store, digest: str, name: str) -> Contender:
    """Return the model with this full digest, with the settings of its training.

    Raises ConfigError for no model, and for one of no champion of `name` and no run in the store.
    """
    artifact = _model(store, digest)
    # a champion's settings are in the ledger, others' in the newest run record
    for entry in read_ledger(store, name).champions():
        if entry["champion"] == digest and entry["shaping"] is not None:
            return of_champion(store, entry)
    run = run_of_model(store, digest)
    if run is not None:
        return _contender(store, artifact, run["resolved"])
    raise ConfigError(
        f"no run in this store had the model {digest[:19]}, so that it is not known how rows become its tokens",
        "run the recipe that made it: cached stages are not run again",
    )


def of_champion(store: Store, entry: Entry) -> Contender:
    """Return the model of a champion. entry: the entry of the ledger that made it so. Raises BlobLost."""
    assert entry["champion"] is not None and entry["shaping"] is not None
    champion = checked_artifact(store, ROLES["model"], entry["champion"])
    return Contender(champion, entry["shaping"], entry["evaluation"], tuple(entry["records"]))


def _contender(store: Store, artifact: Artifact, settings: Meta) -> Contender:
    records_of_model = [record for record in store.records(ROLES["model"]) if record["artifact"] == artifact.digest]
    judged = evaluations_of(store, artifact.digest)
    records = tuple(RecordName(stage=record["stage"], key=record["key"]) for record in (*records_of_model, *judged[:1]))
    shaping = {section: settings[section] for section in SHAPING}
    return Contender(artifact, shaping, judged[0]["artifact"] if judged else None, records)


def no_champion(recipe: str) -> ConfigError:
    return ConfigError(f"{recipe} has no champion", f"`trnflow promote {recipe}` makes the first")


def evaluations_of(store: Store, model: str) -> list[Record]:
    """Return the records of a model's evaluations, the newest first."""
    records = store.records(ROLES["evaluation"])
    return [record for record in records if record["document"]["inputs"].get("weights") == model]


def model_in(run: RunRecord) -> str | None:
    """Return the digest of the model of a run record, or None."""
    return artifact_of_run(run, ROLES["model"])


def run_of_model(store: Store, digest: str) -> RunRecord | None:
    """Return the record of the newest run that made or found a model, or None."""
    documents = (store.run(run) or {} for run in store.run_ids())
    return next((document for document in documents if model_in(document) == digest and "resolved" in document), None)


def judged_models(
    store: Store, ledger: Ledger, run: str, challenger: str, champion: str | None, keep: int
) -> list[JudgedModel]:
    """Return the judged models whose runs' results gc keeps, newest first, with the champion.

    run: of the challenger; challenger, champion: digests; keep: how many without the champion.
    """
    models = {challenger: run}
    for before in ledger.stands["judged"]:
        model = model_in(store.run(before["run"]) or {})  # None of a run that was removed by hand
        if model is not None and len(models) < keep:
            models.setdefault(model, before["run"])
    # the next retrain's checks compare with the champion's data
    of_champion = run_of_model(store, champion) if champion else None
    if champion and of_champion is not None:
        models.setdefault(champion, of_champion["run"])
    return [JudgedModel(run=made_by, model=model) for model, made_by in models.items()]


def _model(store: Store, digest: str) -> Artifact:
    try:
        kind = store.artifact(digest).kind
    except BlobLost as error:
        raise ConfigError(error.message, "name a model that the store still holds") from error
    if kind != "model":
        raise ConfigError(
            f"{digest[:19]} is of kind {kind}, and what is promoted is a model",
            "name what consolidate made: `trnflow show RECIPE consolidate`",
        )
    return checked_artifact(store, ROLES["model"], digest)
