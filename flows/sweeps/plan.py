"""Read the plan of a sweep: the recipe, the settings that vary, and the definition that identifies its Optuna study."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import recipe_names
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.sweeps.space import FORM, Dimension, combinations, override, parse, separate
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store
from trnflow.tasks.system.databases import fill_address
from trnflow.tasks.system.private_files import lookup_name
from trnflow.tasks.system.redaction import hide, hide_override

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
AROUND = (
    "description",
    "checks",
    "hardware",
    "store",
    "launch",
    "task_runner",
    "tracking",
    "sweep",
    "promote",
    "export",
    "evaluate",
)
"""Sections without influence on the metrics of training: a resumed sweep may change them."""
SUFFIX = ".sweep"
"""Ends the recipe's name in runs of trials, so that they are not counted as runs of the recipe."""


@dataclass(frozen=True)
class Plan:
    """A sweep (trials of one recipe with different settings, to find the best ones) whose settings were checked, but
    which need not have begun.

    Attributes:
        named: The recipe's name or file, as the user gave it.
        overrides: Overrides that all trials have in common.
        recipe: The recipe with these overrides.
        space: The settings that vary, each with its range or choices.
    """

    named: str
    overrides: tuple[str, ...]
    recipe: Recipe
    space: tuple[Dimension, ...]

    @property
    def name(self) -> str:
        """The name of the Optuna study and of the sweep's folder: `sweep.name`, by default the recipe's name."""
        return self.recipe.sweep.name or self.recipe.name

    def folder(self, home: Path) -> Path:
        """Return the folder of the sweep's results. home: the folder of local state, TRNFLOW_HOME."""
        return home / "sweeps" / self.name

    def database(self, home: Path) -> str:
        """Return the SQLAlchemy URL of Optuna's database: `sweep.database` with its secrets filled in, by default the
        file `optuna.db` in `home`, the folder of local state."""
        written = self.recipe.sweep.database
        return fill_address(written, "sweep.database") if written else f"sqlite:///{home.absolute() / 'optuna.db'}"

    def store_id(self, store: Store) -> str:
        """Return an id of the store, different for each store whose sweeps share the database `sweep.database`; "" for
        the default database, which belongs to one home (the folder of local state).

        The id of a local store depends on its home too: another machine may have another store under the same path."""
        if not self.recipe.sweep.database:
            return ""
        root = str(hide(store.root))
        return lookup_name(store.home, root) if store.is_local else sha256(root.encode()).hexdigest()

    def trial_recipe(self, values: Meta) -> Recipe:
        """Return the recipe of a trial; its name is that of the sweep's recipe with `.sweep` at the end. values:
        {setting: value} of the settings that vary. ConfigError if the recipe does not allow this combination of
        values."""
        varied = [override(setting, value) for setting, value in values.items()]
        return settings.load(self.named, [*self.overrides, *varied, f"name={self.recipe.name}{SUFFIX}"])

    def best_recipe(self, values: Meta) -> Recipe:
        """Return the recipe with the settings of the best trial. Its name is that of the sweep's recipe, without the
        ending `.sweep` that the names of trials have. values: {setting: value} of the settings that vary."""
        return settings.load(self.named, [*self.overrides, *(override(*one) for one in values.items())])

    def refuse_changed(self) -> None:
        """Raise ConfigError if the definition of the sweep changed since this plan was read, because the recipe's file
        was edited: each trial reads that file again."""
        now = replace(self, recipe=settings.load(self.named, self.overrides))
        if now.definition() != self.definition():
            raise ConfigError(
                f"the recipe {self.named} changed while its sweep ran",
                "undo the change, or begin another sweep: --name NAME",
            )

    def definition(self) -> Meta:
        """Return what must be unchanged when a sweep is resumed.

        recipe: the recipe without the settings that vary, and without the sections that do not affect training's
        metrics, such as `store` and `evaluate`; space: {setting: its range or choices}; metric: the metric by which
        trials are compared; direction: "max" or "min"."""
        common = {name: value for name, value in self.recipe.to_json().items() if name not in AROUND}
        for dimension in self.space:
            _remove(common, dimension.setting.split("."))
        sweep = self.recipe.sweep
        direction = "max" if sweep.is_maximised else "min"
        space = {one.setting: one.to_json() for one in self.space}
        return {"recipe": common, "space": space, "metric": sweep.metric, "direction": direction}


def read_plan(named: str, texts: Sequence[str]) -> Plan:
    """Read a recipe and check the sweep that is described by its section `sweep` and by the command line.

    Args:
        named: The recipe's name or file.
        texts: `section.setting=value` texts of the command line. Those with a range or choices add to `sweep.settings`
            or replace its entries; a single value removes its setting from `sweep.settings` and is set for all trials.

    Raises:
        ConfigError: A setting, range, choice or option is wrong, or nothing varies.
    """
    varied, fixed = separate(texts)
    recipe = settings.load(named, fixed)
    written: dict[str, Any] = {**recipe.sweep.settings, **varied}
    for text in fixed:
        written.pop(text.partition("=")[0], None)  # a value on the command line ends the variation in the recipe

    def refuse(setting: str, value: Any) -> None:
        try:
            settings.load(named, [*fixed, override(setting, value)])
        except ConfigError as error:
            if setting in varied:
                raise
            said = error.message.removeprefix(f"override {setting}: ")
            raise ConfigError(f"sweep.settings of {name}: {said}", error.fix) from error

    name = named if named in recipe_names() else Path(named).name
    if not written:
        raise ConfigError(
            f"the sweep of {name} varies nothing",
            "give a range or choices, such as train.learning_rate=1e-5..1e-4:log, or write a section sweep",
        )
    plan = Plan(named, tuple(fixed), recipe, parse(written, refuse))
    if not NAME.fullmatch(plan.name):
        raise ConfigError(f"a sweep can't be named {plan.name}", "letters, digits, points and hyphens: --name NAME")
    if recipe.sweep.sampler == "grid":
        combinations(plan.space)
    return plan


def refuse_fixed(texts: Sequence[str]) -> None:
    """Raise ConfigError if one of these `section.setting=value` texts names a single value instead of a range or choices."""
    fixed = separate(texts)[1]
    if fixed:
        raise ConfigError(
            f"{hide_override(fixed[0])} is neither a range nor choices", f"{FORM}; a fixed value is an override"
        )


def _remove(tree: Meta, path: list[str]) -> None:
    for name in path[:-1]:
        tree = tree.get(name) or {}
    tree.pop(path[-1], None)
