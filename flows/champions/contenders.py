"""Find the model that a user wants to promote to champion: by a recipe's present settings, a past run or a digest.

The champion is the model that a recipe's users should get. Models are compared with it on frozen rows: test rows that
the store keeps for that purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnflow.flows.champions.frozen_rows import plan_retrain
from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.recipes.names import is_recipe, model_name
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.runner.context import plan_of
from trnflow.flows.runner.run import artifact_in
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import newest_runs
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.store.ledger.entries import Entry
from trnflow.tasks.store.model_names import find_stored, no_such_model

SHAPING = ("format", "tokenize")
"""The sections of a recipe that say how rows become a model's tokens."""


@dataclass(frozen=True)
class Contender:
    """A model to compare with another one on the frozen rows (test rows that the store keeps for such comparisons): the
    champion (the model that a recipe's users should get), or the model that would replace it.

    Attributes:
        artifact: The model, made by the stage `consolidate`.
        shaping: The recipe's sections `format` and `tokenize` with which the model was trained, as JSON. They decide
            how rows become the model's tokens.
        evaluation: Digest of the artifact that the stage `evaluate_model` made of this model; None if the store has
            none.
        records: The store's records of the model and of its evaluation; for a champion also those of its scores on the
            frozen rows. A record says which artifact a stage made under a key (the hash of all that decides the
            artifact). Each is named by {"stage": the stage's name, "key": the key}.
    """

    artifact: Artifact
    shaping: Meta
    evaluation: str | None
    records: tuple[Meta, ...]


def find_contender(text: str, recipe: Recipe, store: Store) -> Contender:
    """Return the model that a name means, to compare it with the champion of `recipe`.

    text: a name as `parse_model` reads it. A run must be of the recipe, and `last` counts its runs alone; the other
    names may mean any model in the store.

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
        raise ConfigError(f"{name.recipe} has no champion", f"`trnflow promote {name.recipe}` makes the first")
    raise no_such_model(name, "`trnflow recipes` and `trnflow runs` list them")


def of_recipe(recipe: Recipe, store: Store) -> Contender:
    """Find the model that was trained with a recipe's present data and settings; run no stage.

    Return the model that `trnflow retrain` made, if there is one, else the model that `trnflow run` made. A retrain
    drops the training rows that have the same text as one of the frozen rows (the fixed test rows on which the recipe's
    models are compared).

    Raises:
        ConfigError: The store has no model of these data and settings.
        BlobLost: The store has lost the recipe's frozen rows.
    """
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
    """Return the model of a past run of the recipe `name`: the one that the run trained, or found in the store. It can
    then be compared with the recipe's champion.

    run: the run's full id. ConfigError when the run is of another recipe, has no model, or its model is no longer in
    the store."""
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
    """Return the model with this full digest (`sha256:...`), and the settings with which it was trained.

    If the model is or was a champion of the recipe `name` (the model that the recipe's users should get), the settings
    are read from the recipe's ledger, else from the record of the newest run that made or used the model.
    ConfigError when the artifact is no model or not in the store, or when the model was no champion of the recipe and
    no run in the store made or used the model."""
    artifact = _model(store, digest)
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
    return Contender(store.artifact(entry["champion"]), entry["shaping"], entry["evaluation"], tuple(entry["records"]))


def _contender(store: Store, artifact: Artifact, settings: Meta) -> Contender:
    made = [record for record in store.records(ROLES["model"]) if record["artifact"] == artifact.digest]
    judged = [
        record
        for record in store.records(ROLES["evaluation"])
        if record["document"]["inputs"].get("weights") == artifact.digest
    ]
    records = tuple({"stage": record["stage"], "key": record["key"]} for record in (*made, *judged[:1]))
    shaping = {section: settings[section] for section in SHAPING}
    return Contender(artifact, shaping, judged[0]["artifact"] if judged else None, records)


def model_in(run: Meta) -> str | None:
    """Return the digest of the model that a run made or found in the store; None if there is none. run: the run's
    record."""
    return artifact_in(run, ROLES["model"])


def run_of_model(store: Store, digest: str) -> Meta | None:
    """Return the record of the newest run that made the model with this digest, or found it in the store; None if no
    run did."""
    documents = (store.run(run) or {} for run in newest_runs(store.backend.entries("runs")))
    return next((one for one in documents if model_in(one) == digest and "resolved" in one), None)


def _model(store: Store, digest: str) -> Artifact:
    try:
        artifact = store.artifact(digest)
    except BlobLost as error:
        raise ConfigError(error.message, "name a model that the store still holds") from error
    if artifact.kind != "model":
        raise ConfigError(
            f"{digest[:19]} is of kind {artifact.kind}, and what is promoted is a model",
            "name what consolidate made: `trnflow show RECIPE consolidate`",
        )
    return artifact
