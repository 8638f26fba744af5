"""Read the plan of a sweep: the recipe, the settings that vary, and the study's definition."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import RecipeTree, read_tree, recipe_names
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.reference import UNKEYED
from trnflow.flows.recipes.sent import check_sent, is_outside, refuse_code_elsewhere
from trnflow.flows.sweeps.space import FORM, Dimension, combinations, override, parse, separate
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store
from trnflow.tasks.system.databases import fill_address
from trnflow.tasks.system.private_files import lookup_name
from trnflow.tasks.system.redaction import hide_override, hide_secrets

SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# These sections have no influence on training's metrics: a resumed sweep may change them.
FREE_SECTIONS = ({*UNKEYED} - {"name"}) | {"export", "evaluate"}


@dataclass(frozen=True)
class Plan:
    """A sweep whose settings were checked.

    named: the recipe as the user gave it; read: its files; overrides: of all trials; space: the settings that vary.
    """

    named: str
    read: RecipeTree
    overrides: tuple[str, ...]
    recipe: Recipe
    space: tuple[Dimension, ...]

    @property
    def trial_name(self) -> str:
        """The recipe's name in trials, which do not count as runs of the recipe."""
        return f"{self.recipe.name}.sweep"

    @property
    def name(self) -> str:
        """The name of the study and of the sweep's folder."""
        return self.recipe.sweep.name or self.recipe.name

    def folder(self, home: Path) -> Path:
        """Return the folder of the sweep's results."""
        return home / "sweeps" / self.name

    def database(self, home: Path) -> str:
        """Return the SQLAlchemy URL of Optuna's database, with secrets filled in."""
        written = self.recipe.sweep.database
        return fill_address(written, "sweep.database") if written else f"sqlite:///{home.absolute() / 'optuna.db'}"

    def store_id(self, store: Store) -> str:
        """Return an id of the store, by which stores share a database of sweeps; "" for the home's own database."""
        if not self.recipe.sweep.database:
            return ""
        root = str(hide_secrets(store.root))
        # another machine may have another local store at the same path
        return lookup_name(store.home, root) if store.is_local else sha256(root.encode()).hexdigest()

    def with_values(self, values: Meta, name: str) -> Recipe:
        """Return the recipe with values of a trial, under this name. Raises ConfigError if it does not allow them."""
        # not read again: all trials have the recipe that the sweep began with, whatever happens to its file
        varied = [override(*pair) for pair in {**values, "name": name}.items()]
        return settings.validated(self.read.with_overrides([*self.overrides, *varied]), self.named)

    def check_sent(self) -> None:
        """Raise ConfigError for overrides and values of trials that Prefect may not send (`flows/recipes/sent.py`)."""
        check_sent(self.read, self.overrides)
        section = {} if is_outside(self.read) else self.read.tree.get("sweep") or {}
        own = parse(section.get("settings") or {}, lambda setting, value: None)
        for dimension in self.space:
            for value in dimension.ends() if dimension not in own else ():
                check_sent(self.read, [*self.overrides, override(dimension.setting, value)])
        refuse_code_elsewhere(self.recipe)

    def definition(self) -> Meta:
        """Return what must be unchanged when a sweep is resumed: all that shapes the metric of a trial."""
        common = {name: value for name, value in self.recipe.to_json().items() if name not in FREE_SECTIONS}
        for dimension in self.space:
            _remove(common, dimension.setting.split("."))
        sweep = self.recipe.sweep
        direction = "max" if sweep.is_maximised else "min"
        space = {dimension.setting: dimension.to_json() for dimension in self.space}
        return {"recipe": common, "space": space, "metric": sweep.metric, "direction": direction}


def read_plan(named: str, texts: Sequence[str]) -> Plan:
    """Read a recipe, and check the sweep that its section `sweep` and the command line describe.

    texts: `section.setting=value`; a range or choices vary the setting, a single value fixes it. Raises ConfigError for a
    wrong setting, range or choice, and if nothing varies.
    """
    varied, fixed = separate(texts)
    read = read_tree(named, Recipe)
    recipe = settings.validated(read.with_overrides(fixed), named)
    if recipe.sweep.within:
        _refuse_beside_within(varied, fixed, recipe)
        fixed += _compared_by(recipe)
        recipe = settings.validated(read.with_overrides(fixed), named)
    if direction := _direction(recipe):
        fixed += direction
        recipe = settings.validated(read.with_overrides(fixed), named)
    written: Meta = {} if recipe.sweep.within else {**recipe.sweep.settings, **varied}
    for text in fixed:
        written.pop(text.partition("=")[0], None)  # a value on the command line ends the variation in the recipe

    def refuse(setting: str, value: Any) -> None:
        try:
            settings.validated(read.with_overrides([*fixed, override(setting, value)]), named)
        except ConfigError as error:
            if setting in varied:
                raise
            message = error.message.removeprefix(f"override {setting}: ")
            raise ConfigError(f"sweep.settings of {name}: {message}", error.fix) from error

    name = named if named in recipe_names() else Path(named).name
    if not (written or recipe.sweep.within):
        raise ConfigError(
            f"the sweep of {name} varies nothing",
            "give a range or choices, such as train.learning_rate=1e-5..1e-4:log, a section sweep, or a time: --within 30m",
        )
    plan = Plan(named, read, tuple(fixed), recipe, parse(written, refuse))
    if not SWEEP_NAME.fullmatch(plan.name):
        raise ConfigError(f"a sweep can't be named {plan.name}", "letters, digits, points and hyphens: --name NAME")
    if recipe.sweep.sampler == "grid":
        combinations(plan.space)
    return plan


def _refuse_beside_within(varied: Collection[str], fixed: Sequence[str], recipe: Recipe) -> None:
    """Raise ConfigError if the command line gives `sweep.within` and a search of its own, or if trials run at a time."""
    of_a_search = [text for text in fixed if text.startswith(("sweep.settings", "sweep.trials=", "sweep.sampler="))]
    parallel = [f"sweep.parallel={recipe.sweep.parallel}"] if recipe.sweep.parallel > 1 else []
    if given := [*varied, *of_a_search, *parallel]:
        raise ConfigError(
            f"a sweep with --within chooses its settings and their number, and tries one at a time: {given[0]} is given too",
            "leave one of the two out",
        )


def _compared_by(recipe: Recipe) -> list[str]:
    """Return the overrides that set `sweep.metric` where the recipe does not."""
    if "metric" in recipe.sweep.model_fields_set:
        return []
    if "best_metric" not in recipe.train.model_fields_set and recipe.learns.one_class:
        return [override("sweep.metric", "eval_accuracy")]
    return [override("sweep.metric", recipe.train.best_name)]


def _direction(recipe: Recipe) -> list[str]:
    """Return the override that sets `sweep.direction` where the recipe compares by a metric of its own, and does not."""
    own = next((each for each in recipe.evaluate.metrics if each.function == recipe.train.best_metric), None)
    if own is None or recipe.sweep.direction or recipe.sweep.metric != recipe.train.best_name:
        return []
    return [override("sweep.direction", "min" if own.less_is_better else "max")]


def refuse_fixed(texts: Sequence[str]) -> None:
    """Raise ConfigError if a text has a single value instead of a range or choices."""
    fixed = separate(texts)[1]
    if fixed:
        raise ConfigError(
            f"{hide_override(fixed[0])} is neither a range nor choices", f"{FORM}; a fixed value is an override"
        )


def _remove(tree: Meta, path: list[str]) -> None:
    for name in path[:-1]:
        tree = tree.get(name) or {}
    tree.pop(path[-1], None)
