"""Find the model or export that a user names, by a recipe, a champion, a run or a digest, without running a stage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trnflow.flows.champions.contenders import no_champion, run_of_model
from trnflow.flows.champions.frozen_rows import plan_retrain
from trnflow.flows.champions.serving import Serving, serving_beside
from trnflow.flows.finetune import KINDS, ROLES, finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import nearest, recipe_names
from trnflow.flows.recipes.names import is_recipe, root_of
from trnflow.flows.runner.context import open_store, plan_of
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.model_names import (
    NEWEST,
    Meaning,
    ModelName,
    artifact_of_run,
    find_stored,
    newest_model,
    no_such_model,
    parse_model,
)

OF_MODELS = (ROLES["model"], ROLES["export"], ROLES["evaluation"])
"""Stages whose artifacts are models or about one."""
NEW_TOKENS = 256
"""The most tokens of an answer, unless the user says how many."""


class FoundModel(NamedTuple):
    """A model or export that a user named.

    Attributes:
        record: (stage, key) of its record, if a recipe was named.
        serving: The champion beside it, if a recipe or its newest model was named.
    """

    store: Store
    artifact: Artifact
    record: tuple[str, str] | None = None
    serving: Serving | None = None

    @property
    def champion(self) -> str | None:
        """The digest of the champion that `serving` names."""
        return self.serving.champion if self.serving else None

    @property
    def notes(self) -> list[str]:
        """A sentence on which model this is and which one serves, if another one does."""
        return [f"this is {self.serving}"] if self.serving and self.serving.is_other else []

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a folder of links to the artifact's verified files. Raises BlobLost, with the record in quarantine."""
        with workplace(self.store.home, "model") as work:
            try:
                path = self.store.link_files(self.artifact, work / "model")
            except BlobLost:
                self.retract()
                raise
            yield path

    def retract(self) -> None:
        """Move the record to quarantine, so that the next run makes the artifact again."""
        if self.record:
            self.store.retract(*self.record)


def find_model(
    text: str, overrides: Sequence[str] = (), *, root: str | None = None, want: Sequence[str] = (ROLES["model"],)
) -> FoundModel:
    """Return what a name means: an artifact of the first stage in `want`; a digest may be of any of them.

    Args:
        text: A name as `parse_model` reads it. RECIPE is the result of its present settings, of a run or a retrain.
        overrides: `section.setting=value` texts, which only a recipe takes.
        root: The store's root; None for that of the recipe.

    Raises:
        ConfigError: There is no such recipe, run or artifact, or the stage made none.
    """
    if is_recipe(text):
        recipe, store = _open_recipe(text, overrides, root)
        step, artifact, model = _result(recipe, store, want[0])
        serving = serving_beside(store, recipe.name, model, text)
        return FoundModel(store, artifact, (want[0], str(step.key)), serving)
    name = parse_model(text)
    if name.which is not None and is_recipe(name.recipe):
        recipe, store = _open_recipe(name.recipe, overrides, root)
        name = name._replace(recipe=recipe.name)
    elif overrides:
        raise ConfigError(
            f"{text} is no recipe, so {overrides[0]} can't change it",
            "name a recipe; a text to predict that looks like a setting goes after --",
        )
    else:
        store = made_store(root_of(text, root))
    meaning = find_stored(store, name, want[:1])
    if meaning is None:
        raise _unknown(store, name)
    digest, serving = _artifact_of(store, name, meaning, want), None
    makers = {KINDS.get(stage, ""): stage for stage in want}
    artifact = checked_artifact(store, makers.get(store.artifact(digest).kind, want[0]), digest)
    if name.which == NEWEST and meaning.run is not None:
        model = artifact_of_run(store.run(meaning.run) or {}, ROLES["model"])
        serving = serving_beside(store, name.recipe, model, text.removesuffix(f"@{NEWEST}"))
    return FoundModel(store, artifact, None, serving)


def result_of_recipe(recipe: settings.Recipe, store: Store, stage: str) -> tuple[Step, Artifact]:
    """Return a stage's step and artifact for present data and settings: of a run, else a retrain. Raises ConfigError."""
    return _result(recipe, store, stage)[:2]


def _result(recipe: settings.Recipe, store: Store, stage: str) -> tuple[Step, Artifact, str | None]:
    """Return the same, and the digest of the model that it is or was made of; None of a stage before the model."""
    graph = finetune(recipe)
    if stage == ROLES["export"] and stage not in graph.stages:
        raise ConfigError(f"{recipe.name} has no {stage}: its export.target is none", "add export.target=stablehlo")
    steps = plan_of(graph, recipe, store).steps
    step = steps[graph.stage(stage)]
    if step.artifact is None and (retrained := plan_retrain(recipe, store)) is not None:
        steps = retrained.steps
        step = steps[stage]
    if step.artifact is None:
        raise ConfigError(
            f"{stage} of {recipe.name} has no artifact for these settings: {step.why}",
            f"`trnflow run --until {stage}` makes it",
        )
    model = steps[ROLES["model"]].artifact
    return step, step.artifact, model.digest if model and stage in OF_MODELS else None


def _artifact_of(store: Store, name: ModelName, meaning: Meaning, want: Sequence[str]) -> str:
    """Return the digest of the artifact that a name means. Raises ConfigError if it is of another stage."""
    stage = want[0]
    if meaning.champion is not None:
        return _made_with(store, name.recipe, str(meaning.artifact), stage)
    if meaning.run is not None:
        if meaning.artifact is None:
            raise ConfigError(f"the run {meaning.run} has no artifact of {stage}", "`trnflow runs` lists others")
        return meaning.artifact
    kind, wanted = store.artifact(str(meaning.artifact)).kind, [KINDS.get(stage, stage) for stage in want]
    own = (record["artifact"] for stage in want if stage not in KINDS for record in store.records(stage))
    if kind not in wanted and str(meaning.artifact) not in own:
        raise ConfigError(
            f"the artifact {name.text} is of the kind {kind}, not {' or '.join(wanted)}",
            f"`trnflow show RECIPE {stage}` names one",
        )
    return str(meaning.artifact)


def _made_with(store: Store, recipe: str, model: str, stage: str) -> str:
    """Return the digest of a champion's artifact of a stage: made of the model, else by the run that made it."""
    if stage == ROLES["model"]:
        return model
    made = [record for record in store.records(stage) if model in record["document"]["inputs"].values()]
    if made:
        return str(max(made, key=lambda record: str(record["created"]))["artifact"])
    digest = artifact_of_run(run_of_model(store, model) or {}, stage)
    if digest is None:
        raise ConfigError(
            f"the champion of {recipe} ({model[:19]}) has no artifact of {stage}",
            "run the recipe with the settings that made the champion: only the export is made anew",
        )
    return digest


def _unknown(store: Store, name: ModelName) -> ConfigError:
    """Return the error for a name that means nothing in the store."""
    if name.which is not None:
        return no_champion(name.recipe)
    if newest_model(store, name.text) is not None:
        fix = f"name its file, or a model of it: {name.text}@{NEWEST}, {name.text}@champion"
        return ConfigError(f"the recipe {name.text} has no settings here, though the store has models of it", fix)
    close = nearest(name.text, recipe_names())
    return no_such_model(name, f"did you mean {close}?" if close else "`trnflow recipes` and `trnflow runs` list them")


def _open_recipe(text: str, overrides: Sequence[str], root: str | None) -> tuple[settings.Recipe, Store]:
    recipe = settings.load(text, [*([f"store.root={root}"] if root else []), *overrides])
    return recipe, open_store(recipe)
