"""Find the model or export that a user names by a recipe, a champion, a run or a digest."""

from __future__ import annotations

import contextlib
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trnflow.flows.champions.frozen_rows import plan_retrain
from trnflow.flows.champions.promote import champions_of
from trnflow.flows.cli.history_commands import artifact_of, named_run, store_of
from trnflow.flows.finetune import KINDS, finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import nearest, recipe_names
from trnflow.flows.runner.context import open_store, plan_of
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.run import artifact_in
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.store import Store

CHAMPION = "@champion"


class NamedModel(NamedTuple):
    """A model or export that a user named. record: (stage, key) on record, if a recipe was named."""

    store: Store
    artifact: Artifact
    record: tuple[str, str] | None = None

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a temporary folder of links to the artifact's verified files. Raises BlobLost; the record is then in
        quarantine, so that the next run makes the artifact again."""
        self.store.home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.store.home) as folder:
            try:
                path = self.store.checkout(self.artifact, Path(folder) / "model")
            except BlobLost:
                if self.record:
                    self.store.retract(*self.record)
                raise
            yield path


def named_model(options: Namespace, stages: tuple[str, ...]) -> NamedModel:
    """Find the model or export that `options.recipe` names, without running a stage.

    - a recipe: what the first of `stages` made with its present settings;
    - `RECIPE@champion`: the champion, or the newest artifact that the first of `stages` made from it;
    - a run's id or its beginning, `last`, `last~N`: the artifact of the first of `stages` in it;
    - a digest or its beginning: an artifact of any of `stages`.

    Raises:
        ConfigError: There is no such recipe, run or artifact, the stage made none, or overrides come with a run or
        digest.
    """
    text = options.recipe
    if text.endswith(CHAMPION):
        return _champion(options, stages[0])
    if text in recipe_names() or Path(text).suffix in (".yaml", ".yml"):
        return _of_recipe(options, stages[0])
    if options.overrides:
        raise ConfigError(
            f"{text} is no recipe, so {options.overrides[0]} can't change it",
            "name a recipe; a text to predict that looks like a setting goes after --",
        )
    store = store_of(options)
    if (run := named_run(text, store)) is not None:
        return NamedModel(store, _of_run(run, store, stages[0]))
    if not _is_digest(text):
        close = nearest(text, recipe_names())
        raise ConfigError(
            f"there is no recipe, run or artifact {text}",
            f"did you mean {close}?" if close else "`trnflow recipes` and `trnflow runs` list them",
        )
    artifact = store.artifact(artifact_of(text, store))
    wanted = [KINDS[stage] for stage in stages]
    if artifact.kind not in wanted:
        raise ConfigError(
            f"the artifact {text} is of the kind {artifact.kind}, not {' or '.join(wanted)}",
            f"`trnflow show RECIPE {stages[0]}` names one",
        )
    return NamedModel(store, artifact)


def _of_recipe(options: Namespace, stage: str) -> NamedModel:
    recipe = settings.load(options.recipe, _overrides(options))
    store = open_store(recipe)
    step, artifact = made_by(recipe, store, stage)
    return NamedModel(store, artifact, (stage, str(step.key)))


def made_by(recipe: settings.Recipe, store: Store, stage: str) -> tuple[Step, Artifact]:
    """Return a stage's step and artifact for a recipe's present data and settings: those of `run`, else of
    `retrain`, which drops frozen rows. Raises ConfigError."""
    step = plan_of(finetune(recipe), recipe, store).steps[stage]
    if step.artifact is None and (retrained := plan_retrain(recipe, store)) is not None:
        step = retrained.steps[stage]
    if step.artifact is None:
        raise ConfigError(
            f"{stage} of {recipe.name} has no artifact for these settings: {step.why}",
            f"`trnflow run --until {stage}` makes it",
        )
    return step, step.artifact


def _champion(options: Namespace, stage: str) -> NamedModel:
    """Return the champion, or the newest artifact that `stage` made of it."""
    recipe = settings.load(options.recipe.removesuffix(CHAMPION), _overrides(options))
    store = open_store(recipe)
    champions = champions_of(store, recipe.name)
    if not champions:
        raise ConfigError(f"{recipe.name} has no champion", f"`trnflow promote {recipe.name}` makes the first")
    digest = champions[0].document["artifact"]
    if stage == "consolidate":
        return NamedModel(store, store.artifact(digest))
    made = [record for record in store.records(stage) if digest in record["document"]["inputs"].values()]
    if not made:
        raise ConfigError(
            f"the champion of {recipe.name} ({digest[:19]}) has no artifact of {stage}",
            "run the recipe with the settings that made the champion: only the export is made anew",
        )
    return NamedModel(store, store.artifact(max(made, key=lambda record: str(record["created"]))["artifact"]))


def _overrides(options: Namespace) -> list[str]:
    return [*([f"store.root={options.store}"] if options.store else []), *options.overrides]


def _of_run(run: str, store: Store, stage: str) -> Artifact:
    digest = artifact_in(store.run(run) or {}, stage)
    if digest is None:
        raise ConfigError(f"the run {run} has no artifact of {stage}", "`trnflow runs` lists others")
    return store.artifact(digest)


def _is_digest(text: str) -> bool:
    return set(text.removeprefix("sha256:")) <= set("0123456789abcdef") and len(text.removeprefix("sha256:")) >= 2
